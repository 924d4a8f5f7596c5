// Fused operators from one row to 32768: what the chooser picks against cuBLASLt and the faster of
// our and NCCL's collective. The unfused path is among the candidates, and wins where it is faster.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

struct SweepOptions {
  std::string only;  // shapes whose text contains this
  int samples = 40;  // of fast operators; slow ones get fewer
  std::uint64_t seed = 0;
};

struct SweepResult {
  // Who is the fastest of all candidates, medians of a few calls.
  enum class Winner : std::uint8_t { kFused, kNccl, kOwn };

  OverlapShape shape;
  std::string error;   // empty where all was measured
  bool graph = false;  // in captured graphs
  std::string config;  // the fastest fused one
  Winner winner = Winner::kFused;
  // Of the slowest rank, sample by sample: the fastest config, and cuBLASLt with either collective.
  std::vector<double> fused_ms, nccl_ms, own_ms;
  std::vector<std::string> dropped;  // configs that did not run, and why

  // fused / the faster sequence.
  MedianInterval fused_over_sequence() const;
  std::string to_string() const;  // a line
  Json to_json() const;           // every sample
};

std::vector<LabelledProgram> sweep_programs(int world_size, int num_sms,
                                            const SweepOptions& options);

// AG+GEMM, GEMM+RS and GEMM+AR of a layer of Llama-3-8B and of 70B at eight m. Calls `done` after
// each shape. What fails for a shape is in its result.
void sweep_rows(GpuWorld& world, const SweepOptions& options,
                const std::function<void(const SweepResult&)>& done);

}  // namespace stretto::bench
