// Products of fp8 factors on one GPU, with scales of rows and of blocks: the best of a few configs
// of ours beside cuBLASLt's, call by call in turn, where the library has such products.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/products/gemm_compare.h"
#include "bench/gpu/products/gemm_shapes.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct Fp8Shape {
  GemmShape shape;
  Scaling scaling = Scaling::kRowWise;
};
// 8192^3 and a projection with scales of rows, a projection with scales of blocks.
std::vector<Fp8Shape> fp8_shapes();
GemmDesc fp8_desc(const Fp8Shape& shape);  // c in bfloat16

struct Fp8Options {
  std::string only;                 // shapes whose "LABEL SCALING" contains this
  std::vector<GemmConfig> configs;  // instead of those made for the scaling
  int num_sms = 0;
  int samples = 60;
  bool profile = false;  // GpuTimeOptions::profile, of the first config that is right
  std::uint64_t seed = 0;
};

struct Fp8Result {
  Fp8Shape shape;
  std::string error;
  std::string library_error;  // why theirs_ms is empty
  std::vector<ConfigTime> configs;
  GemmConfig chosen;
  PairedSamples samples;

  double tflops(double ms) const;
  std::string to_string() const;  // a line, and one for every config
  Json to_json() const;
};

// A result of ours is compared with sums in double at a sample of its elements. What fails for a
// shape is in its result.
void compare_fp8(GpuWorld& world, const Fp8Options& options,
                 const std::function<void(const Fp8Result&)>& done);
std::vector<LabelledProgram> fp8_programs(const Fp8Options& options);

}  // namespace stretto::bench
