// Runs an OpCase on a world of CPU ranks and compares with its reference: outputs poisoned first,
// guard zones around them, several launches, random delays at synchronisation points on request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "stretto/ops/harness/op_case.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct RunOptions {
  int launches = 2;
  std::uint64_t seed = 0;
  double delay_probability = 0;  // that a synchronisation point sleeps
  int max_delay_us = 200;
  bool require_proof = false;
  // Ranks to run on, as many as the program has; none: threads of this process.
  std::shared_ptr<World> world;
};

// "" when every launch gave the expected values, the same bits each time; else what differed first,
// with the seed, or on which rank of another process. For state tensors only the first launch is
// compared.
std::string run_case(const OpCase& op_case, const RunOptions& options = {});
// The same of cases of one program (op_case.h: cases_of_rows), which one instance launches in turn.
std::string run_cases(std::span<const OpCase> cases, const RunOptions& options = {});

}  // namespace stretto
