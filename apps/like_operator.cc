#include "apps/like_operator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/errors.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

constexpr std::uint64_t kLikeSeed = 1;

// Whether the reference of a product of this shape takes no longer than about a second.
bool is_checked(const OpShape& shape) {
  constexpr double kMostProducts = 1 << 28;
  auto size = [](std::int64_t s) { return static_cast<double>(s == 0 ? 512 : s); };
  return size(shape.m) * size(shape.n) * size(shape.k) <= kMostProducts;
}

bool is_callers(const Tensor& tensor) { return tensor.kind != TensorKind::kBuffer; }

// "float32 [512, 96]"
std::string layout(const Program& program, int tensor) {
  DType dtype = program.tensors[static_cast<std::size_t>(tensor)].dtype;
  return fmt::format("{} [{}]", name(dtype), fmt::join(bound_shape(program, tensor), ", "));
}

bool is_told(const Var& var) {
  return var.kind == VarKind::kExtent || var.kind == VarKind::kScalar;
}

// `to`, a value for each run-time size and scalar of `program`, takes those that have the same name
// in `from`.
void take_extents(const OpCase& from, const Program& program, std::vector<std::int64_t>& to) {
  std::size_t next = 0;
  for (const Var& var : program.vars) {
    if (!is_told(var)) continue;
    std::size_t theirs = 0;
    for (const Var& other : from.program.vars) {
      if (!is_told(other)) continue;
      if (other.name == var.name) to.at(next) = from.extents.at(theirs);
      ++theirs;
    }
    ++next;
  }
}

// "" where every tensor of the caller's that `a` has is alike in `b`.
std::string difference_of_tensors(const Program& a, const Program& b) {
  for (std::size_t t = 0; t < a.tensors.size(); ++t) {
    const Tensor& tensor = a.tensors[t];
    if (!is_callers(tensor)) continue;
    int other = b.find_tensor(tensor.name);
    std::string there = other < 0 ? "not there" : layout(b, other);
    if (other >= 0 && b.tensors[static_cast<std::size_t>(other)].kind != tensor.kind) {
      there += " of another kind";
    }
    std::string here = layout(a, static_cast<int>(t));
    if (here == there) continue;
    return fmt::format("'{}' is {} in '{}' and {} in '{}'", tensor.name, here, a.name, there,
                       b.name);
  }
  return "";
}

// `program` with the inputs that the operator's case at `shape` has, and what it expects of them.
OpCase case_like(const OperatorInfo& op, const OpShape& shape, const Program& program) {
  OpCase theirs = make_case(op, shape, kLikeSeed), ours = random_case(program, kLikeSeed);
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    if (!is_callers(program.tensors[t])) continue;
    auto from = static_cast<std::size_t>(theirs.program.find_tensor(program.tensors[t].name));
    for (std::size_t r = 0; r < ours.inputs.size(); ++r) {
      ours.inputs[r][t] = theirs.inputs[r][from];
      ours.expected[r][t] = theirs.expected[r][from];
    }
  }
  take_extents(theirs, program, ours.extents);
  ours.exact = theirs.exact;
  ours.unchecked = theirs.unchecked;
  ours.tolerance = theirs.tolerance;
  ours.scale = theirs.scale;
  ours.scales = theirs.scales;
  return ours;
}

}  // namespace

std::string difference_from(const OperatorInfo& op, const OpShape& shape, const Program& program) {
  Program theirs = op.program(shape);
  std::string difference = difference_of_tensors(theirs, program);
  return difference.empty() ? difference_of_tensors(program, theirs) : difference;
}

void check_like(const OperatorInfo& op, const OpShape& shape, const Program& program) {
  std::string difference = difference_from(op, shape, program);
  if (!difference.empty()) throw UserError(fmt::format("--like {}: {}", op.name, difference));
}

bool checked_on_cpu(const OperatorInfo& op, const OpShape& shape, const Program& program,
                    const std::shared_ptr<World>& world) {
  check_like(op, shape, program);
  if (!is_checked(shape)) return false;
  std::string difference =
      run_case(case_like(op, shape, program), {.seed = kLikeSeed, .waiver = {}, .world = world});
  if (!difference.empty()) throw UserError(difference);
  return true;
}

bool checked_on_gpus(const OperatorInfo& op, const OpShape& shape, const Program& program,
                     GpuWorld& world) {
  check_like(op, shape, program);
  if (!is_checked(shape)) return false;
  std::string difference =
      run_gpu_case(world, case_like(op, shape, program), {.seed = kLikeSeed, .waiver = {}});
  if (!difference.empty()) throw UserError(difference);
  return true;
}

}  // namespace stretto
