#include "stretto/ir/text_form.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

constexpr std::array kVarKinds = {"rank", "extent", "scalar", "tile", "loop", "let"};
constexpr std::array kContracts = {"none", "range", "permutation", "ascending", "partition"};
constexpr std::array kAgents = {"body", "producer", "consumer", "epilogue"};
constexpr std::array kSwizzles = {"none", "b32", "b64", "b128"};
constexpr std::array kLevels = {"tile", "schedule"};

template <typename Table, typename Enum>
const char* lookup(const Table& table, Enum value) {
  auto idx = static_cast<std::size_t>(value);
  STRETTO_CHECK(idx < table.size(), "enumerator out of range");
  return table[idx];
}

constexpr std::array<std::pair<std::string_view, Field>, 23> kFields = {{
    {"$var", Field::kVar},         {"$e0", Field::kExpr0},          {"$e1", Field::kExpr1},
    {"$e2", Field::kExpr2},        {"$from_e2", Field::kFromExpr2}, {"$rows_e0", Field::kRowsExpr0},
    {"$o0", Field::kOperand0},     {"$o1", Field::kOperand1},       {"$operands", Field::kOperands},
    {"$region", Field::kRegion},   {"$region2", Field::kRegion2},   {"$signal", Field::kSignal},
    {"$signal2", Field::kSignal2}, {"$map", Field::kMap},           {"$pipe", Field::kPipe},
    {"$barrier", Field::kBarrier}, {"$value", Field::kValue},       {"$axis", Field::kAxis},
    {"$mode", Field::kMode},       {"$unary", Field::kUnary},       {"$binary", Field::kBinary},
    {"$reduce", Field::kReduce},   {"$by_o0", Field::kByOperand0},
}};

const char* syntax_line(OpCode code) {
  using C = OpCode;
  switch (code) {
    case C::kLet:
      return "$var = $e0";
    case C::kFill:
      return "$value";
    case C::kIota:
      return "$e0 axis $axis";
    case C::kSplat:
    case C::kWhen:
    case C::kAwait:
      return "$e0";
    case C::kLoad:
    case C::kLoadPacket:
      return "$region";
    case C::kLoadRows:
      return "$o0 of $region";
    case C::kDot:
    case C::kDotAsync:
      return "$operands $rows_e0";
    case C::kDotScaled:
    case C::kWhere:
    case C::kCast:
    case C::kTranspose:
    case C::kBroadcast:
    case C::kCopyValue:
      return "$operands";
    case C::kColumns:
      return "$o0 col $e0";
    case C::kUnary:
      return "$unary $operands";
    case C::kBinary:
      return "$binary $operands";
    case C::kReduce:
      return "$reduce $operands axis $axis";
    case C::kStore:
    case C::kReduceStore:
    case C::kStorePacket:
      return "$o0 to $region";
    case C::kStoreRows:
      return "$o0 at $o1 of $region";
    case C::kCopy:
      return "$region to $region2";
    case C::kFence:
      return "";
    case C::kNotify:
      return "$signal [ $e0 ] on $e1 by $e2";
    case C::kWait:
      return "$signal [ $e0 ] >= $e1 $from_e2";
    case C::kLoop:
      return "$var from $e0 to $e1";
    case C::kProducerTileNotify:
      return "$signal2 map $map tile $e0 mode $mode";
    case C::kConsumerTileWait:
      return "$signal2 map $map rows $e0 to $e1";
    case C::kPipePut:
      return "$pipe = $region $by_o0";
    case C::kPipeFill:
      return "$pipe = $o0 col $e0";
    case C::kPipeGet:
      return "$pipe $rows_e0";
    case C::kPipeRelease:
      return "$pipe";
    case C::kArrive:
    case C::kBarrierSync:
      return "$barrier";
  }
  throw InternalError("operation without a syntax line");
}

std::vector<SyntaxPiece> split(std::string_view line) {
  std::vector<SyntaxPiece> pieces;
  while (!line.empty()) {
    std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), word.size() + 1));
    const auto* field = std::find_if(kFields.begin(), kFields.end(),
                                     [&](const auto& f) { return f.first == word; });
    pieces.push_back({field == kFields.end() ? Field::kLiteral : field->second, word});
  }
  return pieces;
}

using SyntaxTable = std::vector<std::vector<SyntaxPiece>>;
SyntaxTable make_syntax_table() {
  SyntaxTable table;
  for (int i = 0; i <= static_cast<int>(OpCode::kBarrierSync); ++i) {
    table.push_back(split(syntax_line(static_cast<OpCode>(i))));
  }
  return table;
}

}  // namespace

const char* name(VarKind kind) { return lookup(kVarKinds, kind); }
const char* name(ContractKind kind) { return lookup(kContracts, kind); }
const char* name(AgentKind kind) { return lookup(kAgents, kind); }
const char* name(Swizzle swizzle) { return lookup(kSwizzles, swizzle); }
const char* name(Level level) { return lookup(kLevels, level); }

std::span<const SyntaxPiece> op_syntax(OpCode code) {
  static const SyntaxTable kTable = make_syntax_table();
  return kTable[static_cast<std::size_t>(op_info(code).code)];
}

bool starts_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool continues_identifier(char c) {
  return starts_identifier(c) || (c >= '0' && c <= '9') || c == '.';
}
bool is_identifier(std::string_view text) {
  return !text.empty() && starts_identifier(text[0]) &&
         std::all_of(text.begin(), text.end(), continues_identifier);
}

}  // namespace stretto
