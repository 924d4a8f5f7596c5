// `prove --all --large`, or one operator: with its GPU config at shapes of models, each in a
// process of its own, so that time and memory are that program's.
#pragma once

#include <string>

#include "apps/program_source.h"

namespace stretto {

struct LargeOptions {
  // Of CPU time and of memory per program, beyond which it counts as not complete.
  int limit_s = 60, limit_mb = 4096;
  bool json = false;
  bool fixed_sizes = false;  // of the shape alone: a launch refuses others
  std::string op;         // one alone; empty: every shipped operator
  RankRange ranks{1, 8};  // of 1, 2, 4 and 8, or one number of ranks
};

// On stdout, as each is known: a table's row, or a line with a JSON object, then the totals. On
// stderr what is not shown, and how far a program is that takes more than two seconds. Throws
// Rejected, or CommandFailed with the exit code of what is not complete.
void prove_large(const LargeOptions& options);

}  // namespace stretto
