#include "stretto/step/gpu_kernels.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <optional>
#include <set>

#include "stretto/base/threads.h"

namespace stretto::step {

Kernel build_kernel(Program program, std::set<std::string> constants, const ProveOptions& options,
                    const std::function<void()>& proved) {
  Proved made = prove(lower(std::move(program)), options);
  if (proved) proved();
  GpuCode code =
      generate(made.lowered(), {.target = options.gpu, .constants = std::move(constants)});
  return {std::move(made), std::move(code)};
}

std::vector<Kernel> build_kernels(const Plan& plan, const std::vector<ProveOptions>& proofs,
                                  Progress* progress) {
  std::vector<std::set<std::string>> constants = constant_inputs(plan);
  std::vector<std::optional<Kernel>> built(plan.programs.size());
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
      built[i] = build_kernel(plan.programs[i], std::move(constants[i]), proofs[i], [&] {
        ++proved;
        tell();
      });
      ++compiled;
      tell();
    } catch (...) {
      errors[i] = std::current_exception();
    }
  });
  std::vector<Kernel> out;
  for (std::size_t i = 0; i < built.size(); ++i) {
    if (errors[i]) std::rethrow_exception(errors[i]);
    out.push_back(std::move(*built[i]));
  }
  return out;
}

}  // namespace stretto::step
