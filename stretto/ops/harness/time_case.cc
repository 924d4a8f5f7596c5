#include "stretto/ops/harness/time_case.h"

#include <algorithm>
#include <chrono>

#include "stretto/compiler.h"
#include "stretto/ops/harness/case_memory.h"
#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<double> slowest_of(const SymmetricBuffer& times, int num_ranks, std::size_t count) {
  std::vector<double> slowest(count, 0.0);
  for (int r = 0; r < num_ranks; ++r) {
    const auto* ns = times.on<std::int64_t>(r);
    for (std::size_t i = 0; i < count; ++i) {
      slowest[i] = std::max(slowest[i], 1e-6 * static_cast<double>(ns[i]));
    }
  }
  return slowest;
}

}  // namespace

std::vector<double> time_case(const OpCase& op_case, const TimeOptions& options) {
  Lowered lowered = lower(op_case.program);
  Proved compiled = prove(lowered, for_launches_of(lowered, op_case.extents));
  std::shared_ptr<World> world = options.world;
  if (world == nullptr) {
    world = std::make_shared<World>(WorldOptions{.size = op_case.program.world_size});
  }
  auto num_samples = static_cast<std::size_t>(options.samples);
  std::vector<double> slowest;  // by the lowest rank here
  world->run([&](Rank& rank) {
    SymmetricBuffer times = rank.allocate("times", DType::kI64, num_samples);
    CaseMemory memory(rank, op_case);
    Instance instance(rank, compiled);
    for (int i = 0; i < options.warmups; ++i) instance.launch(memory.args());
    rank.barrier();
    bool is_first = rank.index() == world->local_ranks().front();
    if (options.recorded && is_first) world->recorder().set_enabled(true);
    for (std::size_t i = 0; i < num_samples; ++i) {
      rank.barrier();
      Clock::time_point begin = Clock::now();
      instance.launch(memory.args());
      std::chrono::nanoseconds time = Clock::now() - begin;
      times.on<std::int64_t>(rank.index())[i] = time.count();
    }
    rank.barrier();
    if (is_first) slowest = slowest_of(times, rank.size(), num_samples);
    rank.barrier();
    rank.release(times);
  });
  if (options.recorded) options.recorded(world->recorder());
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
  if (t.contract.kind == ContractKind::kPartition) {
    std::int64_t span = eval(t.contract.hi, vars) - 1 - lo;
    auto parts = static_cast<std::int64_t>(count) - 1;
    for (std::int64_t i = 0; i <= parts; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<double>(lo + span * i / parts);
    }
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
