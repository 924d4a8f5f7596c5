#include "stretto/codegen/products_under_way.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

using LeavesOut = std::function<bool(const Op&)>;
constexpr int kNothingOlder = 1 << 20;  // no product before these is under way

// The ways through an agent's tiles, backwards. A node is an operation that products meet, or the
// head of a loop, where its steps begin.
class Ways {
 public:
  Ways(const Agent& agent, const LeavesOut& leaves_out) : agent_(agent), leaves_out_(leaves_out) {
    int tiles = add({});
    std::vector<int> before = block(agent.body, {tiles});
    before.push_back(kStart);
    nodes_[static_cast<std::size_t>(tiles)].before = std::move(before);
  }

  // `steady`: the loop within which a product that may be left out is so in every step or in none.
  // -1 where that says nothing, since products before the loop may be under way.
  int count(const Op& await, int keep, const Op* steady) {
    int node = of_.at(&await);
    steady_ = steady;
    exits_.clear();
    int out = least(nodes_[static_cast<std::size_t>(node)].before, keep, node);
    steady_ = nullptr;
    for (auto [before, left] : std::exchange(exits_, {})) {
      // Where the loop's products are left out, those before it are the youngest.
      if (least({before}, left, before) != kNothingOlder) return -1;
    }
    return std::min(out, keep);
  }

 private:
  static constexpr int kStart = -1;
  struct Node {
    const Op* op = nullptr;
    std::vector<int> before = {};
    std::vector<const Op*> loops = {};  // around it
  };

  int add(Node node) {
    node.loops = loops_;
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }

  // The ends of the ways through it.
  std::vector<int> block(const Block& ops, std::vector<int> ways) {
    for (const Op& op : ops) {
      if (op.code == OpCode::kLoop) {
        loops_.push_back(&op);
        int head = add({.before = std::move(ways)});
        std::vector<int> ends = block(op.bodies[0], {head});
        auto& before = nodes_[static_cast<std::size_t>(head)].before;
        before.insert(before.end(), ends.begin(), ends.end());
        loops_.pop_back();
        ways = {head};
      } else if (op.code == OpCode::kWhen) {
        std::vector<int> out = op.bodies.size() > 1 ? block(op.bodies[1], ways) : ways;
        std::vector<int> then = block(op.bodies[0], ways);
        out.insert(out.end(), then.begin(), then.end());
        ways = std::move(out);
      } else if (op.code == OpCode::kDot || op.code == OpCode::kDotAsync ||
                 op.code == OpCode::kAwait) {
        int node = add({.op = &op, .before = std::move(ways)});
        of_[&op] = node;
        ways = {node};
      }
    }
    return ways;
  }

  bool within_steady(int node) const {
    const std::vector<const Op*>& loops = nodes_[static_cast<std::size_t>(node)].loops;
    return std::find(loops.begin(), loops.end(), steady_) != loops.end();
  }

  // Groups among the `left` youngest products at the end of the nodes, which come before `after`.
  int least(const std::vector<int>& nodes, int left, int after) {
    known_.clear();
    int out = kNothingOlder;
    do {  // until nothing is new round the loops
      changed_ = false;
      seen_.clear();
      for (int n : nodes) out = std::min(out, count(n, left, after));
    } while (changed_);
    return out;
  }

  int count(int node, int left, int after) {
    if (node == kStart) return kNothingOlder;
    if (steady_ != nullptr && within_steady(after) && !within_steady(node)) {
      exits_.emplace(node, left);
      return kNothingOlder;
    }
    int& known = known_.try_emplace({node, left}, kNothingOlder).first->second;
    if (!seen_.emplace(node, left).second) return known;
    int now = step(node, left);
    changed_ |= now != known;
    return known = now;
  }

  int step(int node, int left) {
    const Op* op = nodes_[static_cast<std::size_t>(node)].op;
    bool group = op != nullptr && dot_kind(agent_, *op) == DotKind::kWgmma;
    if (group && op->code == OpCode::kDot) return kNothingOlder;
    int here = 0;
    if (op != nullptr && op->code == OpCode::kAwait) {
      bool waits = op->exprs[0].const_value() <= left;
      if (waits) return kNothingOlder;
    } else if (op != nullptr && op->code == OpCode::kDotAsync) {
      if (left == 0 && group) return 0;
      here = group && (steady_ != nullptr || !leaves_out_(*op)) ? 1 : 0;
      left = std::max(left - 1, 0);
    }
    int most = kNothingOlder;
    for (int n : nodes_[static_cast<std::size_t>(node)].before) {
      most = std::min(most, count(n, left, node));
    }
    return most == kNothingOlder ? most : most + here;
  }

  const Agent& agent_;
  const LeavesOut& leaves_out_;
  std::vector<Node> nodes_;
  std::vector<const Op*> loops_;
  std::map<const Op*, int> of_;
  std::map<std::pair<int, int>, int> known_;  // by node and products left
  std::set<std::pair<int, int>> seen_, exits_;
  const Op* steady_ = nullptr;
  bool changed_ = false;
};

// Whether all of the loop's products may be left out, by one number of rows, which no step changes.
bool is_steady(const Agent& agent, const Op& loop, const LeavesOut& leaves_out) {
  std::set<int> vars = {loop.var};
  std::optional<Expr> rows;
  bool alike = true;
  for_each_op(loop.bodies[0], [&](const Op& op) {
    if (op.code == OpCode::kLet || op.code == OpCode::kLoop) vars.insert(op.var);
    if (op.code != OpCode::kDotAsync || dot_kind(agent, op) != DotKind::kWgmma) return;
    alike &= leaves_out(op) && (!rows || rows->same(op.exprs[0]));
    if (alike) rows = op.exprs[0];
  });
  return alike && rows &&
         std::none_of(vars.begin(), vars.end(), [&](int var) { return uses_var(*rows, var); });
}

// Loops around `op`, outermost first.
bool loops_around(const Block& block, const Op& op, std::vector<const Op*>& out) {
  return std::any_of(block.begin(), block.end(), [&](const Op& o) {
    if (&o == &op) return true;
    if (o.code == OpCode::kLoop) out.push_back(&o);
    bool found = std::any_of(o.bodies.begin(), o.bodies.end(),
                             [&](const Block& body) { return loops_around(body, op, out); });
    if (!found && o.code == OpCode::kLoop) out.pop_back();
    return found;
  });
}

}  // namespace

int groups_under_way(const Agent& agent, const Op& await, const LeavesOut& leaves_out) {
  auto keep = static_cast<int>(await.exprs[0].const_value());
  if (keep == 0) return 0;
  Ways ways(agent, leaves_out);
  int out = ways.count(await, keep, nullptr);
  std::vector<const Op*> around;
  loops_around(agent.body, await, around);
  for (const Op* loop : around) {
    if (is_steady(agent, *loop, leaves_out)) out = std::max(out, ways.count(await, keep, loop));
  }
  return out;
}

}  // namespace stretto
