// A whole layer of experts spread over GPUs in one launch (ep_moe_layer.h) against the same by
// launches of ours one after the other: dispatch, rows of the own experts, both products, combine;
// and against those products alone. In turn, slowest rank, in captured graphs and call by call. On
// one GPU nothing travels.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/overlap/overlap.h"
#include "stretto/ops/moe/ep_moe_layer.h"

namespace stretto::bench {

// The models of moe_shapes.h that have both layers in one launch; every rank has whole experts.
struct EpMoeShape {
  const char* model = "";
  EpMoeLayerDesc desc;

  double flops() const;           // of one rank, of tokens that go everywhere alike
  std::string to_string() const;  // "32-experts P=2 m=4096"
};

struct EpMoeOptions {
  std::string only;                         // shapes whose text contains this
  std::int64_t m = 0, hidden = 0, ffn = 0;  // above 0: instead of the models'
  bool quick = false;                       // one number of tokens, the default config
  int samples = 40;
  std::uint64_t seed = 0;
  std::string traces;  // a folder: of each shape what was timed once more, with the recorder
};

// Milliseconds of the slowest rank, sample by sample.
struct EpMoeSamples {
  std::vector<double> ours, sequence;
  std::vector<double> products, exchange;  // of the sequence: both products, and all but them

  std::string to_string(double flops) const;  // of one rank
  Json to_json() const;
};

struct EpMoeResult {
  EpMoeShape shape;
  std::string error;
  std::vector<OverlapTime> configs;  // families "fused" and "sequence"
  std::string chosen;
  std::optional<EpMoeSamples> graph, eager;

  std::string to_string() const;
  Json to_json() const;
};

std::vector<LabelledProgram> ep_moe_programs(int world_size, int num_sms,
                                             const EpMoeOptions& options);

// Calls `done` after each shape. What fails for a shape is in its result.
void compare_ep_moe(GpuWorld& world, const EpMoeOptions& options,
                    const std::function<void(const EpMoeResult&)>& done);

}  // namespace stretto::bench
