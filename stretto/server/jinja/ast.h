// What a template says, as a tree. Made by parser.h, run by evaluator.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stretto/server/jinja/value.h"

namespace stretto::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : std::uint8_t {
    kConstant,   // constant
    kName,       // word
    kAttribute,  // parts[0].word
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts: begin, end, step; each may be null
    kList,       // parts
    kTuple,      // parts
    kDict,       // parts: key, value, key, value, ...
    kUnary,      // word ("not", "-", "+") of parts[0]
    kBinary,     // parts[0] word parts[1]; words "and" and "or", too
    kCompare,    // parts[0] words[0] parts[1] words[1] parts[2] ...
    kConcat,     // parts, joined by ~
    kCondition,  // parts[0] if parts[1] else parts[2], which may be null
    kCall,       // parts[0] (parts[1], ..., named)
    kFilter,     // parts[0] | word (parts[1], ..., named); parts[0] is null in filter blocks
    kTest,       // parts[0] is word (parts[1], ..., named)
  };
  Kind kind;
  int line = 0;
  std::string word = {};
  Value constant = {};
  std::vector<std::string> words = {};
  std::vector<ExprPtr> parts = {};
  std::vector<std::pair<std::string, ExprPtr>> named = {};
};

// What a set or a for assigns to: a name, an attribute of a namespace, or a list of these.
struct Target {
  std::string name;
  std::string attribute;      // "": the name itself
  std::vector<Target> parts;  // of a list
  bool is_list = false;
};

struct Statement;
using Statements = std::vector<Statement>;

struct Statement {
  enum class Kind : std::uint8_t {
    kData,        // text
    kPrint,       // expr
    kIf,          // expr, body, other
    kFor,         // target in expr if condition; body, other
    kSet,         // target = expr
    kSetBlock,    // target = body through the filters of expr, which may be null
    kMacro,       // name, parameters; body
    kFilter,      // body through the filters of expr
    kWith,        // parameters; body
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  Text text = {};
  std::string name = {};
  Target target = {};
  ExprPtr expr = {}, condition = {};
  std::vector<std::pair<std::string, ExprPtr>> parameters = {};  // null: without a default
  Statements body = {}, other = {};
};

}  // namespace stretto::jinja
