// What turns "this token has these experts" into rows sorted by expert, within an expert by token:
// route.h and ep_place.h have it in common. Parts of the tokens are counted, each by itself, then
// placed with the counts of all, then rows look up their token, all by every worker of one role.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

// Rows, and the experts of every part, are numbered in i32.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 24;

struct PlacingTiles {
  std::int64_t part_tokens = 64;    // tokens of a part
  std::int64_t count_tokens = 64;   // so many are counted at a time; divides part_tokens
  std::int64_t count_experts = 64;  // with so many experts
  std::int64_t add_counts = 4096;   // counts of parts and experts that are added up at a time
  std::int64_t tile_slots = 64;     // rows whose token is looked up at a time
  friend bool operator==(const PlacingTiles&, const PlacingTiles&) = default;
};
NamedFields fields_of(PlacingTiles& tiles);
PlacingTiles default_placing_tiles(std::int64_t most_tokens, std::int64_t top_k,
                                   std::int64_t num_experts, int num_workers, Target target);
// UserError naming `op` and the field that is less than one or does not divide.
void check_placing_tiles(const char* op, const PlacingTiles& tiles);

struct PlacingDesc {
  Index tokens;                  // how many there are
  std::int64_t most_tokens = 1;  // its bound
  std::int64_t top_k = 1;        // experts of a token, all different
  std::int64_t num_experts = 1;
  PlacingTiles tiles;
  bool some_elsewhere = false;  // only the experts from first_expert on are placed
  Index first_expert = 0;
  TensorRef experts;     // i32 [tokens, top_k]: those of each token, below zero: none
  TensorRef slots;       // i32 [tokens, top_k]: the row of a token and one of its experts, or -1
  TensorRef offsets;     // i32 [num_experts + 1]: the first row of each expert, then the end
  TensorRef row_tokens;  // i32 [tokens * top_k, 1]: the token of each row, 0 of rows without one
};

class Placing {
 public:
  // Makes buffers and signals.
  Placing(ProgramBuilder& p, PlacingDesc desc);

  // A part's tokens are counted in blocks. Counting comes before the tiles of place(), so that a
  // worker that takes tiles in order never waits for itself.
  std::int64_t num_parts() const { return parts_; }
  std::int64_t num_blocks() const { return parts_ * blocks_of_part_; }
  // Block `index` of all needs the experts of its part's tokens: ready(part) waits for them.
  void count(const Index& index, const std::function<void(const Index& part)>& ready);
  std::int64_t num_tiles() const { return (alone() ? 0 : parts_) + look_ups_; }
  void place(const Index& index);

 private:
  // By expert, [1, E] each.
  struct Totals {
    Value before, all;  // pairs in the parts before, in all
  };

  // Who counts the only block places it.
  bool alone() const { return num_blocks() == 1; }
  std::int64_t pairs_of_part() const { return d_.tiles.part_tokens * d_.top_k; }
  std::int64_t rows_at_once() const;
  Value number(const Index& value) const { return p_.splat(DType::kI32, value); }
  Value zeros(std::int64_t rows, std::int64_t cols) const {
    return p_.zeros(DType::kI32, rows, cols);
  }
  // For each token's j-th expert, [part_tokens, 1].
  struct Pairs {
    std::vector<Value> expert, rank;  // rank: among the part's pairs of the expert; -1: elsewhere
  };
  // Rows of columns_.
  enum Column : std::uint8_t { kOwn, kAll, kBegin, kShift, kColumns };

  Slice of_part(const TensorRef& table, const Index& part) const;  // [1, E]
  Slice kept(const Index& part, Column column, const Index& first, std::int64_t count) const;

  void count_block(const Index& part, const Index& block);
  std::vector<Value> load_experts(const Index& first, std::int64_t count);
  std::vector<Value> experts_of(const Index& first);
  Value chosen(const std::vector<Value>& experts, const Value& columns);
  void place_part(const Index& part);
  Totals add_up(const Index& part);
  Totals sums_before(const Index& part, const Value& own, const Value& all);
  Pairs load_pairs(const Index& part);
  void place_pairs(const Index& part, const Pairs& pairs);
  void look_up(const Index& row);
  Value last_that_begins(std::int64_t count, const Value& row,
                         const std::function<Value(const Value&)>& entry) const;

  ProgramBuilder& p_;
  PlacingDesc d_;
  std::int64_t parts_, blocks_of_part_, look_ups_;
  TensorRef counts_;     // [parts, 1, E] pairs that each part has of each expert
  TensorRef ranks_;      // [parts, top_k, part_tokens] of a pair among its part's of its expert
  TensorRef columns_;    // [parts, 4, E] what a part knows of every expert: its own pairs, those of
                         // all, begins_ and shifts_
  TensorRef begins_;     // [parts * E, 1] where a part's rows of an expert begin
  TensorRef shifts_;     // [parts * E, 1] from a part's order to these rows
  TensorRef scattered_;  // [parts, N, 1] of N pairs of a part, the tokens in its order
  TensorRef sorted_;     // [parts * N, 1] the same
  TensorRef placed_rows_;  // [1, 1] how many rows have a token
  SignalRef counted_, placed_;
};

}  // namespace stretto
