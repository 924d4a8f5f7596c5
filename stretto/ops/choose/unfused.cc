#include "stretto/ops/choose/unfused.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "stretto/base/errors.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/runtime/cuda/cublaslt.h"
#include "stretto/runtime/cuda/nccl.h"

namespace stretto {
namespace {

constexpr int kLibraryRounds = 4;

// What steps' programs call what they read and write; a step that has none of them has memory of
// its own.
constexpr const char* kRead[] = {"a", "in", "y"};
constexpr const char* kWeights[] = {"b"};
constexpr const char* kWritten[] = {"c", "out"};

// What a step reads and writes on one rank: of libraries, in elements; of programs, in bytes.
struct StepSizes {
  std::int64_t in = 0, weights = 0, out = 0;
};

StepSizes sizes_of(const OpCandidates::Step& step) {
  const OpShape& s = step.shape;
  std::int64_t all = s.m * s.n;
  if (step.op == "gemm") return {s.m * s.k, s.n * s.k, all};
  if (step.op == "all_gather") return {all / s.world_size, 0, all};
  if (step.op == "reduce_scatter") return {all, 0, all / s.world_size};
  return {all, 0, all};
}

// As the program has them: it may be made for more rows than its step, and a rank's share of rows
// that do not divide is rounded up.
StepSizes bytes_of(const Program& program) {
  auto largest = [&](const auto& names) {
    std::int64_t bytes = 0;
    for (const char* name : names) {
      int at = program.find_tensor(name);
      if (at < 0) continue;
      bytes = std::max(bytes, static_cast<std::int64_t>(storage_bytes(program, at)));
    }
    return bytes;
  };
  return {largest(kRead), largest(kWeights), largest(kWritten)};
}

StepSizes bytes_of(const OpCandidates::Step& step) {
  auto element = static_cast<std::int64_t>(size_bytes(step.shape.dtype));
  StepSizes sizes = sizes_of(step);
  return {sizes.in * element, sizes.weights * element, sizes.out * element};
}

bool is_all_reduce(const std::string& op) {
  return op.starts_with("all_reduce_") && op != "all_reduce_add_rms_norm";
}

}  // namespace

std::vector<OpCandidates::Step> unfused_steps(const std::string& op, const OpShape& shape,
                                              const OpCandidates& candidates) {
  if (!candidates.sequence.empty()) return candidates.sequence;
  return {{op, shape}};
}

bool vendor_has(const std::vector<OpCandidates::Step>& steps) {
  for (const OpCandidates::Step& step : steps) {
    const OpShape& s = step.shape;
    bool known = step.op == "gemm" || step.op == "all_gather" || step.op == "reduce_scatter" ||
                 is_all_reduce(step.op);
    bool dtype = s.dtype == DType::kBF16 || s.dtype == DType::kF16 || s.dtype == DType::kF32;
    if (!known || !dtype || s.m % s.world_size != 0) return false;
  }
  return true;
}

struct UnfusedOperator::State {
  GpuWorld* world = nullptr;
  std::vector<OpCandidates::Step> steps;
  // [set][step]; the last entry of `data` is the result.
  std::vector<std::vector<SymmetricGpuMemory>> data, weights;
  std::optional<cuda::NcclRanks> nccl;
  std::vector<std::vector<cuda::CublasLtGemm>> products;  // [step][local rank], empty for others
  std::vector<GpuProgram> programs;                       // [step], ours

  const SymmetricGpuMemory& at(const std::vector<std::vector<SymmetricGpuMemory>>& all, int set,
                               std::size_t step) const {
    return all[static_cast<std::size_t>(set)][step];
  }

  cuda::CublasLtOperands operands(int set, std::size_t step, int rank) const {
    auto r = static_cast<std::size_t>(rank);
    return {.a = at(data, set, step).on[r].address(),
            .b = at(weights, set, step).on[r].address(),
            .c = at(data, set, step + 1).on[r].address()};
  }

  // `of_steps`: what each step reads and writes, in bytes.
  void allocate(int num_sets, const std::vector<StepSizes>& of_steps, RandomFill& random) {
    auto some = [&](std::int64_t bytes) {
      constexpr std::int64_t kLeast = 8;  // one element of any type
      return random.allocate(static_cast<std::size_t>(std::max(bytes, kLeast)));
    };
    for (int set = 0; set < num_sets; ++set) {
      std::vector<SymmetricGpuMemory>&chain = data.emplace_back(),
      &factors = weights.emplace_back();
      for (std::size_t i = 0; i < of_steps.size(); ++i) {
        if (chain.empty()) chain.push_back(some(of_steps[i].in));
        factors.push_back(some(of_steps[i].weights));
        std::int64_t read = i + 1 < of_steps.size() ? of_steps[i + 1].in : 0;
        chain.push_back(some(std::max(of_steps[i].out, read)));
      }
    }
    world->synchronize();
  }

  void take_libraries(int num_sets, RandomFill& random) {
    std::vector<StepSizes> sizes;
    for (const OpCandidates::Step& step : steps) sizes.push_back(bytes_of(step));
    allocate(num_sets, sizes, random);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      std::vector<cuda::CublasLtGemm>& of_step = products.emplace_back();
      const OpShape& s = steps[i].shape;
      if (steps[i].op != "gemm") {
        if (!nccl && world->size() > 1) take_nccl();
        continue;
      }
      for (int r : world->local_ranks()) {
        cuda::CublasLtGemm& library =
            of_step.emplace_back(world->device(r), cuda::CublasLtGemmDesc{s.m, s.n, s.k, s.dtype});
        std::vector<cuda::CublasLtOperands> all;
        for (int set = 0; set < num_sets; ++set) all.push_back(operands(set, i, r));
        library.choose(world->device(r), world->stream(r), all, kLibraryRounds);
      }
    }
  }

  void take_nccl() {
    const std::vector<int>& local = world->local_ranks();
    if (static_cast<int>(local.size()) == world->size()) {
      nccl.emplace(local);  // rank i is GPU i
      return;
    }
    cuda::ncclUniqueId id{};
    if (local.front() == 0) id = cuda::nccl_unique_id();
    std::vector<std::byte> of_first = world->exchange(std::as_bytes(std::span(&id, 1))).front();
    std::memcpy(&id, of_first.data(), sizeof(id));
    nccl.emplace(world->device(local.front()), local.front(), world->size(), id);
  }

  void run_library(int set, std::size_t step) const {
    if (!products[step].empty()) {
      for (int r : world->local_ranks()) {
        products[step][world->local_index(r)].run(world->stream(r), operands(set, step, r));
      }
      return;
    }
    if (!nccl) return;  // a collective of one rank
    std::vector<cuda::NcclPart> parts;
    for (int r : world->local_ranks()) {
      auto i = static_cast<std::size_t>(r);
      parts.push_back({&world->stream(r), at(data, set, step).on[i].address(),
                       at(data, set, step + 1).on[i].address()});
    }
    StepSizes sizes = sizes_of(steps[step]);
    DType dtype = steps[step].shape.dtype;
    if (steps[step].op == "all_gather") {
      nccl->all_gather(parts, static_cast<std::size_t>(sizes.in), dtype);
    } else if (steps[step].op == "reduce_scatter") {
      nccl->reduce_scatter(parts, static_cast<std::size_t>(sizes.out), dtype);
    } else {
      nccl->all_reduce(parts, static_cast<std::size_t>(sizes.out), dtype);
    }
  }

  void take_programs(int num_sets, RandomFill& random, const predict::Machine& machine) {
    std::vector<Program> chosen =
        programs_of({.is_sequence = true}, {.sequence = steps}, {.machine = machine});
    std::vector<StepSizes> sizes;
    for (const Program& program : chosen) sizes.push_back(bytes_of(program));
    allocate(num_sets, sizes, random);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      GpuProgram& program = programs.emplace_back(*world, chosen[i], num_sets, random);
      for (int set = 0; set < program.num_sets(); ++set) {
        for (const char* from : kRead) program.bind(from, set, at(data, set, i));
        if (steps[i].op == "gemm") program.bind("b", set, at(weights, set, i));
        for (const char* to : kWritten) program.bind(to, set, at(data, set, i + 1));
      }
    }
  }
};

UnfusedOperator::UnfusedOperator(GpuWorld& world, const std::vector<OpCandidates::Step>& steps,
                                 int num_sets, RandomFill& random, const predict::Machine* machine)
    : state_(std::make_unique<State>()) {
  state_->world = &world;
  state_->steps = steps;
  // Programs are built for rows in eights and read as many.
  for (OpCandidates::Step& step : state_->steps)
    step.shape.m = ceil_div(step.shape.m, std::int64_t{8}) * 8;
  machine == nullptr ? state_->take_libraries(num_sets, random)
                     : state_->take_programs(num_sets, random, *machine);
  std::vector<std::string> names;
  for (const OpCandidates::Step& step : steps) {
    names.push_back(machine != nullptr  ? "our " + step.op
                    : step.op == "gemm" ? cuda::cublaslt_description()
                                        : cuda::nccl_description());
  }
  description_ = fmt::format("{}", fmt::join(names, ", then "));
}

UnfusedOperator::~UnfusedOperator() = default;

RanksCall UnfusedOperator::call() const {
  const State* state = state_.get();
  return [state](int set) {
    for (std::size_t i = 0; i < state->steps.size(); ++i) {
      state->programs.empty() ? state->run_library(set, i) : state->programs[i].call()(set);
    }
  };
}

}  // namespace stretto
