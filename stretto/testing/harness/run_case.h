// Runs an OpCase on a world of CPU ranks and compares with its reference: outputs poisoned and
// state restored before every launch, guard zones around tensors, several launches, random delays
// at synchronisation points on request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "stretto/runtime/world.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

struct RunOptions {
  int launches = 2;  // of each case, all of them compared
  std::uint64_t seed = 0;
  double delay_probability = 0;  // that a synchronisation point sleeps
  int max_delay_us = 200;
  // Why the program is launched without a proof; empty: it is proved first. Products set it so.
  std::string waiver = "a test compares what programs compute";
  // Ranks to run on, as many as the program has; none: threads of this process.
  std::shared_ptr<World> world;
};

// "" when every launch of every case gave the expected outputs and state, the same bits each time,
// and wrote nowhere else; else what differed first, with the seed, or on which rank of another
// process. A case that leaves an output or state unsaid is refused (case_data.h: check_expected).
std::string run_case(const OpCase& op_case, const RunOptions& options = {});
// The same of cases of one program (op_case.h: cases_of_rows, cases_of_seeds), which one instance
// launches in turn. All cases share two sets of tensors, each of which is taken twice before the
// other: what a launch finds of the one before is another case's.
std::string run_cases(std::span<const OpCase> cases, const RunOptions& options = {});

}  // namespace stretto
