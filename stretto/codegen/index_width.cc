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

// The largest entry that a contract allows; 0 without one.
class LargestEntries : public TableReader {
 public:
  LargestEntries(const Program& program, std::span<const std::int64_t> vars)
      : program_(program), vars_(vars) {}
  std::int64_t read(int tensor_idx, std::span<const std::int64_t> /*index*/) override {
    const Contract& c = program_.tensors[static_cast<std::size_t>(tensor_idx)].contract;
    return c.hi.has_value() ? apply(ExprOp::kSub, eval(c.hi, vars_), 1) : 0;
  }

 private:
  const Program& program_;
  std::span<const std::int64_t> vars_;
};

class WidthCheck {
 public:
  explicit WidthCheck(const Program& program)
      : program_(program),
        vars_(initial_vars(program, program.world_size - 1, extent_bounds(program))),
        tables_(program, vars_) {}

  void run() {
    for (const Tensor& t : program_.tensors) {
      for (const Expr& dim : t.shape) check(dim, t.loc);
    }
    block(program_.on_start.body);
    for (const Role& role : program_.roles) {
      std::optional<std::int64_t> tiles = check(role.num_tiles, role.loc);
      set(role.tile_var, tiles.value_or(1) - 1);
      for (const Agent& agent : role.agents) block(agent.body);
    }
    block(program_.on_end.body);
  }

 private:
  void block(const Block& ops) {
    for (const Op& op : ops) this->op(op);
  }

  void op(const Op& op) {
    std::optional<std::int64_t> last;
    for (const Expr& e : op.exprs) last = check(e, op.loc);
    for (const auto* r : {&op.region, &op.region2}) {
      if (*r) region(**r, op.loc);
    }
    if (op.code == OpCode::kLet) set(op.var, last.value_or(0));
    if (op.code == OpCode::kLoop) set(op.var, last.value_or(1) - 1);
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
  std::vector<std::int64_t> vars_;
  LargestEntries tables_;
};

}  // namespace

void refuse_wide_indices(const Program& schedule) { WidthCheck(schedule).run(); }

}  // namespace stretto
