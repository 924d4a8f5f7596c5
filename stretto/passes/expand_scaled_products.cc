#include "stretto/passes/expand_scaled_products.h"

#include <utility>

namespace stretto {
namespace {

class Expander {
 public:
  explicit Expander(Agent& agent) : agent_(agent) {}

  void run() { expand(agent_.body); }

 private:
  int register_like(int reg) {
    ValueType type = agent_.values[static_cast<std::size_t>(reg)];
    agent_.values.push_back(type);
    return static_cast<int>(agent_.values.size()) - 1;
  }

  void expand(Block& block) {
    Block out;
    for (Op& op : block) {
      for (Block& body : op.bodies) expand(body);
      if (op.code == OpCode::kDotScaled) {
        append_parts(op, out);
      } else {
        out.push_back(std::move(op));
      }
    }
    block = std::move(out);
  }

  void append_parts(const Op& op, Block& out) {
    auto in = [&](std::size_t i) { return op.operands[i]; };
    int zero = register_like(op.result), part = register_like(op.result),
        scale = register_like(op.result), scaled = register_like(op.result);
    auto binary = [&](BinaryOp what, int result, int a, int b) {
      out.push_back({.code = OpCode::kBinary,
                     .result = result,
                     .operands = {a, b},
                     .binary = what,
                     .loc = op.loc});
    };
    out.push_back({.code = OpCode::kFill, .result = zero, .value = 0, .loc = op.loc});
    out.push_back(
        {.code = OpCode::kDot, .result = part, .operands = {zero, in(1), in(2)}, .loc = op.loc});
    binary(BinaryOp::kMul, scale, in(3), in(4));
    // Not in place: the next product into `part` would read what was written there.
    binary(BinaryOp::kMul, scaled, part, scale);
    binary(BinaryOp::kAdd, op.result, in(0), scaled);
  }

  Agent& agent_;
};

}  // namespace

Program expand_scaled_products(Program program) {
  for (Role& role : program.roles) {
    if (role.resource.num_stages == 0) continue;
    for (Agent& agent : role.agents) Expander(agent).run();
  }
  return program;
}

}  // namespace stretto
