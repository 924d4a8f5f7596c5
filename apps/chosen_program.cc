#include "apps/chosen_program.h"

#include "stretto/base/errors.h"
#include "stretto/ops/choose/choose.h"

namespace stretto {

ChosenProgram chosen_program(const std::string& op, const OpShape& shape,
                             const predict::Machine& machine, bool eager) {
  const OpCandidates all = candidates(op, shape, {.sms = machine.num_sms});
  OpCandidates offered = all;
  offered.sequence.clear();
  ConfigChoice choice = choose(op, shape, offered, {.machine = machine, .eager = eager});
  ConfigChoice sequence;
  if (!all.sequence.empty()) {
    sequence = choose(op, shape, all, {.machine = machine, .eager = eager, .allow_fused = false});
  }
  const Candidate* found = find_candidate(offered, choice.config);
  STRETTO_CHECK(found != nullptr, "a choice is a candidate");
  return {found->program(), choice.config, found->tables, sequence.config, sequence.predicted_ms};
}

}  // namespace stretto
