#include "stretto/ops/measure/gpu_program.h"

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/ops/measure/cpu_time.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/values.h"

namespace stretto {
namespace {

constexpr int kMostSets = 9;

bool is_callers(const Tensor& tensor) { return tensor.kind != TensorKind::kBuffer; }

}  // namespace

std::size_t bytes_of_tensors(const Program& program) {
  std::size_t bytes = 0;
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    if (is_callers(program.tensors[t])) bytes += storage_bytes(program, static_cast<int>(t));
  }
  return bytes;
}

int num_launch_sets(const Program& program, const GpuWorld& world) {
  auto l2 =
      static_cast<std::size_t>(world.device(world.local_ranks().front()).properties().l2_bytes);
  return std::min(num_buffer_sets(bytes_of_tensors(program), l2), kMostSets);
}

GpuProgram::GpuProgram(GpuWorld& world, const Program& program, int num_sets, RandomFill& random,
                       const GpuProgramOptions& options)
    : program_(program), extents_(extent_bounds(program)) {
  ProvedForGpu made = prove_for_gpu(
      lower(program),
      {.bounds_only = true, .gpu = world.target(), .waiver = options.waiver},
      {.target = world.target(), .record = options.record});
  executable_ = load(made.program, world, std::move(made.code));
  std::size_t tensors = program.tensors.size();
  for (int set = 0; set < num_sets; ++set) {
    std::vector<SymmetricGpuMemory>& memory = memory_.emplace_back(tensors);
    Args& args = args_.emplace_back();
    args.tensors.resize(tensors);
    for (std::size_t t = 0; t < tensors; ++t) {
      if (!is_callers(program.tensors[t])) continue;
      memory[t] = fill(world, static_cast<int>(t), random);
      args.tensors[t].on = memory[t].addresses();
    }
  }
  world.meet();
}

SymmetricGpuMemory GpuProgram::fill(const GpuWorld& world, int tensor, RandomFill& random) const {
  const Tensor& t = program_.tensors[static_cast<std::size_t>(tensor)];
  std::size_t bytes = storage_bytes(program_, tensor);
  if (t.kind == TensorKind::kOutput) return allocate_poisoned(world, bytes);
  if (is_float(t.dtype)) return random.allocate(bytes);
  SymmetricGpuMemory memory = world.allocate(bytes);
  std::vector<std::byte> host(bytes);
  Values values = table_values(program_, static_cast<std::size_t>(tensor));
  std::size_t step = size_bytes(t.dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(t.dtype, host.data() + i * step, values[i]);
  }
  for (int r : world.local_ranks()) {
    const cuda::DeviceMemory& on = memory.on[static_cast<std::size_t>(r)];
    world.stream(r).upload(on.address(), host.data(), bytes);
    world.stream(r).synchronize();
  }
  return memory;
}

void GpuProgram::bind(const std::string& name, int set, const SymmetricGpuMemory& memory) {
  int tensor = program_.find_tensor(name);
  if (tensor < 0) return;
  std::size_t needed = storage_bytes(program_, tensor);
  for (const cuda::DeviceMemory& on : memory.on) {
    STRETTO_CHECK(on.bytes() >= needed, "what is bound holds the tensor of the most rows");
  }
  auto s = static_cast<std::size_t>(set), t = static_cast<std::size_t>(tensor);
  memory_[s][t] = {};
  args_[s].tensors[t].on = memory.addresses();
}

RanksCall GpuProgram::call() const {
  return [this](int set) {
    executable_->prepare(args_[static_cast<std::size_t>(set)])->run(extents_);
  };
}

std::vector<std::vector<double>> time_programs(GpuWorld& world,
                                               const std::vector<Program>& programs,
                                               RandomFill& random, const ProgramTiming& timing) {
  int num_sets = 1;
  for (const Program& p : programs) num_sets = std::max(num_sets, num_launch_sets(p, world));
  std::vector<GpuProgram> ready;
  ready.reserve(programs.size());  // calls refer to them
  std::vector<RanksCall> calls;
  for (const Program& p : programs) {
    calls.push_back(ready.emplace_back(world, p, num_sets, random).call());
  }
  try {
    auto ms = time_ranks(world, calls,
                         {.num_sets = num_sets,
                          .warmup_ms = timing.warmup_ms,
                          .samples = timing.samples,
                          .calls_per_graph = timing.calls_per_graph});
    for (const GpuProgram& p : ready) p.executable().wait();
    return ms;
  } catch (const Fault&) {
    world.synchronize();
    world.clear_fault();
    throw;
  }
}

std::vector<double> time_program(GpuWorld& world, const Program& program, RandomFill& random,
                                 const ProgramTiming& timing) {
  return std::move(time_programs(world, {program}, random, timing).front());
}

}  // namespace stretto
