#include <fmt/format.h>

#include <charconv>

#include "stretto/base/printable.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/parser_impl.h"

namespace stretto {

Block Parser::block(int depth) {
  if (depth > kMaxNesting) {
    reader_.expected(fmt::format("blocks nested at most {} deep", kMaxNesting));
  }
  Block ops;
  while (!reader_.accept_mark("}")) ops.push_back(op(depth));
  return ops;
}

Op Parser::op(int depth) {
  Op op;
  const Token start = reader_.peek();
  if (start.kind == TokenKind::kRegister) {
    op.result = register_number("a register");
    reader_.expect_mark("=");
  }
  if (reader_.peek().kind != TokenKind::kWord) reader_.expected("an operation or '}'");
  const OpInfo* info = find_op(reader_.peek().text);
  if (info == nullptr) reader_.expected("the name of an operation");
  if (info->has_result != (op.result >= 0)) {
    reader_.expected(info->has_result ? "a register and '=' before this operation"
                                      : "an operation that writes a register");
  }
  reader_.take();
  op.code = info->code;
  for (const SyntaxPiece& p : op_syntax(op.code)) piece(op, *info, p);
  if (reader_.accept_word("stage")) op.stage = reader_.any_integer<int>("a stage");
  if (reader_.accept_word("multicast")) {
    op.multicast = reader_.any_integer<std::uint32_t>("a mask of CTAs");
  }
  op.loc = loc(start);
  if (info->num_bodies > 0) bodies(op, *info, depth);
  return op;
}

void Parser::bodies(Op& op, const OpInfo& info, int depth) {
  op.bodies.resize(static_cast<std::size_t>(info.num_bodies));
  reader_.expect_mark("{");
  op.bodies[0] = block(depth + 1);
  if (info.num_bodies > 1 && reader_.accept_word("else")) {
    reader_.expect_mark("{");
    op.bodies[1] = block(depth + 1);
  }
}

void Parser::piece(Op& op, const OpInfo& info, const SyntaxPiece& p) {
  switch (p.field) {
    case Field::kLiteral:
      return starts_identifier(p.literal[0]) ? reader_.expect_word(p.literal)
                                             : reader_.expect_mark(p.literal);
    case Field::kVar:
      op.var = resolve(vars_, TokenKind::kVar, "a variable");
      return;
    case Field::kExpr0:
    case Field::kExpr1:
    case Field::kExpr2:
      op.exprs.push_back(expr());
      return;
    case Field::kFromExpr2:
      if (reader_.accept_word("from")) op.exprs.push_back(expr());
      return;
    case Field::kRowsExpr0:
      if (!reader_.accept_word("rows")) return;
      op.exprs.push_back(expr());
      if (reader_.accept_word("cols")) op.exprs.push_back(expr());
      return;
    case Field::kByOperand0:
      if (reader_.accept_word("by"))
        op.operands.push_back(register_number("an operand such as $0"));
      return;
    case Field::kOperand0:
    case Field::kOperand1:
      op.operands.push_back(register_number("an operand such as $0"));
      return;
    case Field::kOperands:
      return operands(op, info);
    case Field::kRegion:
      op.region = region();
      return;
    case Field::kRegion2:
      op.region2 = region();
      return;
    case Field::kSignal:
      op.symbol = resolve(signals_, TokenKind::kWord, "a signal");
      return;
    case Field::kSignal2:
      op.symbol2 = resolve(signals_, TokenKind::kWord, "a signal");
      return;
    case Field::kMap:
      op.symbol = resolve(maps_, TokenKind::kWord, "a tile map");
      return;
    case Field::kPipe:
      op.symbol = resolve(pipes_, TokenKind::kWord, "a pipe of this role");
      return;
    case Field::kBarrier:
      op.symbol = resolve(barriers_, TokenKind::kWord, "a barrier of this role");
      return;
    case Field::kValue:
      op.value = reader_.real();
      return;
    case Field::kAxis:
      op.axis = static_cast<int>(reader_.integer(0, 1, "an axis"));
      return;
    default:
      return enumerator(op, p.field);
  }
}

void Parser::enumerator(Op& op, Field field) {
  auto name_of = [](auto value) { return name(value); };
  if (field == Field::kMode) {
    op.mode = reader_.one_of<NotifyMode>(static_cast<int>(NotifyMode::kLocal) + 1,
                                         "p2p, broadcast or local", name_of);
  } else if (field == Field::kUnary) {
    op.unary = reader_.one_of<UnaryOp>(static_cast<int>(UnaryOp::kNot) + 1,
                                       "the name of a unary function", name_of);
  } else if (field == Field::kBinary) {
    op.binary = reader_.one_of<BinaryOp>(static_cast<int>(BinaryOp::kOr) + 1,
                                         "the name of a binary function", name_of);
  } else {
    op.reduce = reader_.one_of<ReduceOp>(static_cast<int>(ReduceOp::kArgMax) + 1,
                                         "sum, max, min or argmax", name_of);
  }
}

void Parser::operands(Op& op, const OpInfo& info) {
  do {
    op.operands.push_back(register_number("an operand such as $0"));
  } while (static_cast<int>(op.operands.size()) < info.max_operands && reader_.accept_mark(","));
  if (static_cast<int>(op.operands.size()) < info.min_operands) {
    reader_.expected(fmt::format("{} operands", info.min_operands));
  }
}

int Parser::register_number(const char* what) {
  const Token at = reader_.expect(TokenKind::kRegister, what);
  int number = -1;
  auto [end, error] = std::from_chars(at.text.data(), at.text.data() + at.text.size(), number);
  if (error != std::errc{} || static_cast<std::size_t>(number) >= num_values_) {
    reader_.fail(at, fmt::format("expected a register declared under 'values', got '${}'",
                                 printable(at.text, 40)));
  }
  return number;
}

Region Parser::region() {
  Region r;
  r.tensor = resolve(tensors_, TokenKind::kTensor, "a tensor such as @a");
  r.origin = expr_list("[", "]");
  int num_dims = static_cast<int>(r.origin.size());
  r.row_dim = num_dims - 2;
  r.col_dim = num_dims - 1;
  if (reader_.accept_word("on")) r.rank = expr();
  reader_.expect_word("tile");
  reader_.expect_mark("[");
  r.rows = reader_.any_integer<std::int64_t>("a number of rows");
  reader_.expect_mark(",");
  r.cols = reader_.any_integer<std::int64_t>("a number of columns");
  reader_.expect_mark("]");
  if (reader_.accept_word("dims")) {
    r.row_dim = reader_.any_integer<int>("a dimension");
    reader_.expect_mark(",");
    r.col_dim = reader_.any_integer<int>("a dimension");
  }
  if (reader_.accept_word("until_row")) r.row_end = expr();
  if (reader_.accept_word("until_col")) r.col_end = expr();
  return r;
}

}  // namespace stretto
