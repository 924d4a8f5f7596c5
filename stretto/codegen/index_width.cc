#include "stretto/codegen/index_width.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "stretto/ir/expr_arithmetic.h"

namespace stretto {
namespace {

// Whether what varies has its largest value or its smallest.
struct Corner {
  bool extents = true, ranks = true, tiles = true, loops = true, entries = true;
  bool largest() const { return extents && ranks && tiles && loops && entries; }
};

// The largest, or smallest, entry that a contract allows; 0 without one.
class OuterEntries : public TableReader {
 public:
  OuterEntries(const Program& program, std::span<const std::int64_t> vars, bool largest)
      : program_(program), vars_(vars), largest_(largest) {}
  std::int64_t read(int tensor_idx, std::span<const std::int64_t> /*index*/) override {
    const Contract& c = program_.tensors[static_cast<std::size_t>(tensor_idx)].contract;
    if (!largest_) return c.lo.has_value() ? eval(c.lo, vars_) : 0;
    return c.hi.has_value() ? apply(ExprOp::kSub, eval(c.hi, vars_), 1) : 0;
  }

 private:
  const Program& program_;
  std::span<const std::int64_t> vars_;
  bool largest_;
};

std::vector<std::int64_t> extents_at(const Program& program, bool largest) {
  std::vector<std::int64_t> extents = extent_bounds(program);
  if (!largest) std::fill(extents.begin(), extents.end(), 0);
  return extents;
}

class WidthCheck {
 public:
  WidthCheck(const Program& program, const Corner& corner)
      : program_(program),
        corner_(corner),
        vars_(initial_vars(program, corner.ranks ? program.world_size - 1 : 0,
                           extents_at(program, corner.extents))),
        tables_(program, vars_, corner.entries) {}

  void run() {
    for (const Tensor& t : program_.tensors) {
      for (const Expr& dim : t.shape) check(dim, t.loc);
    }
    block(program_.on_start.body);
    for (const Role& role : program_.roles) {
      std::optional<std::int64_t> tiles = check(role.num_tiles, role.loc);
      if (tiles.value_or(1) <= 0) continue;
      set(role.tile_var, corner_.tiles ? tiles.value_or(1) - 1 : 0);
      for (const Agent& agent : role.agents) block(agent.body);
    }
    block(program_.on_end.body);
  }

 private:
  void block(const Block& ops) {
    for (const Op& op : ops) this->op(op);
  }

  void op(const Op& op) {
    std::optional<std::int64_t> first, last;
    for (const Expr& e : op.exprs) {
      last = check(e, op.loc);
      if (&e == &op.exprs.front()) first = last;
    }
    for (const auto* r : {&op.region, &op.region2}) {
      if (*r) region(**r, op.loc);
    }
    if (op.code == OpCode::kLet) set(op.var, last.value_or(0));
    if (op.code == OpCode::kLoop) {
      if (!corner_.largest() && first.value_or(0) >= last.value_or(1)) return;
      set(op.var, corner_.loops ? last.value_or(1) - 1 : first.value_or(0));
    }
    // Of the largest tile all is looked at: one before it may get where it does not.
    if (op.code == OpCode::kWhen && !corner_.largest()) {
      std::size_t taken = first.value_or(0) != 0 ? 0 : 1;
      if (first.has_value() && taken < op.bodies.size()) block(op.bodies[taken]);
      return;
    }
    for (const Block& body : op.bodies) block(body);
  }

  void region(const Region& r, const SourceLoc& loc) {
    check(r.rank, loc);
    for (const Expr& e : r.origin) check(e, loc);
    check(r.row_end, loc);
    check(r.col_end, loc);
  }

  void set(int var, std::int64_t value) { vars_[static_cast<std::size_t>(var)] = value; }

  // Its value, parts checked first; none where it has none.
  std::optional<std::int64_t> check(const Expr& e, const SourceLoc& loc) {
    if (!e.has_value()) return {};
    const ExprNode& n = e.node();
    if (n.op != ExprOp::kSelect) {
      for (const Expr& arg : n.args) check(arg, loc);
    }
    std::int64_t value = 0;
    try {
      value = eval(e, vars_, &tables_);
    } catch (const NoValue&) {
      return {};
    }
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (value >= -kMost && value <= kMost) return value;
    throw UserError(fmt::format("{}:{}: an index gets to {}, kernels have 32 bits for it", loc.file,
                                loc.line, value));
  }

  const Program& program_;
  Corner corner_;
  std::vector<std::int64_t> vars_;
  OuterEntries tables_;
};

}  // namespace

void refuse_wide_indices(const Program& schedule) {
  constexpr unsigned kCorners = 1U << 5;
  for (unsigned i = 0; i < kCorners; ++i) {
    auto largest = [i](unsigned bit) { return (i >> bit & 1U) == 0; };
    WidthCheck(schedule, {largest(0), largest(1), largest(2), largest(3), largest(4)}).run();
  }
}

}  // namespace stretto
