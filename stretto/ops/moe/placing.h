// The two roles that turn "this token has these experts" into rows sorted by expert, within an
// expert by token: route.h and ep_place.h have them in common.
#pragma once

#include <cstdint>
#include <functional>

#include "stretto/lang/program_builder.h"

namespace stretto {

// Rows are counted in f32, exactly up to here.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 24;

struct Placing {
  Index tokens;                  // how many there are
  std::int64_t top_k = 1;        // experts of a token
  std::int64_t num_experts = 1;  // numbered from 0 in `chosen` and `expert`
  std::int64_t count_rows = 1;   // tokens counted at a time
  std::int64_t tile_slots = 1;   // rows whose token is looked up at a time
  bool some_elsewhere = false;   // not every expert of a token is among num_experts
  // Of count_rows tokens from `first` on: f32 [count_rows, num_experts], 1 where a token has the
  // expert; i32 [count_rows, 1], the j-th expert of each.
  std::function<Value(const Index& first)> chosen;
  std::function<Value(const Index& first, const Index& j)> expert;
  TensorRef counts;      // buffer f32 [num_experts, 1]
  TensorRef columns;     // buffer i32 [top_k, tokens]: slots, transposed
  TensorRef slots;       // i32 [tokens, top_k]: the row of a token and one of its experts, or -1
  TensorRef offsets;     // i32 [num_experts + 1]: the first row of each expert, then the end
  TensorRef row_tokens;  // i32 [tokens * top_k, 1]: the token of each row, 0 of rows without one
};

// By one worker, since a token's row depends on all tokens before it. Writes columns, slots and
// offsets.
void place_rows(ProgramBuilder& p, const Placing& placing);

// Tile t of row_tokens, after place_rows.
void look_up_tokens(ProgramBuilder& p, const Placing& placing, const Tile& t);

}  // namespace stretto
