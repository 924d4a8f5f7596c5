// Fused layers of a mixture of experts, by themselves and both in one launch, on several GPUs
// against the same products, the collective of NCCL and the weighted sum one after the other, call
// by call in turn, slowest rank. Tables are made beforehand, for both; what making them on the
// devices takes is measured by itself and together with the fused layer.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/experts/moe_shapes.h"
#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/overlap/overlap.h"

namespace stretto::bench {

struct MoeOptions {
  std::string only;  // shapes whose text contains this
  bool quick = false;
  bool routings = false;  // routed_shapes() in place of moe_shapes(), fused in the default config
  bool profile = false;  // GpuTimeOptions::profile, of the first config of each; on one GPU
  std::string traces;    // a folder: of each shape what was timed once more, with the recorder
  int samples = 40;
  std::uint64_t seed = 0;
};

struct MoeResult {
  MoeShape shape;
  std::string error;
  std::vector<OverlapTime> configs;  // families "fused" and "product"
  std::string chosen;
  // `sequence`: of the first layer NCCL's all-gather and the product; of the second the product,
  // the weighted sum and NCCL's reduce-scatter; of both in one launch all five.
  std::optional<OverlapSamples> samples;
  std::vector<double> tables_ms, with_tables_ms;  // of the tables; of them and the fused layer

  std::string to_string() const;
  Json to_json() const;
};

std::vector<LabelledProgram> moe_programs(int world_size, int num_sms, const MoeOptions& options);

// Calls `done` after each shape. What fails for a shape is in its result.
void compare_moe(GpuWorld& world, const MoeOptions& options,
                 const std::function<void(const MoeResult&)>& done);

}  // namespace stretto::bench
