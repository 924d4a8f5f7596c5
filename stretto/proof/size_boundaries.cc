#include "stretto/proof/size_boundaries.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

// Expressions that are evaluated to see where one comparison changes.
constexpr std::int64_t kMostValues = 1 << 15;
// Of an expression that is spelled out.
constexpr int kMostNodes = 256;

using OnExpr = std::function<void(const Expr&)>;

void each_node(const Expr& expr, const OnExpr& visit) {
  if (!expr.has_value()) return;
  visit(expr);
  for (const Expr& arg : expr.node().args) each_node(arg, visit);
}

void each_expr(const Block& block, const OnExpr& visit) {
  for (const Op& op : block) {
    for (const Expr& e : op.exprs) visit(e);
    for (const auto* region : {&op.region, &op.region2}) {
      if (!*region) continue;
      for (const Expr& e : (*region)->origin) visit(e);
      for (const Expr* e : {&(*region)->rank, &(*region)->row_end, &(*region)->col_end}) visit(*e);
    }
    for (const Block& body : op.bodies) each_expr(body, visit);
  }
}

class Sizes {
 public:
  explicit Sizes(const Program& program) : program_(program) {
    each_body([&](const Block& body) {
      for_each_op(body, [&](const Op& op) {
        if (op.code == OpCode::kLet) meanings_[op.var].push_back(op.exprs[0]);
        if (op.code == OpCode::kLoop) {
          meanings_[op.var].push_back(op.exprs[0]);
          meanings_[op.var].push_back(op.exprs[1]);
        }
      });
    });
    bounds_ = extent_bounds(program);
    int size = 0;
    for (std::size_t v = 0; v < program.vars.size(); ++v) {
      bool given =
          program.vars[v].kind == VarKind::kExtent || program.vars[v].kind == VarKind::kScalar;
      if (given) size_of_var_[static_cast<int>(v)] = size++;
    }
  }

  template <typename Visit>
  void each_body(const Visit& visit) const {
    for (const Agent* edge : {&program_.on_start, &program_.on_end}) visit(edge->body);
    for (const Role& role : program_.roles) {
      for (const Agent& agent : role.agents) visit(agent.body);
    }
  }

  // Whether its value may be another one with other sizes or in another tile.
  bool varies(const Expr& expr) {
    bool any = false;
    each_node(expr, [&](const Expr& e) {
      const ExprNode& n = e.node();
      any |= n.op == ExprOp::kTable || (n.op == ExprOp::kVar && varies(static_cast<int>(n.value)));
    });
    return any;
  }

  // Whether a size goes into it.
  bool is_sized(const Expr& expr) {
    bool any = false;
    each_node(expr, [&](const Expr& e) {
      any |= e.node().op == ExprOp::kVar && is_sized(static_cast<int>(e.node().value));
    });
    return any;
  }

  // Spelled out in what is given: sizes, rank, tile and loop counters. Absent for a variable that
  // is named in several ways, and for what would become too long. `left`: nodes.
  std::optional<Expr> spelled_out(const Expr& expr, int& left) {
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kConst) return expr;
    if (n.op == ExprOp::kTable || --left < 0) return std::nullopt;
    if (n.op == ExprOp::kVar) {
      auto var = static_cast<int>(n.value);
      if (program_.vars[at(var)].kind != VarKind::kLet) return expr;
      auto meaning = meanings_.find(var);
      bool named_once = meaning != meanings_.end() &&
                        std::all_of(meaning->second.begin(), meaning->second.end(),
                                    [&](const Expr& e) { return e.same(meaning->second[0]); });
      if (!named_once || uses_var(meaning->second[0], var)) return std::nullopt;
      return spelled_out(meaning->second[0], left);
    }
    std::vector<Expr> args;
    for (const Expr& arg : n.args) {
      std::optional<Expr> one = spelled_out(arg, left);
      if (!one) return std::nullopt;
      args.push_back(std::move(*one));
    }
    return Expr::make(n.op, std::move(args));
  }

  // Adds where the comparison changes.
  void compare(const Expr& comparison, std::vector<std::set<std::int64_t>>& out) {
    int left = kMostNodes;
    std::optional<Expr> spelled = spelled_out(comparison, left);
    if (!spelled || spelled->node().args.size() != 2) return;  // it may be always so
    auto known = [&](const Expr& e) { return e.same(*spelled); };
    if (std::any_of(compared_.begin(), compared_.end(), known)) return;
    compared_.push_back(*spelled);
    bool others = false, by_rank = false;
    std::set<int> sizes;
    each_node(*spelled, [&](const Expr& e) {
      if (e.node().op != ExprOp::kVar) return;
      auto size = size_of_var_.find(static_cast<int>(e.node().value));
      if (size != size_of_var_.end()) sizes.insert(size->second);
      by_rank |= e.node().value == 0;
      others |= size == size_of_var_.end() && e.node().value != 0;
    });
    for (int size : sizes) {
      if (others) {
        add_constants(*spelled, out[at(size)], bounds_[at(size)]);
      } else {
        int ranks = by_rank ? program_.world_size : 1;
        for (int r = 0; r < ranks; ++r) add_changes(*spelled, r, ranks, size, out[at(size)]);
      }
    }
  }

 private:
  bool varies(int var) {
    VarKind kind = program_.vars[at(var)].kind;
    if (kind == VarKind::kExtent || kind == VarKind::kScalar || kind == VarKind::kTile) return true;
    if (kind == VarKind::kRank) return false;
    auto [it, is_new] = varies_.try_emplace(var, false);  // of one that is named by itself: others
    if (!is_new) return it->second;
    bool any = false;
    for (const Expr& e : meanings_[var]) any = any || varies(e);
    return varies_[var] = any;
  }

  bool is_sized(int var) {
    if (size_of_var_.count(var) != 0) return true;
    auto [it, is_new] = sized_.try_emplace(var, false);
    if (!is_new) return it->second;
    bool any = false;
    for (const Expr& e : meanings_[var]) any = any || is_sized(e);
    return sized_[var] = any;
  }

  // The constants of an addition that a tile's place is compared with.
  static void add_constants(const Expr& expr, std::set<std::int64_t>& to, std::int64_t bound) {
    each_node(expr, [&](const Expr& e) {
      const ExprNode& n = e.node();
      if (n.op == ExprOp::kMul || n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod) return;
      for (const Expr& arg : n.args) {
        if (!arg.is_const()) continue;
        std::int64_t c = arg.const_value();
        if (c > 1 && c <= bound) to.insert(c);
      }
    });
  }

  // +1, 0 or -1 where the value never falls, stays, or never rises with the size; else absent.
  std::optional<int> direction(const Expr& expr, int var) const {
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kConst || n.op == ExprOp::kVar) {
      return n.op == ExprOp::kVar && n.value == var ? 1 : 0;
    }
    if (n.args.size() != 2) return uses_var(expr, var) ? std::nullopt : std::optional(0);
    std::optional<int> a = direction(n.args[0], var), b = direction(n.args[1], var);
    if (!a || !b) return std::nullopt;
    if (*a == 0 && *b == 0) return 0;
    switch (n.op) {
      case ExprOp::kSub:
        b = -*b;
        [[fallthrough]];
      case ExprOp::kAdd:
      case ExprOp::kMin:
      case ExprOp::kMax:
        if (*a * *b < 0) return std::nullopt;
        return *a != 0 ? *a : *b;
      case ExprOp::kMul:
        if (n.args[1].is_const()) return n.args[1].const_value() < 0 ? -*a : *a;
        if (n.args[0].is_const()) return n.args[0].const_value() < 0 ? -*b : *b;
        return std::nullopt;
      case ExprOp::kFloorDiv:
        if (n.args[1].is_const() && n.args[1].const_value() > 0) return *a;
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }

  void add_changes(const Expr& comparison, int rank, int ranks, int size,
                   std::set<std::int64_t>& out) {
    std::vector<std::int64_t> vars = initial_vars(program_, rank, bounds_);
    int var = std::find_if(size_of_var_.begin(), size_of_var_.end(), [&](const auto& v) {
                return v.second == size;
              })->first;
    std::int64_t bound = bounds_[at(size)];
    auto truth = [&](const Expr& e, std::int64_t value) -> int {
      vars[at(var)] = value;
      try {
        return eval(e, vars) != 0 ? 1 : 0;
      } catch (const NoValue&) {
        return 2;
      }
    };
    const ExprNode& n = comparison.node();
    std::optional<int> rises = direction(n.args[0] - n.args[1], var);
    if (rises) {
      // One change of each of < and <=, which is where == changes, too.
      for (const Expr& e : {n.args[0] < n.args[1], n.args[0] <= n.args[1]}) {
        std::int64_t lo = 0, hi = bound;
        int first = truth(e, lo);
        if (first == truth(e, hi)) continue;
        while (lo + 1 < hi) {
          std::int64_t mid = lo + (hi - lo) / 2;
          (truth(e, mid) == first ? lo : hi) = mid;
        }
        out.insert(hi);
      }
      return;
    }
    if (bound > kMostValues / ranks) return;
    for (std::int64_t v = 1, before = truth(comparison, 0); v <= bound; ++v) {
      int now = truth(comparison, v);
      if (now != before) out.insert(v);
      before = now;
    }
  }

  const Program& program_;
  std::map<int, std::vector<Expr>> meanings_;  // of lets, and the bounds of loop counters
  std::map<int, int> size_of_var_;             // extents and scalars: their number among them
  std::map<int, bool> varies_, sized_;
  std::vector<Expr> compared_;
  std::vector<std::int64_t> bounds_;
};

bool is_comparison(const Expr& e) {
  ExprOp op = e.node().op;
  return op == ExprOp::kLt || op == ExprOp::kLe || op == ExprOp::kEq;
}

// What is divided of what `counts`.
std::set<std::int64_t> divisors_of(const Program& program, Sizes& sizes,
                                   const std::function<bool(const Expr&)>& counts) {
  std::set<std::int64_t> steps;
  auto divisors = [&](const Expr& expr) {
    each_node(expr, [&](const Expr& e) {
      const ExprNode& n = e.node();
      bool divides = (n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod) && n.args[1].is_const();
      if (divides && counts(n.args[0])) steps.insert(n.args[1].const_value());
    });
  };
  for (const Role& role : program.roles) divisors(role.num_tiles);
  sizes.each_body([&](const Block& body) { each_expr(body, divisors); });
  for (const Tensor& tensor : program.tensors) {
    for (const Expr& dim : tensor.shape) divisors(dim);
  }
  steps.erase(steps.begin(), steps.upper_bound(1));
  return steps;
}

}  // namespace

// What is counted from the rank and constants alone, as ranks round the world are, is the same at
// all sizes.
std::set<std::int64_t> size_divisors(const Program& program) {
  Sizes sizes(program);
  return divisors_of(program, sizes, [&](const Expr& e) { return sizes.varies(e); });
}

std::set<std::int64_t> extent_divisors(const Program& program) {
  Sizes sizes(program);
  return divisors_of(program, sizes, [&](const Expr& e) { return sizes.is_sized(e); });
}

std::set<std::int64_t> size_steps(const Program& program) {
  Sizes sizes(program);
  std::set<std::int64_t> steps = size_divisors(program);
  sizes.each_body([&](const Block& body) {
    for_each_op(body, [&](const Op& op) {
      for (const auto* region : {&op.region, &op.region2}) {
        if (*region) steps.insert({(*region)->rows, (*region)->cols});
      }
    });
  });
  for (const TileMap& map : program.maps) steps.insert(map.tile_rows);
  for (std::int64_t bound : extent_bounds(program)) {
    steps.insert(ceil_div(bound, program.world_size));
  }
  steps.erase(steps.begin(), steps.upper_bound(1));
  return steps;
}

std::vector<std::set<std::int64_t>> size_boundaries(const Program& program) {
  std::vector<std::set<std::int64_t>> out(extent_bounds(program).size());
  if (out.empty()) return out;
  Sizes sizes(program);
  auto compare = [&](const Expr& expr) {
    each_node(expr, [&](const Expr& e) {
      if (is_comparison(e) && sizes.varies(e)) sizes.compare(e, out);
    });
  };
  for (const Role& role : program.roles) compare(role.num_tiles);
  sizes.each_body([&](const Block& body) { each_expr(body, compare); });
  return out;
}

}  // namespace stretto
