// A launch that writes an operator's inputs late, right before the operator's own launch in the
// stream: what a launch that starts early (Args::starts_early) must not look at too soon.
// Comes before gpu_case.h, which has every case's launch follow such a one.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_world.h"
#include "stretto/ir/program.h"
#include "stretto/launch/executable.h"

namespace stretto {

// The inputs that users of the operators declare constant (codegen/kernel.h: KernelOptions), by the
// names that operators give them: weights, the second factors of products among them, their scales
// and biases.
std::set<std::string> weight_inputs(const Program& program);

// Indices of the tensors that are written late: inputs that are not constant, and state.
std::vector<std::size_t> late_tensors(const Program& program,
                                      const std::set<std::string>& constants);

// The program of the launch before: for each tensor NAME of late_tensors an input from_NAME and an
// output to_NAME, both as one row of its elements at their bound. One SM idles for tens of
// microseconds before it copies them, so that whatever the next launch reads before it has waited
// is not there.
Program late_inputs(const Program& program, const std::set<std::string>& constants);

// That program on the GPUs of a world.
class LateInputs {
 public:
  // `program` at tile level. Errors of prove() and load().
  LateInputs(GpuWorld& world, const Program& program, const std::set<std::string>& constants);

  // Of a case whose tensors lie at these addresses: what they hold now, each launch() writes again.
  // Collective.
  Args arguments(const Args& tensors);
  // Enqueues on `rank`'s stream: late tensors are overwritten with NaN and -1 (all bits set), then
  // the launch that writes them.
  void launch(const Args& arguments, int rank, const cuda::Stream& stream);

 private:
  struct Late {
    std::size_t tensor;  // of the case
    std::size_t bytes;
    int from, to;  // of the program
  };

  const GpuWorld& world_;
  Program program_;
  std::vector<Late> late_;
  std::unique_ptr<Executable> executable_;
  std::vector<SymmetricGpuMemory> memory_;  // of all arguments
};

}  // namespace stretto
