#include "stretto/proof/alike_ranks.h"

#include <algorithm>
#include <vector>

#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

const Expr kRank = Expr::var(0);

bool is_own(const Expr& rank) { return !rank.has_value() || rank.same(kRank); }

// Whether it has one value on all ranks, whatever its other variables are. A `let` that goes by the
// rank is such an expression itself, so that of variables nothing else has to be known.
bool same_on_all(const Expr& expr, int world_size) {
  if (!expr.has_value() || !uses_var(expr, 0)) return true;
  auto on = [&](int rank) { return substitute(expr, std::vector<Expr>{Expr(rank)}); };
  try {
    Expr on_first = on(0);
    for (int rank = 1; rank < world_size; ++rank) {
      if (!on(rank).same(on_first)) return false;
    }
  } catch (const NoValue&) {  // said by those that walk the rank
    return false;
  }
  return true;
}

// No slots that others fill, no tags, not given to some ranks alone.
bool is_alone(const Tensor& tensor, int world_size) {
  return tensor.space == Space::kLocal && !tensor.packet && !tensor.given_on.has_value() &&
         same_on_all(tensor.contract.lo, world_size) &&
         same_on_all(tensor.contract.hi, world_size) &&
         std::ranges::all_of(tensor.shape,
                             [&](const Expr& dim) { return same_on_all(dim, world_size); });
}

bool is_alone(const std::optional<Region>& region, int world_size) {
  return !region || (is_own(region->rank) && same_on_all(region->row_end, world_size) &&
                     same_on_all(region->col_end, world_size) &&
                     std::ranges::all_of(region->origin, [&](const Expr& e) {
                       return same_on_all(e, world_size);
                     }));
}

bool is_alone(const Op& op, int world_size) {
  switch (op.code) {
    case OpCode::kStorePacket:
    case OpCode::kLoadPacket:
    case OpCode::kProducerTileNotify:
    case OpCode::kConsumerTileWait:
      return false;
    default:
      break;
  }
  if (!is_alone(op.region, world_size) || !is_alone(op.region2, world_size)) return false;
  for (std::size_t i = 0; i < op.exprs.size(); ++i) {
    // The rank that is notified, or waited for.
    bool names_rank =
        (op.code == OpCode::kNotify && i == 1) || (op.code == OpCode::kWait && i == 2);
    if (names_rank ? !is_own(op.exprs[i]) : !same_on_all(op.exprs[i], world_size)) return false;
  }
  return true;
}

bool is_alone(const Agent& agent, int world_size) {
  return !any_op(agent.body, [&](const Op& op) { return !is_alone(op, world_size); });
}

}  // namespace

bool ranks_are_alike(const Program& program) {
  const int world = program.world_size;
  return world > 1 && is_alone(program.on_start, world) && is_alone(program.on_end, world) &&
         std::ranges::all_of(program.tensors,
                             [&](const Tensor& t) { return is_alone(t, world); }) &&
         std::ranges::none_of(program.signals, [](const Signal& s) { return s.per_source; }) &&
         std::ranges::all_of(program.roles, [&](const Role& role) {
           return same_on_all(role.num_tiles, world) &&
                  std::ranges::all_of(role.agents,
                                      [&](const Agent& a) { return is_alone(a, world); });
         });
}

Program one_of_alike(const Program& program) {
  Program one = program;
  one.world_size = 1;
  return one;
}

}  // namespace stretto
