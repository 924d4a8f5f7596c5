// Integer index expressions: the only arithmetic that decides where a tile lies, which channel it
// uses and how often a loop runs. They are data, evaluated by the executor and the proof and
// printed by code generation, so one definition of "which bytes" serves every reader.
//
// Nodes are immutable and shared. Division and modulo are floored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/ceil_div.h"  // beside that of expressions
#include "stretto/base/errors.h"

namespace stretto {

// An expression without a value: divided by zero, or past 64 bits. Whoever knows the source line
// adds it.
class NoValue : public UserError {
 public:
  using UserError::UserError;
};

enum class ExprOp : std::uint8_t {
  kConst,
  kVar,
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kMin,
  kMax,
  kLt,
  kLe,
  kEq,
  kAnd,
  kOr,
  kNot,
  kSelect,  // condition, then, else
  kTable,   // element of an integer tensor of the own rank; appears only in a `let`, which fixes
            // when it is read
};

struct ExprNode;

// A handle that behaves like an integer; default-constructed it is "absent" (see has_value).
class Expr {
 public:
  Expr() = default;
  Expr(std::int64_t value);  // NOLINT: a constant is an expression
  Expr(int value) : Expr(static_cast<std::int64_t>(value)) {}

  static Expr var(int var_idx);
  // The entry tensor[index...] on the own rank.
  static Expr table(int tensor_idx, std::vector<Expr> index);
  // Folds constants and the identities x+0, x*1, x*0, x/1, min(x,x), select(const,..).
  static Expr make(ExprOp op, std::vector<Expr> args);

  bool has_value() const { return node_ != nullptr; }
  const ExprNode& node() const { return *node_; }
  bool is_const() const;
  bool is_const(std::int64_t value) const;
  std::int64_t const_value() const;    // InternalError unless is_const()
  bool same(const Expr& other) const;  // structural equality

 private:
  explicit Expr(std::shared_ptr<const ExprNode> node) : node_(std::move(node)) {}
  std::shared_ptr<const ExprNode> node_;
};

struct ExprNode {
  ExprOp op;
  std::int64_t value;  // kConst: the constant; kVar: variable index; kTable: tensor index
  std::vector<Expr> args;
};

Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, const Expr& b);
Expr operator/(const Expr& a, const Expr& b);  // floored
Expr operator%(const Expr& a, const Expr& b);  // floored: the result has the divisor's sign
Expr operator<(const Expr& a, const Expr& b);
Expr operator<=(const Expr& a, const Expr& b);
Expr operator==(const Expr& a, const Expr& b);
Expr operator!=(const Expr& a, const Expr& b);
Expr operator&&(const Expr& a, const Expr& b);
Expr operator||(const Expr& a, const Expr& b);
Expr operator!(const Expr& a);
inline Expr operator>(const Expr& a, const Expr& b) { return b < a; }
inline Expr operator>=(const Expr& a, const Expr& b) { return b <= a; }
Expr min(const Expr& a, const Expr& b);
Expr max(const Expr& a, const Expr& b);
Expr select(const Expr& condition, const Expr& then, const Expr& otherwise);
Expr ceil_div(const Expr& a, const Expr& b);

// Reads one element of an integer tensor of the own rank while an expression is evaluated.
class TableReader {
 public:
  virtual ~TableReader() = default;
  virtual std::int64_t read(int tensor_idx, std::span<const std::int64_t> index) = 0;
};

// `vars` holds one value per Program::vars entry; `tables` may be null where no table is read.
// NoValue where there is none.
std::int64_t eval(const Expr& expr, std::span<const std::int64_t> vars,
                  TableReader* tables = nullptr);

// Calls visit(var_idx) for every variable, and table(tensor_idx) for every table, in `expr`.
bool uses_var(const Expr& expr, int var_idx);
bool uses_table(const Expr& expr);

// Replaces variables: replacement[var_idx], where that entry exists and has a value.
Expr substitute(const Expr& expr, std::span<const Expr> replacement);

}  // namespace stretto
