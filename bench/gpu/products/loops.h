// The eight loops of examples/loops on one GPU: right at small ragged sizes, then timed at large
// ones beside what the machine could do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "examples/loops/loops.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct LoopResult {
  std::string name, error;
  double bytes = 0, flops = 0;  // of a launch
  std::vector<double> ms;

  // The longer of all tensors once through HBM and all products on the tensor core.
  double roofline_ms() const;
  double percent() const;  // of the roofline, median
  std::string to_string() const;
  Json to_json() const;
};

struct LoopsOptions {
  std::string only;
  std::int64_t size =
      0;  // of the cubes among the large shapes, which only are run; 0: all as given
  int samples = 30;
  bool profile = false;  // GpuTimeOptions::profile
  std::uint64_t seed = 0;
};

std::vector<LabelledProgram> loop_programs(int num_sms);

// Each loop, as soon as it is done. What fails is in its result.
void measure_loops(GpuWorld& world, const LoopsOptions& options,
                   const std::function<void(const LoopResult&)>& done);

}  // namespace stretto::bench
