// What turns "this token has these experts" into rows sorted by expert, within an expert by token:
// route.h and ep_place.h have it in common. Blocks of tokens are counted, then placed, then rows
// look up their token, all by every worker of one role.
#pragma once

#include <cstdint>
#include <functional>

#include "stretto/lang/program_builder.h"

namespace stretto {

// Rows are counted in f32, exactly up to here.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 24;

struct PlacingDesc {
  Index tokens;                  // how many there are
  std::int64_t most_tokens = 1;  // its bound
  std::int64_t top_k = 1;        // experts of a token
  std::int64_t num_experts = 1;  // numbered from 0 in `chosen` and `expert`
  std::int64_t count_rows = 1;   // tokens of a block
  std::int64_t tile_slots = 1;   // rows whose token is looked up at a time
  bool some_elsewhere = false;   // not every expert of a token is among num_experts
  // Of count_rows tokens from `first` on: f32 [count_rows, num_experts], 1 where a token has the
  // expert; i32 [count_rows, 1], the j-th expert of each.
  std::function<Value(const Index& first)> chosen;
  std::function<Value(const Index& first, const Index& j)> expert;
  TensorRef slots;       // i32 [tokens, top_k]: the row of a token and one of its experts, or -1
  TensorRef offsets;     // i32 [num_experts + 1]: the first row of each expert, then the end
  TensorRef row_tokens;  // i32 [tokens * top_k, 1]: the token of each row, 0 of rows without one
};

// Of a GPU's workers: what tiles of so many experts hold keeps to the registers.
struct PlacingTiles {
  std::int64_t count_rows, tile_slots;
};
PlacingTiles gpu_placing_tiles(std::int64_t most_tokens, std::int64_t num_experts);

class Placing {
 public:
  // Makes buffers and signals.
  Placing(ProgramBuilder& p, PlacingDesc desc);

  // Counting comes first, so that a worker that takes tiles in order never waits for itself.
  TileSpace tiles() const { return p_.range(2 * blocks_ + look_ups_); }
  // The first tiles need what `chosen` and `expert` read: ready() waits for it.
  void place(const Tile& t, const std::function<void()>& ready);

 private:
  void count(const Index& block);
  void place_block(const Index& block);
  void look_up(const Index& row);

  ProgramBuilder& p_;
  PlacingDesc d_;
  std::int64_t blocks_, look_ups_;
  TensorRef counts_;       // f32 [blocks, num_experts]: rows that each block has of each expert
  TensorRef totals_;       // f32 [blocks, num_experts, 1]: rows of each expert, for each block
  TensorRef first_rows_;   // f32 [num_experts, blocks]: where a block's rows of an expert begin
  TensorRef block_slots_;  // i32 [blocks, top_k * count_rows]: slots, j-th experts together
  SignalRef counted_, placed_;
};

}  // namespace stretto
