#include "stretto/lang/rank_runs.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::rank_runs {

std::string refusal(const Program& program) {
  ProofResult proof = prove(run_pipeline(program));
  return proof.proved() ? "" : proof.report;
}

}  // namespace stretto::rank_runs
