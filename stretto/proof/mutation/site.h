// A place in a program: one operation, found through the bodies around it. Mutations are made at
// sites of a copy, and a site's name stays the same when unrelated lines move.
#pragma once

#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

struct Site {
  static constexpr int kOnStart = -2, kOnEnd = -1;
  int role = kOnStart;  // index into Program::roles, or one of the above
  int agent = 0;
  // From the agent's body inwards: which body of the operation before (0 at the top), which
  // operation in it.
  struct Step {
    std::size_t body = 0, op = 0;
  };
  std::vector<Step> path;
};

// Every operation, in program order, those inside loops and conditions after the one around them.
std::vector<Site> all_sites(const Program& program);

Block& body_at(Program& program, const Site& site);
// The block that holds the first `depth` + 1 steps' last operation.
Block& block_at(Program& program, const Site& site, std::size_t depth);
const Op& op_at(const Program& program, const Site& site);

// "gather: wait 'ready'": where, what and on which signal, tensor, pipe or barrier.
std::string name(const Program& program, const Site& site);

bool synchronises_inside(const Op& op);
// Tensors the operation touches, those inside it included, that another agent can see: symmetric
// ones, buffers and state.
std::vector<int> shared_tensors(const Program& program, const Op& op);

}  // namespace stretto
