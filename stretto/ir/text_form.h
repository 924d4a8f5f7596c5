// The vocabulary that printer.cc and parser_*.cc share: names of the enumerations that appear in
// the text form, and one syntax line per operation, so that the two cannot drift apart.
#pragma once

#include <span>
#include <string_view>

#include "stretto/ir/program.h"

namespace stretto {

const char* name(VarKind kind);
const char* name(ContractKind kind);
const char* name(AgentKind kind);
const char* name(Swizzle swizzle);
const char* name(Level level);

// What stands at one place of an operation's line, after its name.
enum class Field : std::uint8_t {
  kLiteral,
  kVar,
  kExpr0,
  kExpr1,
  kExpr2,
  kFromExpr2,  // `from` exprs[2], where it is given
  kRowsExpr0,  // `rows` exprs[0], and `cols` exprs[1], where they are given
  kByOperand0,  // `by` operands[0], where it is given
  kOperand0,
  kOperand1,
  kOperands,  // all, separated by commas
  kRegion,
  kRegion2,
  kSignal,   // Op::symbol ...
  kSignal2,  // Op::symbol2
  kMap,
  kPipe,
  kBarrier,
  kValue,
  kAxis,
  kMode,
  kUnary,
  kBinary,
  kReduce,
};

struct SyntaxPiece {
  Field field;
  std::string_view literal;  // kLiteral: a word or a punctuation mark
};

std::span<const SyntaxPiece> op_syntax(OpCode code);

// A name that the text form can write without quotes: a letter or '_', then letters, digits, '_',
// '.'.
bool is_identifier(std::string_view text);
bool starts_identifier(char c);
bool continues_identifier(char c);

}  // namespace stretto
