#include "stretto/model/gpu/step_kernels.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <optional>
#include <set>

#include "stretto/base/threads.h"
#include "stretto/model/transformer/batch_plan.h"

namespace stretto {

std::vector<ProveOptions> step_proofs(const ModelShape& shape, const step::Plan& plan,
                                      const BatchBounds& bounds, const GpuTarget& gpu) {
  std::vector<std::set<std::vector<std::int64_t>>> sizes(plan.programs.size());
  const step::Section& body = *plan.find_section(kBodySection);
  for (std::int64_t count : bounds.counts) {
    if (count == bounds.rows) continue;
    const std::vector<std::int64_t> values =
        batch_extents(shape, {.count = count, .most = count}, 1);
    for (std::size_t i = body.begin; i < body.end; ++i) {
      const step::Node& node = plan.nodes[i];
      sizes[static_cast<std::size_t>(node.program)].insert(step::eval(node.extents, values));
    }
  }
  std::vector<ProveOptions> proofs;
  for (const auto& of_program : sizes) {
    proofs.push_back({.bounds_only = true,
                      .also_at = {of_program.begin(), of_program.end()},
                      .gpu = gpu});
  }
  return proofs;
}

StepKernel build_step_kernel(Program program, std::set<std::string> constants,
                             const ProveOptions& options, const std::function<void()>& proved) {
  Proved made = prove(lower(std::move(program)), options);
  if (proved) proved();
  GpuCode code =
      generate(made.lowered(), {.target = options.gpu, .constants = std::move(constants)});
  return {std::move(made), std::move(code)};
}

std::vector<StepKernel> build_step_kernels(const step::Plan& plan,
                                           const std::vector<ProveOptions>& proofs,
                                           Progress* progress) {
  std::vector<std::set<std::string>> constants = constant_inputs(plan);
  std::vector<std::optional<StepKernel>> built(plan.programs.size());
  std::vector<std::exception_ptr> errors(plan.programs.size());
  std::atomic<std::size_t> proved{0}, compiled{0};
  auto tell = [&] {
    if (progress == nullptr) return;
    progress->begin(fmt::format("proving and compiling {} operators, {} are proved, {} compiled",
                                built.size(), proved.load(), compiled.load()));
  };
  tell();
  side_by_side(plan.programs.size(), num_processors(), [&](std::size_t i) {
    try {
      built[i] = build_step_kernel(plan.programs[i], std::move(constants[i]), proofs[i], [&] {
        ++proved;
        tell();
      });
      ++compiled;
      tell();
    } catch (...) {
      errors[i] = std::current_exception();
    }
  });
  std::vector<StepKernel> out;
  for (std::size_t i = 0; i < built.size(); ++i) {
    if (errors[i]) std::rethrow_exception(errors[i]);
    out.push_back(std::move(*built[i]));
  }
  return out;
}

}  // namespace stretto
