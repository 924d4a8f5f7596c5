// Which loops fold without being walked, and the merging of boxes in those that are walked.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "stretto/proof/instance_graph.h"

namespace stretto {

struct LoopShape {
  bool synchronises = false;  // walked event by event
  bool affine = false;        // every box moves linearly with the loop variable: two looks suffice
  bool chooses = false;       // some iterations use registers that others do not
  bool ordered = false;       // reads and writes the same tensor: boxes must keep their turn
  bool piped = false;         // affine, reads, passes slots of pipes, and nothing else
  bool writes = false;
  // piped: on which it passes slots, or uses registers that hold some; comparisons
  std::vector<Expr> conditions;
  // piped: on which it uses registers, and which
  std::vector<Expr> choices;
  std::set<int> chosen;
  std::set<int> moving;    // affine or piped: its variable, and what is computed from it
  int pipe = -1;           // piped: the first of those whose slots it passes
  std::int64_t slots = 1;  // piped: of a pipe, that an iteration puts or gets
};

// Facts about loops and conditions, found once per operation.
class LoopShapes {
 public:
  const LoopShape& of(const Op& op);

 private:
  std::unordered_map<const Op*, LoopShape> shapes_;
};

bool synchronises(const Block& block);
// A condition that decides about registers alone, none of which a product is counted by.
bool is_register_choice(const Op& op);
bool passes_slot(const Op& op);
// Reads, and passes slots of pipes, some of them on a condition.
bool only_passes_slots(const Block& body, bool in_condition = false);
bool uses_any(const Expr& expr, const std::set<int>& vars);
// They go by nothing but these variables.
bool all_go_by_only(const std::vector<Expr>& exprs, const std::set<int>& vars);
// Its origin moves in proportion to these; its ends and its rank do not go by them.
bool is_affine(const Region& region, const std::set<int>& moving);

// Reads nothing but a rank's own inputs, which nobody writes.
bool reads_own_inputs(const Block& body, const Program& program);

// Loads such inputs, of its own rank and under no condition, and does nothing else but compute.
bool only_reads_own_inputs(const Block& body, const Program& program);

// That one iteration puts or gets of the pipe which it moves most. Others follow, or the agents of
// a worker are found not to leave out the same (pipe_loops.h).
std::int64_t slots_of_iteration(const Block& body);

// A box before masking, as the loop meets it: `origin` moves, `size` and `limit` do not.
struct LooseBox {
  std::array<std::int64_t, kMaxTensorDims> origin{}, size{};
  Box limit;
};
Box clip(const LooseBox& box);

// `box` and its successor one iteration later, over `trips` iterations, as one box; absent where
// the union is no box, or where a write would be counted once though it happens twice.
std::optional<LooseBox> fold_affine(const LooseBox& first, const LooseBox& second,
                                    std::int64_t trips, bool is_write);

// The union of two boxes where it is a box; for writes only where they do not overlap.
bool extend_box(Box& box, const Box& next, bool is_write);

}  // namespace stretto
