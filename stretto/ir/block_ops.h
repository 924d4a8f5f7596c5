// What operations a block has, those within loops and branches included.
#pragma once

#include <algorithm>

#include "stretto/ir/program.h"

namespace stretto {

// All of them, each before those within it.
template <typename Visit>
void for_each_op(const Block& block, const Visit& visit) {
  for (const Op& op : block) {
    visit(op);
    for (const Block& body : op.bodies) for_each_op(body, visit);
  }
}

// All that the operation itself goes by, not those within it.
template <typename Visit>
void for_each_expr(const Op& op, const Visit& visit) {
  auto if_any = [&](const Expr& expr) {
    if (expr.has_value()) visit(expr);
  };
  for (const Expr& expr : op.exprs) if_any(expr);
  for (const auto* region : {&op.region, &op.region2}) {
    if (!region->has_value()) continue;
    if_any((*region)->rank);
    if_any((*region)->row_end);
    if_any((*region)->col_end);
    for (const Expr& expr : (*region)->origin) if_any(expr);
  }
}

// Whether there is one of which `holds`; of an operation, it or one within it.
template <typename Holds>
bool any_op(const Block& block, const Holds& holds);
template <typename Holds>
bool any_op(const Op& op, const Holds& holds) {
  return holds(op) || std::any_of(op.bodies.begin(), op.bodies.end(),
                                  [&](const Block& body) { return any_op(body, holds); });
}
template <typename Holds>
bool any_op(const Block& block, const Holds& holds) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) { return any_op(op, holds); });
}

// Whether there is nothing but `kCode`, and control around it.
template <OpCode kCode>
bool only(const Block& block) {
  return !any_op(block, [](const Op& op) {
    return op.bodies.empty() && op.code != kCode && op.code != OpCode::kLet;
  });
}

}  // namespace stretto
