// Dispatch and combine of expert parallelism on several GPUs (ep_send.h, also in e4m3,
// ep_return.h), as a model with 256 experts of size 7168 asks for them: 128 and 4096 tokens of a
// rank. Checked against what the host counts and sums, then timed in captured graphs and launch by
// launch, call by call in turn with NCCL's all-to-all of equal bytes, slowest rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/harness/nccl_samples.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/moe/ep_desc.h"

namespace stretto::bench {

struct ExchangeOptions {
  std::string only;  // rows whose text contains this: "dispatch one-hop"
  bool quick = false;
  int samples = 40;
  std::uint64_t seed = 0;
  std::string traces;  // a folder: of each row what was timed once more, with the recorder
};

enum class ExchangeKind : std::uint8_t { kDispatch, kCombine };

struct ExchangeShape {
  static constexpr std::int64_t kShortStep = 128;  // tokens of a rank

  ExchangeKind kind = ExchangeKind::kDispatch;
  bool fp8 = false;  // tokens travel as e4m3 with scales; of a dispatch
  EpDesc desc;

  bool is_short() const { return desc.shape.rows_per_rank() <= kShortStep; }
  std::int64_t token_bytes() const;  // that travel, of one token
  std::string to_string() const;     // "dispatch one-hop bf16 P=2 tokens=128"
};

struct ExchangeResult {
  ExchangeShape shape;
  std::string error;  // empty where both were measured
  // Of tokens, that the rank which gets most (of a combine: gives most) has from others.
  double bytes = 0;
  std::vector<TriedConfig> configs;
  std::string chosen;
  std::optional<NcclSamples> eager, graph;

  std::string to_string() const;
  Json to_json() const;  // every sample
};

std::vector<LabelledProgram> exchange_programs(int world_size, const ExchangeOptions& options);

// Calls `done` after each row. What fails for a row is in its result.
void compare_exchange(GpuWorld& world, const ExchangeOptions& options,
                      const std::function<void(const ExchangeResult&)>& done);

}  // namespace stretto::bench
