#include "stretto/compiler.h"

#include "stretto/passes/pipeline.h"
#include "stretto/proof/proof_cache.h"

namespace stretto {

CompiledProgram compile(Program program, const CompileOptions& options) {
  Program schedule = run_pipeline(std::move(program), options.after);
  if (options.require_proof) require_proved(schedule, {.bounds_only = options.bounds_only});
  Quotas quotas = count_quotas(schedule, extent_bounds(schedule));
  return {std::make_shared<const Program>(std::move(schedule)), std::move(quotas),
          options.bounds_only};
}

}  // namespace stretto
