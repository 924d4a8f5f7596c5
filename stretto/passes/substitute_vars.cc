#include "stretto/passes/substitute_vars.h"

namespace stretto {

void substitute_vars(Block& block, const std::vector<Expr>& replacement) {
  auto apply = [&](Expr& e) {
    if (e.has_value()) e = substitute(e, replacement);
  };
  for (Op& op : block) {
    for (Expr& e : op.exprs) apply(e);
    for (auto* region : {&op.region, &op.region2}) {
      if (!region->has_value()) continue;
      for (Expr& e : (*region)->origin) apply(e);
      apply((*region)->rank);
      apply((*region)->row_end);
      apply((*region)->col_end);
    }
    for (Block& body : op.bodies) substitute_vars(body, replacement);
  }
}

}  // namespace stretto
