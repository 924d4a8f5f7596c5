#include "stretto/codegen/ending_loops.h"

#include <cstdint>
#include <map>

namespace stretto {
namespace {

// How an expression changes from step to step: none, up (or not at all), down, or unknown.
enum class Course : std::uint8_t { kStill, kUp, kDown, kUnknown };

Course reversed(Course c) {
  if (c == Course::kUp) return Course::kDown;
  return c == Course::kDown ? Course::kUp : c;
}

Course together(Course a, Course b) {
  if (a == Course::kStill) return b;
  return b == Course::kStill || a == b ? a : Course::kUnknown;
}

// By variable, of those that change within the loop; all others stand still.
using Courses = std::map<int, Course>;

Course course_of(const Expr& expr, const Courses& vars) {
  const ExprNode& n = expr.node();
  auto arg = [&](std::size_t i) { return course_of(n.args[i], vars); };
  // Times or divided by a constant.
  auto scaled = [&](std::size_t i, const Expr& by) {
    if (!by.is_const()) return Course::kUnknown;
    return by.const_value() < 0 ? reversed(arg(i)) : arg(i);
  };
  bool still = n.op != ExprOp::kTable;  // an entry may change where it is read anew
  for (std::size_t i = 0; i < n.args.size(); ++i) still &= arg(i) == Course::kStill;
  switch (n.op) {
    case ExprOp::kVar: {
      auto found = vars.find(static_cast<int>(n.value));
      return found == vars.end() ? Course::kStill : found->second;
    }
    case ExprOp::kAdd:
    case ExprOp::kMin:
    case ExprOp::kMax:
      return together(arg(0), arg(1));
    case ExprOp::kSub:
      return together(arg(0), reversed(arg(1)));
    case ExprOp::kMul:
      if (!still) return n.args[0].is_const() ? scaled(1, n.args[0]) : scaled(0, n.args[1]);
      return Course::kStill;
    case ExprOp::kFloorDiv:
      return still ? Course::kStill : scaled(0, n.args[1]);
    default:
      return still ? Course::kStill : Course::kUnknown;
  }
}

}  // namespace

bool ends_with_condition(const Op& loop) {
  const Block& body = loop.bodies[0];
  if (loop.code != OpCode::kLoop || body.empty() || body.back().code != OpCode::kWhen) return false;
  const Op& when = body.back();
  if (when.bodies.size() > 1 && !when.bodies[1].empty()) return false;
  Courses vars = {{loop.var, Course::kUp}};
  for (const Op& op : body) {
    if (&op == &when) break;
    if (op.code != OpCode::kLet) return false;
    vars[op.var] = course_of(op.exprs[0], vars);
  }
  const ExprNode& condition = when.exprs[0].node();
  if (condition.op != ExprOp::kLt && condition.op != ExprOp::kLe) return false;
  Course left = course_of(condition.args[0], vars), right = course_of(condition.args[1], vars);
  return together(left, reversed(right)) == Course::kUp;
}

}  // namespace stretto
