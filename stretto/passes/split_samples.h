// Pipelined programs for the tests of split_agents: each with the number of stages as a parameter,
// and some that must stay whole.
#pragma once

#include <cstdint>

#include "stretto/ir/program.h"

namespace stretto::split_samples {

struct GemmOptions {
  int num_stages = 0;
  bool two_products = false;  // a second weight, as gated units have
  bool keep_copies = false;   // an operation between load and dot
  int num_consumers = 1;
};

inline constexpr std::int64_t kM = 13, kN = 11, kK = 37;

// c = a * b^T, or (a * b^T) * (a * g^T) elementwise; k is a run-time size.
Program gemm(const GemmOptions& options);
// c = all_gather(a) * b^T: pulled by a copy engine, multiplied by a pipelined role.
Program ag_gemm(int world, int num_stages);
// Online softmax over blocks of keys: two dots per step, their results used at once. copied: V goes
// through a register of its own; values: the type of V and of what multiplies it.
Program attention(int num_stages, bool copied, DType values = DType::kF32);
// A role reads `x` through pipes, over a run-time number of steps, and `y` on its own.
Program residual(int num_stages);
// The weights of a group are chosen by a table; what the table says stands still, so both agents
// may read it.
Program grouped(int num_stages);

// c = (a[rows] * b^T) with a scale for each row of every step: rows picked by an index and vectors
// go through pipes, too.
Program picked(int num_stages);

// c = (2 * x) * b summed over its tiles: the first tiles double the rows of x and hand them on, the
// last multiply them; at the end every tile waits once more, which orders nothing.
Program handed_on(int num_stages);
// Rows that are picked by what the role has made, behind a wait for it or not.
Program picks_handed_on(int num_stages, bool waits);

// c = gathered rows times b^T, which a first turn pushes to every other rank; `first_peer` 0: to
// the own rank, too. What others push is waited for in a condition.
Program pushed(int world, int num_stages, std::int64_t first_peer = 1);

// c = for each token the weighted sum of the rows of y that a table picks (-1: none), plus old:
// rows go through a pipe without a product.
Program summed_rows(int num_stages);

// c = 2 * a[numbers[2 * t + 1]] for each of 7 tokens t: the index is computed by way of another, -1
// past the last.
Program picked_by_pairs(int num_stages);

// c = a[.., 0:8n] * a[.., 0:8n]^T, n from a table.
Program table_loop(bool changes);

// Roles that ask for stages and cannot have them: a load of what the role stores, a loop that a
// table ends which launches change (above), packets that order what follows, neither a dot nor a
// loop over rows.
Program own_writes(bool fence);
// Packets arrive before a product of inputs, or of what the sender of the packets wrote first.
Program packets(bool inputs);
Program no_dot();

}  // namespace stretto::split_samples
