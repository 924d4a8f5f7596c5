#include "stretto/compiler.h"

#include "stretto/passes/pipeline.h"
#include "stretto/proof/proof_cache.h"

namespace stretto {

CompiledProgram compile(Program program, const CompileOptions& options) {
  auto schedule = std::make_shared<const Program>(run_pipeline(std::move(program), options.after));
  CompiledProgram compiled{schedule, {}, options.bounds_only};
  if (options.require_proof) require_proof(compiled);
  compiled.quotas = count_quotas(*schedule, extent_bounds(*schedule));
  return compiled;
}

void require_proof(const CompiledProgram& program) {
  require_proved(*program.schedule, {.bounds_only = program.bounds_only});
}

}  // namespace stretto
