#include "stretto/codegen/joined_steps.h"

#include <algorithm>

namespace stretto {
namespace {

class Joiner {
 public:
  Joiner(const Program& program, const Role& role) : program_(program), role_(role) {}

  void run(RolePlan& plan) const {
    for (PipeGroup& group : plan.groups) {
      auto pipe = [&](int p) -> PipePlan& { return plan.pipes[static_cast<std::size_t>(p)]; };
      auto holds = [&](auto what) {
        return [&, what](int p) { return (this->*what)(p, pipe(p)); };
      };
      const std::vector<int>& pipes = group.pipes;
      if (!std::all_of(pipes.begin(), pipes.end(), holds(&Joiner::takes_whole_rounds))) continue;
      if (std::none_of(pipes.begin(), pipes.end(), holds(&Joiner::gathers))) continue;
      group.steps = kJoinedSteps;
      std::int64_t rounds = ceil_div(std::int64_t{group.num_slots}, std::int64_t{kJoinedSteps});
      group.num_slots = static_cast<int>(std::max<std::int64_t>(rounds, 2)) * kJoinedSteps;
      for (int p : pipes) pipe(p).joined = is_column(p, pipe(p));
    }
  }

 private:
  const Block& producer(int pipe) const {
    int agent = role_.pipes[static_cast<std::size_t>(pipe)].producer;
    return role_.agents[static_cast<std::size_t>(agent)].body;
  }

  // Of vectors that threads load, in every loop.
  bool takes_whole_rounds(int pipe, const PipePlan& plan) const {
    return plan.packed && std::all_of(plan.puts.begin(), plan.puts.end(), [&](const Op* put) {
             const Op* loop = loop_around(producer(pipe), *put);
             return put->operands.empty() && loop != nullptr && in_whole_rounds(*loop);
           });
  }

  static bool in_whole_rounds(const Op& loop) {
    auto divides = [](const Expr& e) {
      return e.is_const() && e.const_value() % kJoinedSteps == 0;
    };
    return divides(loop.exprs[0]) && divides(loop.exprs[1]) &&
           std::all_of(loop.bodies[0].begin(), loop.bodies[0].end(),
                       [](const Op& op) { return op.code == OpCode::kPipePut; });
  }

  bool gathers(int pipe, const PipePlan& plan) const {
    return role_.pipes[static_cast<std::size_t>(pipe)].type.rows > 1 && is_column(pipe, plan);
  }

  // Whether each step takes the next column, of rows that begin at multiples of 16 bytes.
  bool is_column(int pipe, const PipePlan& plan) const {
    const ValueType& type = role_.pipes[static_cast<std::size_t>(pipe)].type;
    return type.cols == 1 && size_bytes(type.dtype) == 4 &&
           std::all_of(plan.puts.begin(), plan.puts.end(), [&](const Op* put) {
             return moves_along_rows(*put->region, *loop_around(producer(pipe), *put));
           });
  }

  bool moves_along_rows(const Region& r, const Op& loop) const {
    const Tensor& t = program_.tensors[static_cast<std::size_t>(r.tensor)];
    std::vector<std::int64_t> strides = row_major_strides(program_, r.tensor);
    int last = static_cast<int>(strides.size()) - 1;
    const Expr& width = t.shape[static_cast<std::size_t>(last)];
    bool inside = width.is_const() && loop.exprs[1].const_value() <= width.const_value();
    if (r.col_dim != last || r.col_end.has_value() || t.num_slots > 1 || !inside) return false;
    auto changes = [&](const Expr& e) { return e.has_value() && uses_var(e, loop.var); };
    if (changes(r.rank) || changes(r.row_end)) return false;
    for (int d = 0; d < last; ++d) {
      auto dim = static_cast<std::size_t>(d);
      if (changes(r.origin[dim]) || strides[dim] % kJoinedSteps != 0) return false;
    }
    return r.origin[static_cast<std::size_t>(last)].same(Expr::var(loop.var));
  }

  const Program& program_;
  const Role& role_;
};

}  // namespace

void join_steps(const Program& program, const Role& role, RolePlan& plan) {
  Joiner(program, role).run(plan);
}

const Op* loop_around(const Block& block, const Op& put) {
  for (const Op& op : block) {
    for (const Block& body : op.bodies) {
      bool here = std::any_of(body.begin(), body.end(), [&](const Op& o) { return &o == &put; });
      if (here) return op.code == OpCode::kLoop ? &op : nullptr;
      if (const Op* inner = loop_around(body, put)) return inner;
    }
  }
  return nullptr;
}

}  // namespace stretto
