// The embedded tile language. Calls record IR; nothing runs. A program is written once, for every
// rank: p.rank() is a variable. Words are TileLink's (arXiv 2503.20313) and OpenSHMEM's;
// docs/guide/language.md is the tour.
//
// Index is an integer expression (stretto/ir/expr.h), Value a tile register (stretto/lang/value.h),
// Slice a 2-D box of a tensor on some rank. Every call keeps the caller's source line for
// diagnostics.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/lang/value.h"

namespace stretto {

using Index = Expr;

// Keeps the last two parts of a path: enough to find the file, the same wherever the tree was
// checked out.
SourceLoc to_source_loc(const Loc& loc);

// A 2-D box of a tensor. Elements outside the tensor's run-time shape, or past until_row /
// until_col, are masked.
class Slice {
 public:
  explicit Slice(Region region) : region_(std::move(region)) {}
  Slice on(const Index& rank) const;        // the same box on another rank
  Slice until_row(const Index& end) const;  // exclusive, in tensor coordinates
  Slice until_col(const Index& end) const;
  Slice rows_along(int tensor_dim) const;  // default: the last but one dimension
  Slice cols_along(int tensor_dim) const;  // default: the last dimension
  const Region& region() const { return region_; }

 private:
  Region region_;
};

class ProgramBuilder;

class TensorRef {
 public:
  // The box whose first element is `origin` (one entry per dimension), rows x cols.
  Slice tile(std::vector<Index> origin, std::int64_t rows, std::int64_t cols) const;
  TensorRef on(const Index& rank) const;
  const Index& dim(int i) const { return shape_[static_cast<std::size_t>(i)]; }
  int num_dims() const { return static_cast<int>(shape_.size()); }
  DType dtype() const { return dtype_; }
  int idx() const { return idx_; }

 private:
  friend class ProgramBuilder;
  int idx_ = -1;
  DType dtype_ = DType::kF32;
  std::vector<Index> shape_;
  Index rank_;
};

// One channel of a signal.
struct ChannelRef {
  int signal = -1;
  Index channel;
};
class SignalRef {
 public:
  ChannelRef operator[](const Index& channel) const { return {idx_, channel}; }
  int idx() const { return idx_; }
  std::int64_t num_channels() const { return num_channels_; }

 private:
  friend class ProgramBuilder;
  int idx_ = -1;
  std::int64_t num_channels_ = 0;
  int num_barriers_ = 0;
};

// What a role body receives. For grids: tile coordinates m, n and the element origin row, col. For
// maps: the tile's rows [row, row_end), its owner and its channel.
struct Tile {
  Index index;      // linear tile id in the space, after ordering
  Index m, n;       // tile coordinates
  Index row, col;   // element origin
  Index row_end;    // maps only
  Index owner;      // maps only
  Index local_row;  // maps only: row - first row of the owner
  int map = -1;
};

// The tiles of a role, in the order in which its workers take them.
class TileSpace {
 public:
  const Index& count() const { return count_; }
  // Grids: start at this rank's share of the row tiles, so that ranks do not all begin with the
  // same rows.
  TileSpace rotate_rows(const Index& rank) const;
  // Grids: columns outermost.
  TileSpace columns_first() const;
  // Grids: groups of `rows` row tiles share a column before moving on (L2 reuse).
  TileSpace raster(std::int64_t rows) const;
  // Maps: tiles of rank `first`, then first + 1, ... modulo the world.
  TileSpace rotate_from(const Index& first) const;
  // Maps: only the tiles that `rank` owns.
  TileSpace owned_by(const Index& rank) const;

 private:
  friend class ProgramBuilder;
  enum class Order { kRows, kColumns };
  Index count_;
  int map_ = -1;
  std::int64_t world_ = 1, per_rank_ = 1;
  Index first_;  // maps
  bool one_owner_ = false;
  Index num_m_, num_n_;  // grids
  std::int64_t bm_ = 1, bn_ = 1, group_ = 1;
  Order order_ = Order::kRows;
  Index rotate_by_;  // row tiles
};

class TileMapRef {
 public:
  int idx() const { return idx_; }
  std::int64_t channels() const { return channels_; }  // over all ranks
  TileSpace tiles() const { return space_; }

 private:
  friend class ProgramBuilder;
  int idx_ = -1;
  std::int64_t channels_ = 0;
  TileSpace space_;
};

// A float of a launch, which values take by ProgramBuilder::splat().
class FloatScalar {
 private:
  friend class ProgramBuilder;
  int var_ = -1;
};

struct BufferOptions {
  Space space = Space::kLocal;
  int num_slots = 1;
  bool packet = false;
};

struct OutputOptions {
  Space space = Space::kLocal;
  // A condition of rank(), true on the ranks that have the output; absent: on all. Elsewhere it is
  // touched by nobody, and callers give no memory for it.
  Index given_on;
};

// How a tensor's rows are split over the ranks, each rank's rows into tiles, each rank's tiles into
// channels.
struct TileMapOptions {
  std::int64_t tile_rows = 1;
  std::int64_t channels_per_rank = 1;
};

// Run-time routing: per tile the rows [low, high), the rank and the group (`channel`); per group
// the number of its tiles. A signal for such a map has a channel per tile.
struct TableMapOptions {
  std::int64_t num_tiles = 0, num_channels = 0;
  TensorRef low, high, rank, channel, count;
};

class ProgramBuilder {
 public:
  ProgramBuilder(std::string name, int world_size, Loc loc = Loc::current());
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  // --- declarations ---
  Index rank() const { return Expr::var(0); }
  int world_size() const { return program_.world_size; }
  Index extent(const std::string& name, std::int64_t bound);
  Index scalar(const std::string& name, std::int64_t bound);
  FloatScalar float_scalar(const std::string& name);  // float32
  TensorRef input(const std::string& name, DType dtype, std::vector<Index> shape,
                  Space space = Space::kLocal, Loc loc = Loc::current());
  TensorRef output(const std::string& name, DType dtype, std::vector<Index> shape,
                   Space space = Space::kLocal, Loc loc = Loc::current());
  TensorRef output(const std::string& name, DType dtype, std::vector<Index> shape,
                   const OutputOptions& options, Loc loc = Loc::current());
  TensorRef state(const std::string& name, DType dtype, std::vector<Index> shape,
                  Space space = Space::kLocal, Loc loc = Loc::current());
  TensorRef buffer(const std::string& name, DType dtype, std::vector<Index> shape,
                   const BufferOptions& options = {}, Loc loc = Loc::current());
  // An integer input whose values are promised to keep the contract.
  TensorRef table(const std::string& name, std::vector<Index> shape, const Contract& contract,
                  Loc loc = Loc::current());
  // A table that the launch makes: a buffer, each entry stored at most once a launch and read after
  // that. Entries are checked where they are read; the contract is a range.
  TensorRef made_table(const std::string& name, std::vector<Index> shape, const Contract& contract,
                       const BufferOptions& options = {}, Loc loc = Loc::current());
  // A signal with one channel per notifying rank.
  SignalRef signal(const std::string& name, Loc loc = Loc::current());
  SignalRef signal(const std::string& name, std::int64_t num_channels, Loc loc = Loc::current());
  TileMapRef tile_map(const std::string& name, const TensorRef& tensor,
                      const TileMapOptions& options, Loc loc = Loc::current());
  TileMapRef tile_map(const std::string& name, const TensorRef& tensor,
                      const TableMapOptions& options, Loc loc = Loc::current());

  // --- structure ---
  TileSpace grid(const TensorRef& tensor, std::int64_t bm, std::int64_t bn,
                 Loc loc = Loc::current());  // over the last two dimensions
  TileSpace grid(const Index& rows, const Index& cols, std::int64_t bm, std::int64_t bn,
                 Loc loc = Loc::current());
  TileSpace range(const Index& count);
  // Returns the role's number, for roles beside it.
  int role(const std::string& name, const Resource& resource, const TileSpace& tiles,
           const std::function<void(const Tile&)>& body, Loc loc = Loc::current());
  void on_start(const std::function<void()>& body, Loc loc = Loc::current());
  void on_end(const std::function<void()>& body, Loc loc = Loc::current());
  void loop(const Index& begin, const Index& end, const std::function<void(const Index&)>& body,
            Loc loc = Loc::current());
  void loop(const Index& end, const std::function<void(const Index&)>& body,
            Loc loc = Loc::current()) {
    loop(0, end, body, loc);
  }
  void when(const Index& condition, const std::function<void()>& then,
            const std::function<void()>& otherwise = {}, Loc loc = Loc::current());
  // Names an index expression and fixes when it is evaluated.
  Index let(const std::string& name, const Index& value, Loc loc = Loc::current());
  // Reads an element of an integer tensor on the own rank; negative or out-of-contract entries end
  // the launch with an error.
  Index read(const TensorRef& table, std::vector<Index> index, Loc loc = Loc::current());

  // --- tiles ---
  Value zeros(DType dtype, std::int64_t rows, std::int64_t cols, Loc loc = Loc::current()) {
    return full(dtype, rows, cols, 0, loc);
  }
  Value full(DType dtype, std::int64_t rows, std::int64_t cols, double value,
             Loc loc = Loc::current());
  Value iota_rows(const Index& start, std::int64_t rows, Loc loc = Loc::current());  // i32 [rows,1]
  Value iota_cols(const Index& start, std::int64_t cols, Loc loc = Loc::current());  // i32 [1,cols]
  Value splat(DType dtype, const Index& value, Loc loc = Loc::current());            // [1,1]
  Value splat(const FloatScalar& scalar, Loc loc = Loc::current());                  // f32 [1,1]
  Value load(const Slice& from, Loc loc = Loc::current());
  // Loads rows that i32 [rows,1] picks; `from` gives the columns. A negative index gives zeros.
  Value load_rows(const Slice& from, const Value& row_idx, Loc loc = Loc::current());
  void store(const Slice& to, const Value& value, Loc loc = Loc::current());
  void store_rows(const Slice& to, const Value& row_idx, const Value& value,
                  Loc loc = Loc::current());
  // to += value in arrival order: results may differ from run to run. It is a named exception,
  // never a default.
  void reduce_store(const Slice& to, const Value& value, Loc loc = Loc::current());

  // --- moving data (put, get and TileLink's rank_copy_data are the same copy, named by direction)
  // ---
  void copy(const Slice& to, const Slice& from, Loc loc = Loc::current());
  void put(const Slice& to, const Slice& from, Loc loc = Loc::current()) { copy(to, from, loc); }
  void get(const Slice& to, const Slice& from, Loc loc = Loc::current()) { copy(to, from, loc); }
  void rank_copy_data(const Slice& from, const Slice& to, Loc loc = Loc::current()) {
    copy(to, from, loc);
  }
  void put_signal(const Slice& to, const Slice& from, const ChannelRef& channel, const Index& rank,
                  Loc loc = Loc::current());
  // Copies tile `t` of the map: own rows of `from` to the same rows of `to` on the tile's owner.
  // Pull is the other way round.
  void tile_push_data(const TileMapRef& map, const Tile& t, const TensorRef& from,
                      const TensorRef& to, Loc loc = Loc::current());
  void tile_pull_data(const TileMapRef& map, const Tile& t, const TensorRef& from,
                      const TensorRef& to, Loc loc = Loc::current());
  void store_packet(const Slice& to, const Value& value, Loc loc = Loc::current());
  Value load_packet(const Slice& from, Loc loc = Loc::current());

  // --- synchronisation: notify releases, wait acquires; counters only grow ---
  void notify(const ChannelRef& channel, const Index& rank, const Index& amount = 1,
              Loc loc = Loc::current());
  void wait(const ChannelRef& channel, const Index& at_least = 1, Loc loc = Loc::current());
  void notify(const SignalRef& signal, const Index& rank,
              Loc loc = Loc::current());  // per-source signals
  void wait(const SignalRef& signal, const Index& from_rank,
            Loc loc = Loc::current());  // per-source signals
  void notify_all(const SignalRef& signal, Loc loc = Loc::current());
  void wait_all(const SignalRef& signal, Loc loc = Loc::current());
  // OpenSHMEM's signal_op with SIGNAL_ADD. SIGNAL_SET does not exist: counters are monotone.
  void signal_op(const ChannelRef& channel, const Index& rank, const Index& amount,
                 Loc loc = Loc::current()) {
    notify(channel, rank, amount, loc);
  }
  void rank_notify(const SignalRef& signal, const Index& rank, Loc loc = Loc::current()) {
    notify(signal, rank, loc);
  }
  void rank_wait(const SignalRef& signal, const Index& rank, Loc loc = Loc::current()) {
    wait(signal, rank, loc);
  }
  // All ranks meet; the n-th barrier on a signal waits for the n-th notify of every rank. It cannot
  // be inside loops.
  void barrier(SignalRef& signal, Loc loc = Loc::current());
  void worker_fence(Loc loc = Loc::current());
  void producer_tile_notify(const SignalRef& signal, const TileMapRef& map, const Tile& t,
                            NotifyMode mode, Loc loc = Loc::current());
  // Waits for every channel whose rows overlap [row_begin, row_end).
  void consumer_tile_wait(const SignalRef& signal, const TileMapRef& map, const Index& row_begin,
                          const Index& row_end, Loc loc = Loc::current());
  // These are for signals with a channel for each of the map's tiles.
  void peer_tile_notify(const SignalRef& signal, const TileMapRef& map, const Tile& t,
                        const Index& rank, Loc loc = Loc::current());
  void peer_tile_wait(const SignalRef& signal, const TileMapRef& map, const Tile& t,
                      const Index& rank, Loc loc = Loc::current());

  // Verifies and returns the program. UserError names the line of what is wrong.
  Program finish(Loc loc = Loc::current());

 private:
  friend class Value;
  friend class TileSpace;
  friend struct ValueOps;

  struct OpenBlock {
    Block* block;
    std::int64_t id;
  };

  void need_agent(const Loc& loc);
  Op& emit(OpCode code, const Loc& loc);
  Value emit_value(OpCode code, const ValueType& type, std::vector<const Value*> operands);
  int operand(const Value& value, const char* what) const;
  void assign(Value& target, const Value& from, bool from_is_temporary);
  int add_var(const std::string& name, VarKind kind, std::int64_t bound);
  TensorRef add_tensor(Tensor tensor, const Loc& loc);
  void record_agent(Agent& agent, const std::function<void()>& body);
  void record_block(Block& block, const std::function<void()>& body);
  Tile make_tile(const TileSpace& space, const Index& linear);
  Index bind(const std::string& name, const Index& value);
  struct TileRows {
    Slice from, to;
  };
  TileRows rows_of_tile(const TileMapRef& map, const Tile& t, const TensorRef& from,
                        const TensorRef& to, const Loc& loc);
  std::int64_t current_block_id() const { return blocks_.empty() ? -1 : blocks_.back().id; }
  [[noreturn]] void fail(const std::string& what) const;

  Program program_;
  Agent* agent_ = nullptr;
  std::vector<OpenBlock> blocks_;
  std::int64_t next_block_id_ = 0;
  SourceLoc last_loc_;
  bool finished_ = false;
};

}  // namespace stretto
