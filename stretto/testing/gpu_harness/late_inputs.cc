#include "stretto/testing/gpu_harness/late_inputs.h"

#include <utility>

#include "stretto/compiler.h"
#include "stretto/lang/program_builder.h"
#include "stretto/testing/harness/case_data.h"

namespace stretto {
namespace {

constexpr std::int64_t kIdleSteps = 256, kIdleCols = 32, kCopied = 4096;

std::string from_name(const Tensor& tensor) { return "from_" + tensor.name; }
std::string to_name(const Tensor& tensor) { return "to_" + tensor.name; }

}  // namespace

std::set<std::string> weight_inputs(const Program& program) {
  static const std::set<std::string> names = {
      "b",          "b_gate", "b_up", "bias",   "bias_gate", "bias_up", "scale_b", "scale_b_gate",
      "scale_b_up", "weight", "row",  "q_norm", "k_norm",    "table",   "gate"};
  std::set<std::string> out;
  for (const Tensor& tensor : program.tensors) {
    if (tensor.kind == TensorKind::kInput && names.contains(tensor.name)) out.insert(tensor.name);
  }
  return out;
}

std::vector<std::size_t> late_tensors(const Program& program,
                                      const std::set<std::string>& constants) {
  std::vector<std::size_t> out;
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    bool given = tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kState;
    if (given && !constants.contains(tensor.name)) out.push_back(t);
  }
  return out;
}

Program late_inputs(const Program& program, const std::set<std::string>& constants) {
  struct Copied {
    TensorRef from, to;  // [1, count]
    std::int64_t count;
  };
  ProgramBuilder p("late_inputs", program.world_size);
  auto idle = p.input("idle", DType::kF32, {kIdleSteps, kIdleCols});
  auto spent = p.output("spent", DType::kF32, {1, kIdleCols});
  std::vector<Copied> copies;
  for (std::size_t t : late_tensors(program, constants)) {
    const Tensor& tensor = program.tensors[t];
    std::int64_t count = num_elements(bound_shape(program, static_cast<int>(t)));
    copies.push_back({p.input(from_name(tensor), tensor.dtype, {1, count}),
                      p.output(to_name(tensor), tensor.dtype, {1, count}), count});
  }
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    // Each step waits for its load from memory.
    Value sum = p.zeros(DType::kF32, 1, kIdleCols);
    p.loop(kIdleSteps, [&](const Index& i) {
      sum = sum * 0.5 + p.load(idle.tile({i, 0}, 1, kIdleCols));
    });
    p.store(spent.tile({0, 0}, 1, kIdleCols), sum);
    p.worker_fence();
    for (const Copied& c : copies) {
      p.loop(ceil_div(c.count, kCopied), [&](const Index& i) {
        p.rank_copy_data(c.from.tile({0, i * kCopied}, 1, kCopied),
                         c.to.tile({0, i * kCopied}, 1, kCopied));
      });
    }
  });
  return p.finish();
}

namespace {

std::unique_ptr<Executable> loaded(GpuWorld& world, const Program& program) {
  ProvedForGpu made =
      prove_for_gpu(lower(program), {.gpu = world.target()}, {.target = world.target()});
  return load(made.program, world, std::move(made.code));
}

}  // namespace

LateInputs::LateInputs(GpuWorld& world, const Program& program,
                       const std::set<std::string>& constants)
    : world_(world),
      program_(late_inputs(program, constants)),
      executable_(loaded(world, program_)) {
  for (std::size_t t : late_tensors(program, constants)) {
    late_.push_back({.tensor = t,
                     .bytes = storage_bytes(program, static_cast<int>(t)),
                     .from = program_.find_tensor(from_name(program.tensors[t])),
                     .to = program_.find_tensor(to_name(program.tensors[t]))});
  }
}

Args LateInputs::arguments(const Args& tensors) {
  Args args;
  args.tensors.resize(program_.tensors.size());
  auto allocate = [&](int tensor) {
    std::size_t bytes = storage_bytes(program_, tensor);
    memory_.push_back(world_.allocate(bytes));
    args.tensors[static_cast<std::size_t>(tensor)].on = memory_.back().addresses();
    for (int rank : world_.local_ranks()) {
      auto at = memory_.back().on[static_cast<std::size_t>(rank)].address();
      world_.stream(rank).fill_bytes(at, 0, bytes);
    }
  };
  allocate(program_.find_tensor("idle"));
  allocate(program_.find_tensor("spent"));
  for (const Late& late : late_) {
    args.tensors[static_cast<std::size_t>(late.to)] = tensors.tensors[late.tensor];
    allocate(late.from);
    for (int rank : world_.local_ranks()) {
      auto r = static_cast<std::size_t>(rank);
      world_.stream(rank).copy(args.tensors[static_cast<std::size_t>(late.from)].on[r],
                               tensors.tensors[late.tensor].on[r], late.bytes);
    }
  }
  world_.meet();
  return args;
}

void LateInputs::launch(const Args& args, int rank, const cuda::Stream& stream) {
  for (const Late& late : late_) {
    CUdeviceptr to =
        args.tensors[static_cast<std::size_t>(late.to)].on[static_cast<std::size_t>(rank)];
    stream.fill_bytes(to, kPoison, late.bytes);
  }
  executable_->prepare(args)->run({}, rank, stream);
}

}  // namespace stretto
