// A product of the first columns of its right factor, which is what rows of a tile are where they
// stand on the right: how many exist is known at the launch only.
#pragma once

#include "stretto/lang/value.h"

namespace stretto {

// acc [m,n] f32 + a [m,k] * b [k,n], accumulated in fp32. b's columns from `columns` on are zero;
// GPUs leave them out by quarters of a tile of 64 columns or more, CPU ranks all of them. In the
// program it is a kDot whose exprs[0] are all rows, exprs[1] the columns.
Value dot_of_columns(const LocatedValue& acc, const Value& a, const Value& b, const Expr& columns);

}  // namespace stretto
