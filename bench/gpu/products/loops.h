// The loops of examples/loops on one GPU: right at small ragged sizes, then timed at large ones
// beside a roofline: what our own copies and our own product of 8192^3 reach, not what the data
// sheet says. Loops may pass it, and two chained dots do: the product's rate is what its power
// limit leaves, and other work takes less power.
//
// The eight of all_loops() were there while the passes were written, and passes, tiles and options
// were changed to make them fast (44e66af, ad7eff3, 53303f6, a452006). The six of held_out_loops()
// were written afterwards, once, with the passes as they were.
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
  bool held_out = false;
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
  bool held_out = false;  // those instead of the eight
  std::int64_t size =
      0;  // of the cubes among the large shapes, which only are run; 0: all as given
  int samples = 30;      // 0: none is timed
  bool profile = false;  // GpuTimeOptions::profile
  std::uint64_t seed = 0;
};

std::vector<LabelledProgram> loop_programs(int num_sms, bool held_out);

// Each loop, as soon as it is done. What fails is in its result.
void measure_loops(GpuWorld& world, const LoopsOptions& options,
                   const std::function<void(const LoopResult&)>& done);

}  // namespace stretto::bench
