// Schedule IR to one CUDA kernel for all SM roles of a rank, and the plan for launching it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/gpu_target.h"
#include "stretto/ir/program.h"

namespace stretto {

struct GeneratedKernel {
  std::string source;  // readable: device headers are #included
  // Self-contained: what is compiled. A #line before what belongs to a place in the tile program:
  // profilers show its instructions there.
  std::string expanded;
  LaunchPlan launch;
};

// Pauses before waits and notifies, drawn from the seed, the rank, the launch, the place and the
// thread: what takes turns then comes in many orders, and some ranks are late
// (device/sm90/delay.h).
struct KernelDelays {
  std::uint64_t seed = 0;
  std::uint32_t most_cycles = 4096;  // one pause on a rank that is not late
};

struct KernelOptions {
  GpuTarget target = {};
  // Inputs, by name, that nothing writes which a launch that starts early may overlap with: they
  // are loaded before the launch before has ended. UserError for what is not an input.
  std::set<std::string> constants;
  // False: waits have no deadline and look at no abort word, so a rank that does not come hangs the
  // others for good. For measuring what that costs, and for nothing else.
  bool watchdog = true;
  std::optional<KernelDelays> delays = {};  // for tests
  bool record = false;  // timestamps of tiles, waits and notifies (device/sm90/event.h)
};

// `schedule` is at schedule level and verified. UserError naming the line for a program that the
// lowering does not cover.
GeneratedKernel generate_kernel(const Program& schedule, const KernelOptions& options = {});

}  // namespace stretto
