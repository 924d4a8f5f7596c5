#include "stretto/ir/refuse.h"

#include <fmt/ranges.h>

#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ir/printer.h"

namespace stretto {
namespace {

// "2 ranks, %m <= 512, a bf16[%m, 64], c bf16[%m, 32]"
std::string shapes_of(const Program& program) {
  std::vector<std::string> parts = {
      fmt::format("{} rank{}", program.world_size, program.world_size == 1 ? "" : "s")};
  for (const Var& var : program.vars) {
    if (var.kind == VarKind::kExtent)
      parts.push_back(fmt::format("%{} <= {}", var.name, var.bound));
  }
  for (const Tensor& tensor : program.tensors) {
    if (tensor.kind != TensorKind::kInput && tensor.kind != TensorKind::kOutput) continue;
    std::vector<std::string> sizes;
    for (const Expr& size : tensor.shape) sizes.push_back(print_expr(program, size));
    parts.push_back(
        fmt::format("{} {}[{}]", tensor.name, short_name(tensor.dtype), fmt::join(sizes, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

void refuse(const Program& program, const Role& role, const AskedFor& asked,
            std::string_view reason) {
  std::string where =
      role.loc.line > 0 ? fmt::format(" ({}:{})", role.loc.file, role.loc.line) : "";
  throw UserError(fmt::format("{}: role '{}'{} cannot have {} = {}: {}; {}", program.name,
                              role.name, where, asked.field, asked.value, reason,
                              shapes_of(program)));
}

void refuse_float64(const Program& program) {
  for (const Tensor& t : program.tensors) {
    if (t.dtype != DType::kF64) continue;
    throw UserError(
        fmt::format("{}: tensor '{}' is float64, {}", program.name, t.name, kCpuRanksOnly));
  }
}

}  // namespace stretto
