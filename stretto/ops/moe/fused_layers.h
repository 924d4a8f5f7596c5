// The two fused layers of a mixture of experts, as parts of programs: ag_grouped_gemm.cc and
// grouped_gemm_rs.cc make one program of each, moe_layer.cc and ep_moe_layer.cc one of both.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"

namespace stretto {

// UserError naming the field.
void check(const AgGroupedDesc& d, const AgGroupedConfig& c);
void check(const GroupedRsDesc& d, const GroupedRsConfig& c);

// Of the own rank's rows (expert_tiles.h), each [.., 1] but `used` [1] and `weights` [m, top_k].
// What is left empty the layers declare as inputs. Where the launch makes them all, every tile
// waits for them, and those without rows are not stored.
struct TileTableRefs {
  TensorRef used, experts;
  TensorRef needs, tokens;   // of the first layer
  TensorRef slots, weights;  // of the second
  std::function<void()> wait = {};
  bool made() const { return static_cast<bool>(wait); }
};
TileTableRefs declare_tile_tables(ProgramBuilder& p, const ExpertTiles& tiles);

// In place of tiles: rows as routing sorts them, by expert, and what multiplies them, `parts` for a
// tile of columns.
struct SortedRows {
  std::int64_t parts = 1;
  Index rows;                // of all experts
  TensorRef slots, weights;  // [m, top_k]
  // The index-th part of a block of columns, which begins at `col`, to `to` [rows, n].
  std::function<void(const TensorRef& to, const Index& col, const Index& index)> multiply = {};
  // Slots [count, 1] of tokens, -1 where another rank has the expert; none: all have parts of all.
  std::function<Value(const Value& slots)> own = {};
};

// The index-th tile of rows and columns where `raster` tiles of rows share a column of tiles before
// moving on.
struct TilePlace {
  Index row, col;
};
TilePlace place_in_raster(ProgramBuilder& p, const Index& index, std::int64_t num_rows,
                          std::int64_t num_cols, std::int64_t raster);

// Of a role with so many workers, which take every num_workers-th turn.
struct WorkersTurn {
  Index index;
  std::int64_t num_workers = 1;
};
// Notifies the own rank of the worker's turns from 0 to `end` together, with the last of them: to
// notify of each would have it wait every time until what it stored has come to memory.
void notify_with_last(ProgramBuilder& p, const WorkersTurn& turn, std::int64_t end,
                      const ChannelRef& channel);

// What the workers of a role do first: turns from 0 to `num`.
struct FirstTurns {
  std::int64_t num = 0;
  std::function<void(const Index& index)> turn = {};

  // Turn `index` of a role, whose turns past these are numbered from 0.
  void then(ProgramBuilder& p, const Index& index,
            const std::function<void(const Index& index)>& rest) const;
};

class AgGrouped {
 public:
  // m: tokens of all ranks in this launch. The products are stored to `c` [R, n].
  AgGrouped(ProgramBuilder& p, const AgGroupedDesc& d, const AgGroupedConfig& cfg, const Index& m,
            const TileTableRefs& tables);
  void store_to(const TensorRef& c) { c_ = c; }

  const AgGroupedDesc& desc() const { return d_; }
  bool sends() const { return d_.gathers && d_.shape.world_size > 1; }
  const SignalRef& ready() const { return ready_; }  // by rank: what is announced
  std::int64_t num_tiles() const { return num_tiles_; }
  std::int64_t col_tiles() const { return ceil_div(d_.n, cfg_.loop.tile.bn); }

  // May be written by the others from now on.
  void announce();
  // The role of copy engines, where they send: the own rows to every peer, first to the one that
  // needs them next.
  void add_sending();
  // Where they do not, a worker's index-th turn: comm_rows of the own tokens, each to the peers
  // that are to have it; to all where nothing says so.
  std::int64_t num_pushes() const { return sends() && cfg_.num_copy_queues == 0 ? transfers() : 0; }
  using Goes = std::function<Index(const Index& token, const Index& peer)>;
  void push(const Index& index, const Goes& goes = {});
  FirstTurns pushes() {
    return {.num = num_pushes(), .turn = [this](const Index& index) { push(index); }};
  }
  // A tile of rows and one of columns.
  void multiply(const Index& tile, const Index& col_tile);
  // Copies of rows into the order of the tiles, those first that are multiplied first; and one.
  std::int64_t num_copies() const { return cfg_.sort_rows > 0 ? num_tiles_ * copies_of_tile() : 0; }
  void copy_rows(const Index& index);
  // Others write the own `a` until all of it is there.
  void wait_for_all();
  // Of a tile, the rows that are multiplied: all, or the first half.
  Index rows_to_multiply(const Index& tile);

 private:
  std::int64_t transfers() const;
  void send(const Tile& t);
  void push_some(const Index& index, const Goes& goes);
  void push_all(const Index& index);
  // `position`: of this rank, at the peer.
  void for_each_peer(const std::function<void(const Index& position, const Index& peer)>& body);
  // The tokens of so many ranks, the own one among them.
  void wait_for(const Index& needs);
  std::int64_t copies_of_tile() const { return ceil_div(d_.k, cfg_.sort_cols); }
  Slice rows(const Index& first) const { return a_.tile({first, 0}, cfg_.comm_rows, d_.k); }

  ProgramBuilder& p_;
  const AgGroupedDesc& d_;
  const AgGroupedConfig& cfg_;
  std::int64_t num_tiles_;
  Index m_, share_;  // tokens of all ranks, of each
  TileTableRefs tables_;
  TensorRef a_, c_, sorted_;
  std::vector<TensorRef> weights_, biases_;
  SignalRef ready_, arrived_, in_order_;
};

class GroupedRs {
 public:
  // The rows that are multiplied. Where the same launch makes them, `made` counts its tiles, of
  // which there are `tiles`. All are awaited before the first product, so that workers begin
  // together: those that read the same rows and weights then do so while L2 has them. Where each
  // begins with the rows that it needs, products wait for factors for most of their time
  // (docs/performance/moe.md, 'Why the defaults are what they are').
  struct Rows {
    TensorRef a;
    SignalRef made;
    std::int64_t tiles = 0;
    std::function<Index(const Index& tile)> filled = {};  // rows to multiply; none: all
  };
  GroupedRs(ProgramBuilder& p, const GroupedRsDesc& d, const GroupedRsConfig& cfg, const Index& m,
            const TileTableRefs& tables);
  GroupedRs(ProgramBuilder& p, const GroupedRsDesc& d, const GroupedRsConfig& cfg, const Index& m,
            SortedRows sorted);
  void multiply_rows(const Rows& rows) { rows_ = rows; }

  // Of a program of this layer alone: who multiplies, who sums, and what ranks tell each other
  // before and after. Otherwise the following are put into the roles of another program.
  void add_roles();

  // My parts may be written.
  void announce();
  // Of an all-reduce, which needs no word of that: the others write my output until all of it is
  // there, and by then they have read their parts; they begin to in the next launch once I have
  // sent them some.
  void wait_for_all();

  // What those who multiply do: all tiles, block by block, then the sums of the last blocks; and
  // one of these.
  std::int64_t num_turns() const {
    return num_products() + cfg_.last_blocks * sums_of_block(last_sums());
  }
  void turn(const Index& index);

  // The other sums, by threads beside the role of that number which multiplies, or on SMs of their
  // own; and one.
  Resource sum_sms(int products) const {
    return cfg_.num_reduce_sms == 0
               ? Resource::sms(cfg_.loop.num_compute_sms).beside_role(products)
               : Resource::sms(cfg_.num_reduce_sms).pipelined(cfg_.num_reduce_stages);
  }
  std::int64_t num_sums() const {
    return (num_blocks() - cfg_.last_blocks) * sums_of_block(sums());
  }
  void sum(const Index& index) { sum_of(sums(), 0, index); }

 private:
  struct Place {
    Index first, col;  // token of the owner, column
  };
  // Tokens that are summed at a time, and how often before they are sent together; `ahead`: the
  // products' rows come through pipes.
  struct Sums {
    std::int64_t rows, rounds;
    bool ahead = false;
  };
  Sums sums() const { return {cfg_.reduce_rows, cfg_.reduce_rounds, cfg_.num_reduce_stages > 0}; }
  Sums last_sums() const { return {cfg_.last_rows, cfg_.last_rounds}; }
  // What an owner does once all ranks' parts are there: shorter, so that all workers have some.
  Sums to_keep(const Sums& s) const {
    return {s.rows, ceil_div(s.rounds, std::int64_t{d_.shape.world_size}), s.ahead};
  }

  void declare_results();
  void declare_sums();

  std::int64_t block_cols() const { return cfg_.loop.tile.bn * cfg_.block_tiles; }
  std::int64_t num_blocks() const { return ceil_div(d_.n, block_cols()); }
  std::int64_t num_products() const { return num_blocks() * products_of_block(); }
  std::int64_t products_of_block() const { return num_tiles_ * cfg_.block_tiles; }
  std::int64_t sums_of_owner(const Sums& s) const {
    return ceil_div(ceil_div(d_.shape.m, std::int64_t{d_.shape.world_size}), s.rows * s.rounds) *
           (block_cols() / cfg_.reduce_cols);
  }
  std::int64_t sums_of_block(const Sums& s) const {
    std::int64_t parts = d_.shape.world_size > 1 ? d_.shape.world_size * sums_of_owner(s) : 0;
    return parts + sums_of_owner(to_keep(s));
  }
  // The bias to the sums of a tile, side by side from `col` on, on the rank that does.
  void add_once(const Index& expert, const Index& col, std::vector<Value>& sums);
  void product(const Index& index);
  void multiply(const Index& tile, const Index& block, const Index& col_in_block);
  // The index-th of the sums of the blocks from `first_block` on. Of a block the parts come first,
  // owners in turn, this rank among them, so that links and memory are busy together; then what
  // the owner makes of all ranks' parts. So whoever waits for others has sent all that they wait
  // for.
  void sum_of(const Sums& s, std::int64_t first_block, const Index& index);
  // The i-th group of tokens and columns of a block.
  Place place(const Sums& s, const Index& block, const Index& i);
  // The own part of an owner's sums.
  void send(const Sums& s, const Index& block, const Index& owner, const Index& i);
  bool sends_sums() const { return d_.all_reduce && d_.shape.world_size > 1; }
  // Whether the owner has to say that its parts may be written: where the launch has made the
  // tables every rank has told what its tokens are, and so has begun.
  bool asks() const { return !d_.all_reduce && !tables_.made(); }
  // The own tokens: the sum of all ranks' parts.
  void keep(const Sums& s, const Index& block, const Index& i);
  Slice part(const Sums& s, const Index& source, const Index& row, const Index& col) const {
    return parts_.tile({source, row, col}, s.rows, cfg_.reduce_cols);
  }
  // More of them under way at a time would spill.
  Value add_two_by_two(Value sum, const std::vector<Slice>& parts);
  // Of this rank's products, for tokens of the owner from `row` on; zero of tokens that do not
  // exist. All rows are under way before the first addition.
  Value own_sum(const Sums& s, const Index& owner, const Index& row, const Index& col);
  Value load_slots(const Index& first, const Value& exist, std::int64_t j);

  template <typename Round>
  void rounds(const Sums& s, const Place& at, const Round& round) {
    if (s.rounds == 1 && !s.ahead) return round(at.first);
    p_.loop(s.rounds, [&](const Index& i) { round(p_.let("row", at.first + i * s.rows)); });
  }

  ProgramBuilder& p_;
  const GroupedRsDesc& d_;
  const GroupedRsConfig& cfg_;
  std::int64_t num_tiles_;  // of rows, or parts of a tile of columns
  Index m_, share_;         // tokens of all ranks, of each
  TileTableRefs tables_;
  Rows rows_;
  SortedRows sorted_;
  TensorRef b_, residual_, out_, products_, parts_;
  std::vector<TensorRef> biases_;
  SignalRef computed_, free_, summed_, stored_;
};

// Role "layer" of both layers' products, all of the first before the second, between which lies a
// buffer. Its number.
int multiply_both(ProgramBuilder& p, const ExpertTiles& tiles, const AgGroupedConfig& cfg,
                  AgGrouped& first, GroupedRs& second, const FirstTurns& before = {});

// UserError where the configs of two layers in one role differ in what it has once.
void check_same_workers(const char* op, const AgGroupedConfig& first,
                        const GroupedRsConfig& second);

}  // namespace stretto
