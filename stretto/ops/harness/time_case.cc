#include "stretto/ops/harness/time_case.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "stretto/compiler.h"
#include "stretto/ops/harness/case_memory.h"
#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::vector<double> time_case(const OpCase& op_case, const TimeOptions& options) {
  CompiledProgram compiled = compile(op_case.program, {.require_proof = options.require_proof});
  World world({.size = op_case.program.world_size});
  std::vector<double> slowest(static_cast<std::size_t>(options.samples), 0.0);
  std::mutex mutex;
  world.run([&](Rank& rank) {
    CaseMemory memory(rank, op_case);
    Instance instance(rank, compiled.schedule, compiled.quotas);
    for (int i = 0; i < options.warmups; ++i) instance.launch(memory.args());
    rank.barrier();
    if (options.recorded && rank.index() == 0) world.recorder().set_enabled(true);
    for (double& slowest_ms : slowest) {
      rank.barrier();
      Clock::time_point begin = Clock::now();
      instance.launch(memory.args());
      std::chrono::duration<double, std::milli> ms = Clock::now() - begin;
      std::lock_guard lock(mutex);
      slowest_ms = std::max(slowest_ms, ms.count());
    }
  });
  if (options.recorded) options.recorded(world.recorder());
  return slowest;
}

Values table_values(const Program& program, std::size_t tensor_idx) {
  const Tensor& t = program.tensors[tensor_idx];
  std::vector<std::int64_t> vars = initial_vars(program, 0, extent_bounds(program));
  auto count =
      static_cast<std::size_t>(num_elements(bound_shape(program, static_cast<int>(tensor_idx))));
  std::int64_t lo = t.contract.lo.has_value() ? eval(t.contract.lo, vars) : 0;
  Values values(count, static_cast<double>(lo));
  if (t.contract.kind == ContractKind::kPermutation) {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<double>(lo) + static_cast<double>(i);
  }
  return values;
}

OpCase random_case(const Program& program, std::uint64_t seed) {
  OpCase c{.program = program, .extents = extent_bounds(program), .config = program.name};
  c.inputs = no_values(program);
  c.expected = no_values(program);
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      const Tensor& tensor = program.tensors[t];
      if (tensor.kind == TensorKind::kBuffer || tensor.kind == TensorKind::kOutput) continue;
      if (!is_float(tensor.dtype)) {
        c.inputs[r][t] = table_values(program, t);
        continue;
      }
      auto count =
          static_cast<std::size_t>(num_elements(bound_shape(program, static_cast<int>(t))));
      c.inputs[r][t] = random_values(count, tensor.dtype, seed + 64 * t + r);
    }
  }
  return c;
}

}  // namespace stretto
