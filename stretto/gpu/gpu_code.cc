#include "stretto/gpu/gpu_code.h"

#include <exception>
#include <future>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {

GpuCode build_gpu_code(const CompiledProgram& program, const KernelOptions& options) {
  GpuCode code{.kernel = generate_kernel(*program.schedule, options), .image = {}};
  code.image = cuda::compile_cuda(code.kernel.expanded, program.schedule->name + ".cu");
  return code;
}

CompiledForGpu compile_for_gpu(Program program, const CompileOptions& options,
                               const KernelOptions& kernel) {
  CompileOptions unproved = options;
  unproved.require_proof = false;
  CompiledForGpu out;
  try {
    out.program = compile(program, unproved);
  } catch (const UserError&) {
    compile(std::move(program), options);  // the proof says more, where it has something to say
    throw;
  }
  std::future<void> proof;
  if (options.require_proof) {
    proof = std::async(std::launch::async, [&] { require_proof(out.program); });
  }
  std::exception_ptr failure;  // after the proof's: a program that is wrong may not compile either
  try {
    out.code = build_gpu_code(out.program, kernel);
  } catch (...) {
    failure = std::current_exception();
  }
  if (proof.valid()) proof.get();
  if (failure) std::rethrow_exception(failure);
  return out;
}

bool has_gpu_lowering(const CompiledProgram& program) {
  try {
    generate_kernel(*program.schedule);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace stretto
