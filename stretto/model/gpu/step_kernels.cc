#include "stretto/model/gpu/step_kernels.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <optional>

#include "stretto/base/threads.h"
#include "stretto/model/transformer/batch_plan.h"

namespace stretto {

std::vector<StepKernel> build_step_kernels(const step::Plan& plan, const ProveOptions& options,
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
      Proved program = prove(lower(plan.programs[i]), options);
      ++proved;
      tell();
      GpuCode code =
          generate(program.lowered(), {.target = options.gpu, .constants = constants[i]});
      built[i].emplace(StepKernel{std::move(program), std::move(code)});
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
