// The tables of expert_tiles.h made by roles of a program: expert_tables.cc is one of nothing else,
// ep_moe_layer.cc one that goes on with them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/moe/expert_tables.h"

namespace stretto {

// UserError naming the field.
void check(const ExpertTablesDesc& d, const ExpertTablesConfig& c);

// What they are made of and where they go: i32, each [.., 1], and `used` [1].
struct MadeTables {
  TensorRef experts;  // of all ranks' tokens, those of every token one after the other, by rank
  // Until the experts of a rank's tokens are there; none: they are from the beginning.
  std::function<void(const Index& rank)> wait_for_experts;
  TensorRef used, tile_experts, tile_needs, row_tokens, slots;
  SignalRef made;  // one channel: turns after which all of these are there; with wait_for_all()
};

// Blocks are what is sorted, parts what a worker takes at a time, groups of parts the first of two
// steps in which rows find their block: as many as there are blocks in a group. Those behind the
// last rank's, which fill the last group, have no tokens.
struct TableDivision {
  std::int64_t parts_of_rank, parts_of_group, groups;

  TableDivision(const ExpertTablesDesc& d, const ExpertTablesConfig& c) {
    std::int64_t share = ceil_div(d.tiles.shape.m, std::int64_t{d.tiles.shape.world_size});
    parts_of_rank = ceil_div(ceil_div(share, c.block_tokens), c.part_blocks);
    std::int64_t with_tokens = parts_of_rank * d.tiles.shape.world_size, square = 1;
    while (square * square < with_tokens * c.part_blocks) ++square;
    parts_of_group = ceil_div(square, c.part_blocks);
    groups = ceil_div(with_tokens, parts_of_group);
  }
  std::int64_t parts() const { return groups * parts_of_group; }
};

// Everything is in i32. A pair is a token and one of its experts; positions count ranks from the
// own one on.
class TableMaker {
 public:
  // m: tokens of all ranks in this launch. Makes buffers and signals; keeps references to desc and
  // config.
  TableMaker(ProgramBuilder& p, const ExpertTablesDesc& d, const ExpertTablesConfig& cfg,
             const Index& m, const MadeTables& tables);

  // Counting comes first, so that a worker that takes tiles in order never waits for itself.
  std::int64_t num_turns() const { return 2 * division_.parts() + look_ups(); }
  // What a worker does in its index-th turn.
  void turn(const Index& index) {
    std::int64_t parts = division_.parts();
    p_.when(index < parts, [&] { sort_part(index); });
    p_.when(index >= parts && index < 2 * parts, [&] { place(index - parts); });
    p_.when(index >= 2 * parts, [&] { look_up((index - 2 * parts) * cfg_.tile_rows); });
  }
  // Until slots are there, or all tables.
  void wait_for_slots() { p_.wait(placed_[0], division_.parts()); }
  void wait_for_all() { p_.wait(tables_.made[0], look_ups()); }

 private:
  std::int64_t look_ups() const { return ceil_div(tiles_.num_rows(), cfg_.tile_rows); }

  // Pairs first..end-1 of all, those of tokens from first_token on, which count from the own ones.
  struct Pairs {
    Index first, end, first_token;
  };
  // By expert, [1, E] each.
  struct Totals {
    Value before;                // pairs in the parts before
    std::vector<Value> through;  // [P] pairs of tokens of the first so many ranks and of the next
  };
  // By class and expert, [1, E] each: a class's tiles follow those of all classes before.
  struct Plan {
    std::vector<Value> begins;  // [stages] the place of the first
    Value used;                 // [1, 1] tiles of all
  };
  // Columns of plan_.
  enum Column : std::uint8_t { kTiles, kBelow, kStep, kThrough };

  std::int64_t group_blocks() const { return division_.parts_of_group * cfg_.part_blocks; }
  std::int64_t pairs_of_block() const { return cfg_.block_tokens * tiles_.shape.top_k; }
  Value number(const Index& value) const { return p_.splat(DType::kI32, value); }
  Value zeros(std::int64_t rows, std::int64_t cols) const {
    return p_.zeros(DType::kI32, rows, cols);
  }
  Value one_where(const Value& condition) const { return where(condition, number(1), number(0)); }
  Value own_number(const Value& expert) const;
  Value if_own(const Value& is_own, const Value& value) const;

  Pairs pairs_of(const Index& block) const;
  void wait_for_part(const Index& part);
  void sort_part(const Index& part);
  Value sort(const Index& block);

  void place(const Index& part);
  Totals add_up(const Index& part);
  Plan plan(const Index& part, const Totals& totals);
  Value tiles_through(const Totals& totals, int stage) const;
  std::vector<Value> sums_before(const Index& part);
  void place_block(const Index& part, const Index& block, const Value& before);
  void describe_tiles(const Index& part, const Plan& plan);
  std::int64_t column(Column which) const { return which * std::int64_t{d_.order.stages}; }
  void keep(const Index& part, std::int64_t col, const Value& of_experts);
  Value picked(const Index& part, Column which, std::int64_t cols, const Value& experts) const;

  void look_up(const Index& row);

  ProgramBuilder& p_;
  const ExpertTablesDesc& d_;
  const ExpertTablesConfig& cfg_;
  const ExpertTiles& tiles_;
  std::int64_t num_experts_;  // that the rank has, or a part of
  TableDivision division_;
  Index m_, share_;  // tokens of all ranks, of each
  MadeTables tables_;
  TensorRef counts_;     // [blocks, E] pairs of each expert, where a part has several blocks
  TensorRef below_;      // [blocks, E] and of those below it
  TensorRef totals_;     // [parts, E] pairs of each expert
  TensorRef positions_;  // [blocks * N, 1] of N pairs of a block, where each is in its order
  TensorRef sorted_;     // [blocks * N, 1] the tokens in that order
  TensorRef plan_;       // [parts, E, 3 * stages + P] what a part knows of every expert
  TensorRef first_;      // [E, groups] rows of an expert before the blocks of a group
  TensorRef begins_;     // [groups * E, blocks of a group] before each of its blocks
  TensorRef moves_;      // [blocks, E, 1] from a block's order to an expert's rows
  TensorRef shifts_;     // likewise, as begins_
  TensorRef runs_;       // [T, 3] the expert of a tile, the first of its rows and how many
  SignalRef counted_, placed_;
};

}  // namespace stretto
