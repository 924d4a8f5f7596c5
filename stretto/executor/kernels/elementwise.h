// Elementwise operations on register tiles (tile_ref.h): what the executor calls for every
// operation between a load and a store except products and reductions.
//
// Operands of shape [r,1], [1,c] and [1,1] broadcast to the output's [r,c]. An output may be the
// very tile that is an operand, but may not overlap one otherwise. Any strides. A wrong dtype or
// shape is an InternalError. Results have the same bits on every instruction set.
#pragma once

#include <cstdint>

#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels {

enum class Unary : std::uint8_t {
  kNeg,
  kAbs,
  kExp,
  kExp2,
  kLog,
  kSqrt,
  kRsqrt,
  kRecip,
  kTanh,
  kSigmoid,
  kSilu,
  kSin,
  kCos,
  kFloor,
  kRound,
  kNot,
};
enum class Binary : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kLt,
  kLe,
  kEq,
  kNe,
  kGt,
  kGe,
  kAnd,
  kOr,
};

const char* name(Unary op);     // "exp"
const char* name(Binary op);    // "add"
bool is_comparison(Binary op);  // its output is bool

// out = op(a). All operations take f32 (exp, exp2, log, sigmoid, tanh, sin, cos: relative error
// below 4e-7) and f64 (the C library's); neg, abs, floor and round also i32 and i64 (they wrap; the
// last two are the identity); round is to nearest even; not takes bool and gives bool.
void unary(Unary op, const TileRef& out, const ConstTileRef& a);

// out = a op b. Both operands have one dtype: f32, f64, i32, i64, i8, u8 or bool. Integers wrap;
// integer division truncates, and by zero gives 0. max and min of floats prefer the number to the
// NaN. and, or: bits of integers and bools. Comparisons give bool, everything else the operands'
// dtype.
void binary(Binary op, const TileRef& out, const ConstTileRef& a, const ConstTileRef& b);

// out = condition (bool) ? a : b, the latter of out's dtype.
void where(const TileRef& out, const ConstTileRef& condition, const ConstTileRef& a,
           const ConstTileRef& b);

// Every element = value, converted as store_element of base/dtype.h does.
void fill(const TileRef& out, double value);

// i32 or i64: first + row index (axis 0) or column index (axis 1).
void iota(const TileRef& out, std::int64_t first, int axis);

// out = a converted to out's dtype, any on either side, with broadcasting: also the
// copy and the broadcast of registers. Rules in convert.h.
void cast(const TileRef& out, const ConstTileRef& a);

// An f32 tile rounded to f16, bf16 or f8e4m3 and back, in place; f32 leaves it as it is.
void round_tile(const TileRef& tile, DType dtype);

}  // namespace stretto::kernels
