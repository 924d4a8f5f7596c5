#include "stretto/ops/harness/case_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ir/block_ops.h"

namespace stretto {
std::vector<std::byte> initial_bytes(const OpCase& c, int rank, std::size_t t) {
  const Tensor& tensor = c.program.tensors[t];
  std::vector<std::byte> bytes(storage_bytes(c.program, static_cast<int>(t)));
  if (tensor.kind != TensorKind::kInput && tensor.kind != TensorKind::kState) return bytes;
  Values values = c.inputs[static_cast<std::size_t>(rank)][t];
  std::size_t step = size_bytes(tensor.dtype);
  if (values.empty() && is_float(tensor.dtype)) {
    values =
        random_values(bytes.size() / step, tensor.dtype, 1000 * t + static_cast<std::size_t>(rank));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(tensor.dtype, bytes.data() + i * step, values[i]);
  }
  return bytes;
}

std::string compare_case(const OpCase& c, int rank, int launch_idx, const TensorBytes& bytes) {
  const auto& expected = c.expected[static_cast<std::size_t>(rank)];
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const Tensor& tensor = c.program.tensors[t];
    if (expected[t].empty() || (tensor.kind == TensorKind::kState && launch_idx > 0)) continue;
    std::span<const std::byte> left = bytes(t);
    for (std::size_t i = 0; i < expected[t].size(); ++i) {
      double want = expected[t][i];
      if (std::isnan(want)) continue;
      double got = load_element(tensor.dtype, left.data() + i * size_bytes(tensor.dtype));
      double allowed = c.tolerance * (std::fabs(want) + c.scale);
      if (!(std::fabs(got - want) <= allowed)) {
        return fmt::format("{}[{}] is {}, expected {} (allowed difference {:.3g})", tensor.name, i,
                           got, want, allowed);
      }
    }
  }
  return "";
}

std::string check_guards(std::span<const std::byte> storage, const std::string& tensor) {
  for (std::size_t i = 0; i < storage.size(); ++i) {
    bool in_guard = i < kGuardBytes || i >= storage.size() - kGuardBytes;
    if (!in_guard || storage[i] == kGuard) continue;
    return fmt::format("a write outside '{}', {} bytes from its start", tensor,
                       static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuardBytes));
  }
  return "";
}

std::string FirstBits::check(const OpCase& c, const TensorBytes& bytes) {
  bool first = bits_.empty();
  bits_.resize(c.program.tensors.size());
  for (std::size_t t = 0; t < bits_.size(); ++t) {
    if (c.program.tensors[t].kind != TensorKind::kOutput) continue;
    std::span<const std::byte> now = bytes(t);
    if (first) {
      bits_[t].assign(now.begin(), now.end());
    } else if (!std::equal(now.begin(), now.end(), bits_[t].begin(), bits_[t].end())) {
      return fmt::format("the bits of '{}' differ from those of launch 0",
                         c.program.tensors[t].name);
    }
  }
  return "";
}

bool keeps_state(const Program& program) {
  return std::any_of(program.tensors.begin(), program.tensors.end(),
                     [](const Tensor& t) { return t.kind == TensorKind::kState; });
}

bool ranks_meet(const Program& schedule) {
  if (schedule.world_size == 1) return false;
  bool found = false;
  auto visit = [&](const Op& op) {
    bool tells = op.code == OpCode::kNotify && !op.exprs[1].same(Expr::var(0));
    found |= tells || op.code == OpCode::kLoadPacket;
  };
  for_each_op(schedule.on_start.body, visit);
  for_each_op(schedule.on_end.body, visit);
  for (const Role& role : schedule.roles) {
    for (const Agent& agent : role.agents) for_each_op(agent.body, visit);
  }
  return found;
}

}  // namespace stretto
