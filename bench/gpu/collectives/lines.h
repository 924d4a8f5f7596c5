// Whether lines of 128 bytes that a warp stores to another GPU arrive whole, which packets in lines
// rest on (device/sm90/packet.h, docs/decisions/0019-packets-in-lines.md). Two GPUs or more.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct LinesOptions {
  std::int64_t rounds = 400'000;  // in which every line is stored again
};

// Of the lines of one rank's memory, which the rank before it stores while the rank itself loads
// them, in as many warps.
struct LinesResult {
  int rank = 0;
  std::int64_t loads = 0;    // of a line
  std::int64_t renewed = 0;  // which had another round than the load before
  std::int64_t mixed = 0;    // whose words were not all of one round
  std::int64_t stale = 0;    // of these, with words of a round before that of the last word
  std::string error;         // where a line came in parts, or not at all

  std::string to_string() const;  // a line
  Json to_json() const;
};

// Calls `done` for each rank. UserError for a world of one.
void measure_lines(GpuWorld& world, const LinesOptions& options,
                   const std::function<void(const LinesResult&)>& done);

}  // namespace stretto::bench
