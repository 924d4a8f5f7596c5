#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "stretto/ir/limits.h"
#include "stretto/ir/parser_impl.h"

namespace stretto {
namespace {

struct BinarySyntax {
  std::string_view mark;
  ExprOp op;
  int precedence;
};
constexpr int kComparison = 3;
constexpr BinarySyntax kBinaries[] = {
    {"||", ExprOp::kOr, 1}, {"&&", ExprOp::kAnd, 2}, {"<", ExprOp::kLt, kComparison},
    {"<=", ExprOp::kLe, 3}, {"==", ExprOp::kEq, 3},  {"+", ExprOp::kAdd, 4},
    {"-", ExprOp::kSub, 4}, {"*", ExprOp::kMul, 5},  {"/", ExprOp::kFloorDiv, 5},
    {"%", ExprOp::kMod, 5},
};

const BinarySyntax* find_binary(const Token& token) {
  if (token.kind != TokenKind::kPunct) return nullptr;
  for (const BinarySyntax& b : kBinaries) {
    if (b.mark == token.text) return &b;
  }
  return nullptr;
}

// Would folding two constants leave 64 bits?
bool fold_overflows(ExprOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case ExprOp::kAdd:
      return __builtin_add_overflow(a, b, &result);
    case ExprOp::kSub:
      return __builtin_sub_overflow(a, b, &result);
    case ExprOp::kMul:
      return __builtin_mul_overflow(a, b, &result);
    case ExprOp::kFloorDiv:
    case ExprOp::kMod:
      return a == std::numeric_limits<std::int64_t>::min() && b == -1;
    default:
      return false;
  }
}

}  // namespace

void Parser::count_node() {
  if (++num_expr_nodes_ > kMaxExprNodes) {
    reader_.expected(fmt::format("an expression of at most {} parts", kMaxExprNodes));
  }
}

Parser::Parsed Parser::make(const Token& at, ExprOp op, const std::vector<Parsed>& args) {
  Parsed result;
  std::vector<Expr> exprs;
  for (const Parsed& arg : args) {
    result.depth = std::max(result.depth, arg.depth + 1);
    exprs.push_back(arg.expr);
  }
  if (result.depth > kMaxExprDepth) {
    reader_.fail(at, fmt::format("expected an expression at most {} deep", kMaxExprDepth));
  }
  if (exprs.size() == 2 && exprs[0].is_const() && exprs[1].is_const() &&
      fold_overflows(op, exprs[0].const_value(), exprs[1].const_value())) {
    reader_.fail(at, "expected constants whose result fits 64 bits");
  }
  result.expr = Expr::make(op, std::move(exprs));
  return result;
}

Expr Parser::expr() {
  num_expr_nodes_ = 0;
  return binary(0, 0).expr;
}

std::vector<Expr> Parser::expr_list(std::string_view open, std::string_view close) {
  std::vector<Expr> exprs;
  reader_.expect_mark(open);
  if (reader_.accept_mark(close)) return exprs;
  do {
    exprs.push_back(expr());
  } while (reader_.accept_mark(","));
  reader_.expect_mark(close);
  return exprs;
}

// Precedence climbing; comparisons do not chain.
Parser::Parsed Parser::binary(int min_precedence, int nesting) {
  Parsed left = unary(nesting);
  int max_precedence = std::numeric_limits<int>::max();
  for (;;) {
    const BinarySyntax* syntax = find_binary(reader_.peek());
    if (syntax == nullptr || syntax->precedence < min_precedence ||
        syntax->precedence > max_precedence) {
      return left;
    }
    Token at = reader_.take();
    Parsed right = binary(syntax->precedence + 1, nesting + 1);
    left = make(at, syntax->op, {left, right});
    max_precedence = syntax->precedence == kComparison ? kComparison - 1 : syntax->precedence;
  }
}

Parser::Parsed Parser::unary(int nesting) {
  if (nesting > kMaxExprDepth) {
    reader_.expected(fmt::format("an expression nested at most {} deep", kMaxExprDepth));
  }
  count_node();
  const Token start = reader_.peek();
  if (reader_.accept_mark("!")) return make(start, ExprOp::kNot, {unary(nesting + 1)});
  if (reader_.accept_mark("(")) {
    Parsed inner = binary(0, nesting + 1);
    reader_.expect_mark(")");
    return inner;
  }
  if (start.kind == TokenKind::kVar) return {Expr::var(resolve(vars_, TokenKind::kVar, "a var"))};
  if (start.kind == TokenKind::kTensor) {
    int tensor_idx = resolve(tensors_, TokenKind::kTensor, "a tensor");
    Parsed result;
    std::vector<Expr> index;
    reader_.expect_mark("[");
    do {
      Parsed entry = binary(0, nesting + 1);
      result.depth = std::max(result.depth, entry.depth + 1);
      index.push_back(entry.expr);
    } while (reader_.accept_mark(","));
    reader_.expect_mark("]");
    result.expr = Expr::table(tensor_idx, std::move(index));
    return result;
  }
  if (reader_.accept_word("min")) return call(ExprOp::kMin, 2, nesting);
  if (reader_.accept_word("max")) return call(ExprOp::kMax, 2, nesting);
  if (reader_.accept_word("select")) return call(ExprOp::kSelect, 3, nesting);
  if (start.kind != TokenKind::kNumber && !reader_.at_mark("-")) {
    reader_.expected("an index expression");
  }
  return {Expr(reader_.any_integer<std::int64_t>("a whole number"))};
}

Parser::Parsed Parser::call(ExprOp op, std::size_t num_args, int nesting) {
  const Token at = reader_.peek();
  std::vector<Parsed> args;
  reader_.expect_mark("(");
  for (std::size_t i = 0; i < num_args; ++i) {
    if (i > 0) reader_.expect_mark(",");
    args.push_back(binary(0, nesting + 1));
  }
  reader_.expect_mark(")");
  return make(at, op, args);
}

}  // namespace stretto
