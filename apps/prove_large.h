// `prove --all --large`: every shipped operator with its GPU config at shapes of models, each in a
// process of its own, so that time and memory are that program's.
#pragma once

namespace stretto {

struct LargeOptions {
  int limit_s = 60;  // of CPU time per program, after which it counts as not complete
  bool json = false;
};

// A table on stdout, or one JSON object. Throws Rejected, or CommandFailed with the exit code of
// what is not complete.
void prove_large(const LargeOptions& options);

}  // namespace stretto
