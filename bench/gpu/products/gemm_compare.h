// Our product against cuBLASLt's on one GPU: the best of a few configs of ours against the best of
// the library's own guesses, call by call in turn.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/products/gemm_shapes.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

struct GemmOptions {
  DType dtype = DType::kBF16;
  std::vector<GemmConfig> configs;
  int samples = 60;
  bool graph = false;  // measured in captured graphs too
  bool profile =
      false;  // the first config once between marks for ncu, beside the library's product
  std::uint64_t seed = 0;
};

struct ConfigTime {
  GemmConfig config;
  double ms = 0;      // median of a few calls; 0: not timed
  std::string error;  // why it is out: it does not compile, or its result is wrong
};

struct PairedSamples {
  std::vector<double> ours_ms, theirs_ms;
};

struct GemmResult {
  GemmShape shape;
  std::string error;  // empty where both were measured
  std::vector<ConfigTime> configs;
  GemmConfig chosen;
  int algorithm = -1, num_algorithms = 0;  // of the library
  PairedSamples eager;
  std::optional<PairedSamples> graph;

  double tflops(double ms) const;
  std::string to_string() const;  // a line of the table; table_header() stands above
  Json to_json() const;           // every sample
};
std::string table_header();

// Shapes of one n and k should follow each other: a kernel is made once for the largest m of them.
// Calls `done` after each shape. What fails for a shape is in its result.
std::vector<GemmResult> compare_gemms(GpuWorld& world, const std::vector<GemmShape>& shapes,
                                      const GemmOptions& options,
                                      const std::function<void(const GemmResult&)>& done);

// The programs that compare_gemms would run.
std::vector<Program> gemm_programs(const std::vector<GemmShape>& shapes,
                                   const GemmOptions& options);

// Geometric mean and least of theirs / ours over the shapes that were measured.
std::string summary(const std::vector<GemmResult>& results);

}  // namespace stretto::bench
