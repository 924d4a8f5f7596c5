#include "stretto/codegen/params_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/codegen/expr_text.h"

namespace stretto {

std::string params_text(const Program& program, const LaunchPlan& launch, bool record) {
  auto some = [](std::size_t n) { return std::max<std::size_t>(n, 1); };
  std::size_t vars = 0;
  for (const Var& v : program.vars) {
    vars += v.kind == VarKind::kExtent || v.kind == VarKind::kScalar ? 1 : 0;
  }
  return fmt::format(
      "\nstruct Params {{\n  TensorMap maps[{}];\n  u8* tensors[{}][{}];\n  u64* signals[{}];\n"
      "  const u64* quotas;\n  u64* control;\n  Watch watch;\n  i64 vars[{}];\n  const i64* "
      "scalars;\n  i64 rank;\n{}{}}};\n\n",
      some(launch.maps.size()), some(program.tensors.size()), program.world_size,
      program.world_size, some(vars),
      !launch.engines.roles.empty() ? "  const u64* engine_marks;\n  u64* engine_words;\n  u64* "
                                      "engine_words_for_peers;\n  u64* engine_bells;\n"
                                      "  i64 num_engine_marks;\n"
                                    : "",
      record ? "  EventLog events;\n" : "");
}

std::string kernel_head_text(const std::string& name, int threads) {
  return fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({}, 1) {}(\n    const __grid_constant__ "
      "Params p) {{\n  extern __shared__ __align__(1024) u8 smem[];\n  const int rank = "
      "int(p.rank);\n",
      threads, name);
}

std::string run_time_values_text(const Program& program) {
  std::string out;
  std::size_t next = 0, next_scalar = 0;
  for (std::size_t i = 0; i < program.vars.size(); ++i) {
    VarKind kind = program.vars[i].kind;
    if (kind != VarKind::kExtent && kind != VarKind::kScalar) continue;
    std::string value = fmt::format("p.vars[{}]", next++);
    if (kind == VarKind::kScalar) {
      value = fmt::format("p.scalars != nullptr ? p.scalars[{}] : {}", next_scalar++, value);
    }
    out += fmt::format("  [[maybe_unused]] const int {} = int({});\n",
                       var_text(program, static_cast<int>(i)), value);
  }
  return out;
}

}  // namespace stretto
