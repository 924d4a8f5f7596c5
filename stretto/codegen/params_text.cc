#include "stretto/codegen/params_text.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace stretto
