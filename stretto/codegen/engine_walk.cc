#include "stretto/codegen/engine_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "stretto/base/errors.h"
#include "stretto/codegen/role_plan.h"
#include "stretto/ir/walk_budget.h"

namespace stretto {
namespace {

class Obstacles {
 public:
  explicit Obstacles(const Program& program) : program_(program) {}

  std::string of(const Block& block) {
    for (const Op& op : block) {
      for (const Expr& e : op.exprs) check(e);
      if (op.code == OpCode::kCopy) {
        check(*op.region);
        check(*op.region2);
      }
      for (const Block& body : op.bodies) of(body);
    }
    return why_;
  }
  void check(const Expr& e) {
    if (!e.has_value()) return;
    if (uses_table(e)) why_ = "it depends on a table, which the device knows";
    for (std::size_t v = 0; v < program_.vars.size(); ++v) {
      if (program_.vars[v].kind != VarKind::kScalar || !uses_var(e, static_cast<int>(v))) continue;
      why_ = fmt::format("it depends on the scalar '{}', which the device may know alone",
                         program_.vars[v].name);
    }
  }

 private:
  void check(const Region& r) {
    const Tensor& t = program_.tensors[static_cast<std::size_t>(r.tensor)];
    for (const Expr& e : r.origin) check(e);
    for (const Expr& e : {r.rank, r.row_end, r.col_end}) check(e);
    for (const Expr& e : t.shape) check(e);
    if (t.num_slots > 1) why_ = fmt::format("the slot of '{}' changes with every launch", t.name);
    if (t.packet) why_ = fmt::format("'{}' consists of packets", t.name);
    if (r.col_dim != static_cast<int>(t.shape.size()) - 1) {
      why_ = fmt::format("its rows of '{}' are not contiguous", t.name);
    }
  }

  const Program& program_;
  std::string why_;
};

// The part of a region that lies within its tensor, in tile coordinates.
struct Clipped {
  int rank = 0;
  std::int64_t r0 = 0, r1 = 0, c0 = 0, c1 = 0;
  std::int64_t offset = 0, row_stride = 0;  // elements; of the tile's row 0 and column 0

  bool empty() const { return r0 >= r1 || c0 >= c1; }
};

class Walk {
 public:
  Walk(const Program& program, const std::vector<std::int64_t>& offsets,
       std::vector<std::int64_t> vars)
      : program_(program), offsets_(offsets), vars_(std::move(vars)) {}

  std::vector<WalkStep> run(const Role& role) {
    std::int64_t num_tiles = eval(role.num_tiles, vars_);
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      budget_.step(role.loc);
      worker_ = static_cast<int>(t % role.resource.num_workers);
      tile_ = t;
      vars_[static_cast<std::size_t>(role.tile_var)] = t;
      block(role.agents[0].body);
    }
    return std::move(steps_);
  }

 private:
  void block(const Block& ops) {
    for (const Op& op : ops) step(op);
  }

  void step(const Op& op) {
    budget_.step(op.loc, kKept);
    switch (op.code) {
      case OpCode::kLet:
        vars_[static_cast<std::size_t>(op.var)] = value(op.exprs[0]);
        return;
      case OpCode::kLoop: {
        std::int64_t end = value(op.exprs[1]);
        for (std::int64_t i = value(op.exprs[0]); i < end; ++i) {
          budget_.step(op.loc, kKept);
          vars_[static_cast<std::size_t>(op.var)] = i;
          block(op.bodies[0]);
        }
        return;
      }
      case OpCode::kWhen:
        return block(op.bodies[value(op.exprs[0]) != 0 ? 0 : 1]);
      case OpCode::kCopy:
        return copy(op);
      case OpCode::kWait:
        if (announced_at_start(program_, op.symbol)) return;
        steps_.push_back({.worker = worker_, .tile = tile_, .op = &op});
        return;
      case OpCode::kNotify: {
        std::int64_t counter = offsets_[static_cast<std::size_t>(op.symbol)] + value(op.exprs[0]);
        steps_.push_back({.worker = worker_,
                          .tile = tile_,
                          .op = &op,
                          .rank = static_cast<int>(value(op.exprs[1])),
                          .counter = counter,
                          .amount = value(op.exprs[2])});
        return;
      }
      default:  // a queue keeps order by itself, so a fence is nothing to it
        return;
    }
  }

  void copy(const Op& op) {
    Clipped from = clip(*op.region), to = clip(*op.region2);
    std::int64_t r0 = std::max(from.r0, to.r0), r1 = std::min(from.r1, to.r1);
    std::int64_t c0 = std::max(from.c0, to.c0), c1 = std::min(from.c1, to.c1);
    bool none = r0 >= r1 || c0 >= c1;
    WalkStep out{.worker = worker_, .tile = tile_, .op = &op};
    out.grows = !to.empty() && (none || r0 > to.r0 || r1 < to.r1 || c0 > to.c0 || c1 < to.c1);
    if (!none) {
      const Tensor& t = program_.tensors[static_cast<std::size_t>(op.region->tensor)];
      auto size = static_cast<std::int64_t>(size_bytes(t.dtype));
      out.copy = {.from_tensor = op.region->tensor,
                  .from_rank = from.rank,
                  .to_tensor = op.region2->tensor,
                  .to_rank = to.rank,
                  .from_offset = (from.offset + r0 * from.row_stride + c0) * size,
                  .to_offset = (to.offset + r0 * to.row_stride + c0) * size,
                  .rows = r1 - r0,
                  .row_bytes = (c1 - c0) * size,
                  .from_pitch = from.row_stride * size,
                  .to_pitch = to.row_stride * size};
      join_rows(out.copy);
    }
    steps_.push_back(std::move(out));
  }

  static void join_rows(EngineCopy& c) {
    bool whole = c.from_pitch == c.row_bytes && c.to_pitch == c.row_bytes;
    if (!whole && c.rows > 1) return;
    c.row_bytes *= c.rows;
    c.rows = 1;
    c.from_pitch = c.to_pitch = c.row_bytes;
  }

  Clipped clip(const Region& r) const {
    const Tensor& t = program_.tensors[static_cast<std::size_t>(r.tensor)];
    std::vector<std::int64_t> strides = row_major_strides(program_, r.tensor);
    Clipped out{.rank = static_cast<int>(r.rank.has_value() ? value(r.rank) : vars_[0]),
                .r1 = r.rows,
                .c1 = r.cols};
    bool outside = false;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      std::int64_t origin = value(r.origin[d]), limit = value(t.shape[d]);
      out.offset += origin * strides[d];
      if (static_cast<int>(d) == r.row_dim) {
        if (r.row_end.has_value()) limit = std::min(limit, value(r.row_end));
        out.r0 = std::max<std::int64_t>(0, -origin);
        out.r1 = std::min(r.rows, limit - origin);
        out.row_stride = strides[d];
      } else if (static_cast<int>(d) == r.col_dim) {
        if (r.col_end.has_value()) limit = std::min(limit, value(r.col_end));
        out.c0 = std::max<std::int64_t>(0, -origin);
        out.c1 = std::min(r.cols, limit - origin);
      } else {
        outside |= origin < 0 || origin >= limit;
      }
    }
    if (outside) out.r1 = out.r0;
    return out;
  }

  std::int64_t value(const Expr& e) const { return eval(e, vars_); }

  const Program& program_;
  const std::vector<std::int64_t>& offsets_;
  std::vector<std::int64_t> vars_;
  int worker_ = 0;
  std::int64_t tile_ = -1;
  std::vector<WalkStep> steps_;
  WalkBudget budget_;
};

}  // namespace

std::string walk_obstacle(const Program& schedule, const Role& role) {
  if (role.agents.size() != 1) return "it has several agents";
  Obstacles obstacles(schedule);
  obstacles.check(role.num_tiles);
  return obstacles.of(role.agents[0].body);
}

std::vector<WalkStep> walk_role(const Program& schedule,
                                const std::vector<std::int64_t>& signal_offsets, const Role& role,
                                int rank, const std::vector<std::int64_t>& extents) {
  return Walk(schedule, signal_offsets, initial_vars(schedule, rank, extents)).run(role);
}

}  // namespace stretto
