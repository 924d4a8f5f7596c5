#include "stretto/proof/conditions.h"

namespace stretto {

bool Conditions::facts_of(const Expr& condition, std::vector<int>& facts) {
  const ExprNode& n = condition.node();
  if (n.op != ExprOp::kAnd) return fact_of(condition, facts);
  return facts_of(n.args[0], facts) && facts_of(n.args[1], facts);
}

bool Conditions::fact_of(const Expr& condition, std::vector<int>& facts) {
  if (state_.scope.range(condition).exact()) return true;
  TableChoices& choices = *state_.graph.choices;
  if (std::optional<TablePoint> part = inhabited_part(condition)) {
    facts.push_back(choices.fact(inhabited_from(*part)));
    return true;
  }
  std::optional<std::string> text = state_.scope.text(condition);
  if (!text) return false;
  facts.push_back(choices.fact({.kind = FactKind::kCondition, .entry = {}, .condition = *text}));
  return true;
}

std::optional<TablePoint> Conditions::inhabited_part(const Expr& condition) {
  const ExprNode& n = condition.node();
  if (!state_.has_cells || n.op != ExprOp::kLt) return std::nullopt;
  std::optional<TablePoint> from = state_.scope.table_point(n.args[0]);
  std::optional<TablePoint> end = state_.scope.table_point(n.args[1]);
  if (!from || !end || from->scale != 1 || from->offset < 0) return std::nullopt;
  const Tensor& table = state_.program.tensors[static_cast<std::size_t>(from->table)];
  if (table.contract.kind != ContractKind::kPartition) return std::nullopt;
  return *end == TablePoint{.table = from->table, .entry = from->entry + 1} ? from : std::nullopt;
}

// i < (rows + more) / by where rows > (i + 1) * by - more - 1.
std::optional<TablePoint> Conditions::part_of_iteration(std::int64_t iteration, const Expr& end) {
  if (!state_.has_cells) return std::nullopt;
  const ExprNode& n = end.node();
  bool divided = n.op == ExprOp::kFloorDiv && state_.scope.range(n.args[1]).exact();
  std::int64_t by = divided ? state_.scope.range(n.args[1]).lo : 1;
  std::optional<TablePoint> rows = state_.scope.rows_of_part(divided ? n.args[0] : end);
  if (!rows || by <= 0) return std::nullopt;
  rows->offset = (iteration + 1) * by - rows->offset - 1;
  return rows->offset >= 0 ? rows : std::nullopt;
}

}  // namespace stretto
