#include "stretto/ir/program.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

template <typename T>
int find_by_name(const std::vector<T>& items, const std::string& wanted) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].name == wanted) return static_cast<int>(i);
  }
  return -1;
}

bool is_launch_argument(const Var& v) {
  return v.kind == VarKind::kExtent || v.kind == VarKind::kScalar;
}

}  // namespace

int Program::find_tensor(const std::string& tensor_name) const {
  return find_by_name(tensors, tensor_name);
}
int Program::find_signal(const std::string& signal_name) const {
  return find_by_name(signals, signal_name);
}
int Program::find_var(const std::string& var_name) const { return find_by_name(vars, var_name); }

std::vector<std::int64_t> initial_vars(const Program& program, int rank,
                                       const std::vector<std::int64_t>& extents) {
  std::vector<std::int64_t> values(program.vars.size(), 0);
  values[0] = rank;
  std::size_t next = 0;
  for (std::size_t i = 1; i < program.vars.size(); ++i) {
    const Var& v = program.vars[i];
    if (!is_launch_argument(v)) continue;
    if (next == extents.size()) {
      throw UserError(fmt::format("{}: no value for extent '{}'", program.name, v.name));
    }
    if (extents[next] < 0 || extents[next] > v.bound) {
      throw UserError(fmt::format("{}: extent '{}' is {}, need 0..{}", program.name, v.name,
                                  extents[next], v.bound));
    }
    values[i] = extents[next++];
  }
  if (next != extents.size()) {
    throw UserError(
        fmt::format("{}: {} extents given, {} declared", program.name, extents.size(), next));
  }
  return values;
}

const Var* float_scalar(const Program& program, const Expr& expr) {
  if (!expr.has_value() || expr.node().op != ExprOp::kVar) return nullptr;
  auto idx = static_cast<std::size_t>(expr.node().value);
  return idx < program.vars.size() && program.vars[idx].is_float ? &program.vars[idx] : nullptr;
}

std::vector<std::int64_t> extent_bounds(const Program& program) {
  std::vector<std::int64_t> bounds;
  for (const Var& v : program.vars) {
    if (is_launch_argument(v)) bounds.push_back(v.is_float ? 0 : v.bound);
  }
  return bounds;
}

std::vector<std::int64_t> bound_shape(const Program& program, int tensor_idx) {
  std::vector<std::int64_t> vars = initial_vars(program, 0, extent_bounds(program));
  std::vector<std::int64_t> shape;
  for (const Expr& dim : program.tensors[static_cast<std::size_t>(tensor_idx)].shape) {
    shape.push_back(eval(dim, vars));
  }
  return shape;
}

std::int64_t num_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}

std::size_t storage_bytes(const Program& program, int tensor_idx) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(tensor_idx)];
  std::size_t payload = static_cast<std::size_t>(num_elements(bound_shape(program, tensor_idx))) *
                        size_bytes(t.dtype);
  if (t.packet) payload = (payload + 3) / 4 * 8;
  return payload * static_cast<std::size_t>(t.num_slots);
}

std::size_t bytes_at(DType dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> bounds) {
  std::int64_t last = 0, stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] <= 0) return 0;
    last += (shape[d] - 1) * stride;
    stride *= bounds[d];
  }
  return static_cast<std::size_t>(last + 1) * size_bytes(dtype);
}

bool is_given(const Program& program, int tensor_idx, int rank) {
  const Expr& on = program.tensors[static_cast<std::size_t>(tensor_idx)].given_on;
  const std::int64_t vars[] = {rank};
  return !on.has_value() || eval(on, vars) != 0;
}

std::vector<int> rings_of(const Role& role) {
  std::vector<int> rings(role.pipes.size(), -1);
  for (std::size_t i = 0; i < rings.size(); ++i) {
    int home = role.pipes[i].shares;
    if (home >= 0) rings[i] = rings[static_cast<std::size_t>(home)] = home;
  }
  return rings;
}

}  // namespace stretto
