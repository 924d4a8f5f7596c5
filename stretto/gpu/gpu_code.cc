#include "stretto/gpu/gpu_code.h"

#include <exception>
#include <future>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {

GpuCode generate(const Lowered& program, const KernelOptions& options) {
  GpuCode code{.program = program.shared(),
               .kernel = generate_kernel(program.program(), options),
               .image = {}};
  code.image = cuda::compile_cuda(code.kernel.expanded, program.program().name + ".cu",
                                  {.arch = options.target.arch});
  return code;
}

ProvedForGpu prove_for_gpu(Lowered program, const ProveOptions& options,
                           const KernelOptions& kernel) {
  std::future<Proved> proof =
      std::async(std::launch::async, [&] { return prove(program, options); });
  GpuCode code;
  std::exception_ptr failure;  // after the proof's: a program that is wrong may not compile either
  try {
    code = generate(program, kernel);
  } catch (...) {
    failure = std::current_exception();
  }
  Proved proved = proof.get();
  if (failure) std::rethrow_exception(failure);
  return {std::move(proved), std::move(code)};
}

bool has_gpu_lowering(const Lowered& program) {
  try {
    generate_kernel(program.program());
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace stretto
