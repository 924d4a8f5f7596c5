// Small programs for the tests of the proof, and edits that break them.
#pragma once

#include <functional>

#include "stretto/ir/program.h"

namespace stretto::test_programs {

// out = in, in tiles of `rows` rows; m is a run-time extent.
Program local_copy(int world);
// c = all_gather(a): pull by copy engine, with `ready` before and `done` after (the protocol of the
// language's introduction), then a role that waits per channel and writes the output.
Program gather_then_store(int world);

struct ExchangeOptions {
  int num_slots = 2;
  bool per_source = true;  // false: one counter for all senders
  bool ack = false;        // receivers answer before the launch ends
  bool all_to_all = true;  // false: to the next rank only
};
// Every rank pushes its rows into the others' buffer and sums what it gets.
Program exchange(int world, const ExchangeOptions& options);

// As exchange, with packets instead of signals.
Program packet_exchange(int world, int num_slots);

// Edits the n-th operation that `matches`, in the order on_start, roles, on_end; returns whether it
// exists.
using Matches = std::function<bool(const Op&)>;
enum class Edit { kDrop, kDuplicate, kThresholdPlus, kThresholdMinus, kOtherChannel };
bool edit(Program& program, const Matches& matches, Edit how, int n = 0);
Matches is_wait(const Program& program, const char* signal);
Matches is_notify(const Program& program, const char* signal);

}  // namespace stretto::test_programs
