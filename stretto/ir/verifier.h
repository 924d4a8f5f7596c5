// Decides whether a program has a meaning at its level. It runs on what the language recorded, on
// what the parser read and after every pass; what it accepts, the executor, code generation and the
// proof may take without checking again. It does not decide whether the program is correct: races,
// deadlocks and coverage are the proof's.
//
// Structure. World 1..64; vars[0] is the only rank. Names are identifiers, unique within their
// kind. Every index is in range; expressions are bounded in size, divide by no constant zero and
// use only variables that have a value there: rank, extents and scalars everywhere; the tile
// variable in its role; a loop variable in its loop (one loop per variable and agent); a `let`
// variable after the `let`, in the same block and those inside it. Registers follow the rule of
// `let` variables: one first written inside a loop or when is not defined after it. Tensor shapes
// and rows_per_rank name extents only, num_tiles the rank and extents. Tables are read in `let`
// only, from integer tensors with a contract, and never decide, nor does a scalar, whether or how
// much is notified (scalars here, tables in quota.h).
//
// Level. At tile level a role is one agent of kind body without pipes and barriers; op_info.h says
// which operations exist at which level. Only the producer puts into a pipe, only the consumer gets
// and releases. Copy-engine roles hold copies, synchronisation and control alone.
//
// Regions. One origin entry per dimension, row_dim and col_dim different, static positive sizes,
// one row where there is no row_dim. Another rank's memory must be symmetric. Inputs are not
// written. Packet buffers are touched by packet operations only, and those by nothing else.
//
// Types. [r, c] is the shape, B(x, y) the common shape after broadcasting rows and columns of 1.
//   fill               any type
//   iota               i32 [n, 1] along axis 0, [1, n] along axis 1
//   splat              [1, 1] of any dtype
//   load, load_packet  the tensor's dtype, the region's shape
//   load_rows          the same; operand i32 [rows, 1]; the region has a row_dim
//   dot, dot_async     acc f32 [m, n], a [m, k], b [k, n] floats -> f32 [m, n]; the result may be
//                      the accumulator's register, not a factor's
//   dot_scaled         the same, and scales f32 [m, 1] and f32 [1, n]
//   unary              float -> the same type; `not`: bool -> bool
//   binary             arithmetic: two of one dtype (not bool) -> B of that dtype; comparisons: two
//                      of one dtype -> B of bool; and, or: bool -> B of bool
//   where              bool condition, two of one dtype -> B of all three, that dtype
//   cast               any dtype -> any dtype, same shape
//   transpose          [r, c] -> [c, r]
//   broadcast          [r or 1, c or 1] -> [r, c], same dtype
//   reduce             f32 or i32; axis 1 -> [r, 1], axis 0 -> [1, c]; argmax gives i32
//   copy_value         the same type
//   store, store_packet, reduce_store   the region's shape; float into float tensors, others into
//                      others; reduce_store not into bool
//   store_rows         the same, and i32 [rows, 1]; the region has a row_dim
//   copy               two regions of one dtype and one tile shape
//   pipe_put           the region has the pipe's type; pipe_get gives it
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError "file:line: reason"; where the program carries no line, its name stands instead.
void verify(const Program& program);

}  // namespace stretto
