// Attention spread over several GPUs against one GPU that does all of it, with nothing to exchange:
// what is left of 1 / P is what communication, waiting, shorter rows and lower clocks cost. What
// communication alone costs, where all keys and values are gathered: in turn with the same launch
// on the same GPUs without it (without_communication.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

struct AttentionRanksOptions {
  int world_size = 2;
  std::string only;    // rows whose label contains this
  std::string traces;  // a folder: both that the gathered form is timed as once more, recorded
  int samples = 20;
  std::uint64_t seed = 0;
};

struct AttentionRanksResult {
  std::string label;
  double flops = 0, bytes = 0;   // of all ranks: of the tensor cores, read from memory
  std::vector<double> one, all;  // milliseconds on one GPU, on all (the slowest)
  // Where all keys and values are gathered: without communication, in turn with `all`; and the
  // gathering by itself.
  std::vector<double> without, exchange;
  int world_size = 1;
  std::string error;

  double efficiency() const;  // one / (P * all), of medians
  // Of the exchange: 1 - (all - without) / exchange, sample by sample over the exchange's median.
  MedianInterval hidden() const;
  std::string to_string() const;
  Json to_json() const;
};

// Calls `done` for each row, once it is measured on all GPUs; rows on one GPU come first.
void measure_attention_ranks(const AttentionRanksOptions& options,
                             const std::function<void(const AttentionRanksResult&)>& done);

}  // namespace stretto::bench
