// Collectives whose senders write: each rank puts what another needs into a slot of that rank's
// memory and tells it; the receiver copies or adds it up from there. Two slots bound the run-ahead:
// a rank that writes slot e % 2 again, in launch e + 2, has received every rank's part of launch
// e + 1, which each rank sent after it had finished launch e. So every rank tells every other in
// every launch, rows or not. What arrives says so by a signal for each tile, or by itself, as
// packets (CollectiveConfig::packets). What a rank only keeps goes through no slot.
//
// Large messages go through rings of slots (CollectiveConfig::ring_slots): each worker sends a
// tile, then receives what others sent a turn ago, whose slot it frees; the sender waits for that
// before it writes there again, in a launch's first turn for all of the launch before.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "stretto/ops/collectives/pieces.h"
#include "stretto/ops/operator/quantized_rows.h"
#include "stretto/ops/operator/rank_sum.h"

namespace stretto::collective {
namespace {

// `count` rows of a tile, from `row` on; those at or past `end` belong to others. In slots they lie
// at [slot_row, ...) and before slot_end.
struct Piece {
  Index row, col, end;
  std::int64_t count;
  Index slot_row, slot_col, slot_end;
};

// Rows as they travel: as they are, or quantised with a scale for each (CollectiveDesc::payload).
struct Parcel {
  Value rows, scales;
};

DType dtype_of(Payload payload) { return payload == Payload::kInt8 ? DType::kI8 : DType::kF8E4M3; }

// Tiles of [rows, n] that travel from every rank to every rank.
class Exchange {
 public:
  struct Names {
    const char *slots, *scales, *arrived, *freed;
  };
  // Rows as the launch has them, at least one, and at most.
  struct Rows {
    Index now;
    std::int64_t most;
  };
  Exchange(ProgramBuilder& p, const CollectiveDesc& d, const CollectiveConfig& cfg,
           const Names& names, const Rows& rows)
      : p_(p),
        d_(d),
        cfg_(cfg),
        rows_(rows),
        // Whole packets in every row, whatever the dtype.
        width_(cfg.packets ? ceil_div(d.n, 4) * 4 : d.n),
        cols_(cfg.packets ? std::min(ceil_div(cfg.tile_cols, 4) * 4, width_) : cfg.tile_cols),
        row_tiles_(ceil_div(rows.most, cfg.tile_rows)),
        col_tiles_(ceil_div(width_, cols_)),
        ring_(std::min(std::int64_t{cfg.ring_slots} * cfg.num_workers, num_tiles())),
        quantizes_(quantizes(d)),
        slots_(p.buffer(
            names.slots, quantizes_ ? dtype_of(d.payload) : d.dtype, slots_shape(width_, cols_),
            {.space = Space::kSymmetric, .num_slots = ring_ > 0 ? 1 : 2, .packet = cfg.packets})) {
    if (quantizes_) {
      scales_ = p.buffer(names.scales, DType::kF32, slots_shape(1, 1),
                         {.space = Space::kSymmetric, .num_slots = ring_ > 0 ? 1 : 2});
    }
    if (!cfg.packets) arrived_ = p.signal(names.arrived, d.world_size * num_slots());
    if (ring_ > 0) freed_ = p.signal(names.freed, d.world_size * num_slots());
  }

  // As many for every m, so that each launch tells alike.
  TileSpace grid() const { return p_.grid(rows_.most, width_, cfg_.tile_rows, cols_); }
  std::int64_t num_tiles() const { return row_tiles_ * col_tiles_; }
  std::int64_t cols() const { return cols_; }
  Tile tile(const Index& index) const {
    Index row = p_.let("row", index / col_tiles_ * cfg_.tile_rows);
    Index col = p_.let("col", index % col_tiles_ * cols_);
    return {.index = index, .row = row, .col = col};
  }

  // Of a tile, before it is sent: that its slots may be written. In the first turn, whose tiles
  // wait for nothing of this launch, this is that all of the launch before has been read.
  void await_room(const Tile& t) const {
    if (ring_ == 0) return;
    for_peers(
        [&](const Index& r) { p_.wait(freed_[r * ring_ + t.index % ring_], t.index / ring_); });
  }
  Parcel packed(const Value& piece) const {
    if (!quantizes_) return {.rows = piece, .scales = {}};
    QuantizedRows of =
        d_.payload == Payload::kInt8 ? int8_rows(p_, piece) : quantized_rows(p_, piece);
    return {.rows = of.rows, .scales = of.scales()};
  }
  // What a parcel stands for: as it was, or in f32.
  Value opened(const Parcel& parcel) const {
    return quantizes_ ? cast(parcel.rows, DType::kF32) * parcel.scales : parcel.rows;
  }
  void send(const Index& to, const Piece& at, const Parcel& parcel) const {
    Slice slot = of_slot(slots_.on(to), p_.rank(), at, cols_);
    cfg_.packets ? p_.store_packet(slot, parcel.rows) : p_.store(slot, parcel.rows);
    if (quantizes_) p_.store(of_slot(scales_.on(to), p_.rank(), at, 1), parcel.scales);
  }
  Value received(const Index& source, const Piece& at) const {
    Slice slot = of_slot(slots_, source, at, cols_);
    Parcel parcel{.rows = cfg_.packets ? p_.load_packet(slot) : p_.load(slot), .scales = {}};
    if (quantizes_) parcel.scales = p_.load(of_slot(scales_, source, at, 1));
    return opened(parcel);
  }
  // In the type of the result.
  Value received_result(const Index& source, const Piece& at) const {
    return cast(received(source, at), d_.dtype);
  }
  // That all of a tile has been sent.
  void tell(const Tile& t) const {
    if (cfg_.packets) return;
    for_peers([&](const Index& r) { p_.notify(arrived_[at_slot(p_.rank(), t)], r); });
  }
  void await(const Tile& t) const {
    if (cfg_.packets) return;
    for_peers([&](const Index& r) {
      p_.wait(arrived_[at_slot(r, t)], ring_ > 0 ? t.index / ring_ + 1 : Index(1));
    });
  }
  // That all of a tile that was received has been read.
  void free(const Tile& t) const {
    if (ring_ == 0) return;
    for_peers([&](const Index& r) { p_.notify(freed_[at_slot(p_.rank(), t)], r); });
  }
  // As move_by_peer, or one rank after the other where their parts do not fit into registers.
  void move(const PartOfRank& load,
            const std::function<void(const Index& rank, const Value& value)>& store) const {
    if (together()) return move_by_peer(p_, load, store);
    for_peers([&](const Index& i) {
      Index rank = p_.let("peer", i);
      store(rank, load(rank));
    });
  }
  // The next rank first.
  void for_peers(const std::function<void(const Index& rank)>& fn) const {
    p_.loop(d_.world_size - 1, [&](const Index& i) { fn((p_.rank() + 1 + i) % d_.world_size); });
  }
  void for_pieces_of(const Tile& t, const std::function<void(const Piece&)>& fn) const {
    for_pieces(p_, cfg_, [&](const Index& first, std::int64_t rows) {
      Index row = p_.let("piece", t.row + first), end = t.row + cfg_.tile_rows;
      if (ring_ == 0) return fn({row, t.col, end, rows, row, t.col, end});
      Index slot = t.index % ring_ * cfg_.tile_rows;
      fn({row, t.col, end, rows, slot + first, 0, slot + cfg_.tile_rows});
    });
  }
  // What came of others and `mine`, not rounded.
  Value sum(const Piece& at, const Value& mine) const {
    return reduce_with_own(
        p_, d_.reduction, mine, [&](const Index& r) { return received(r, at); }, together());
  }
  // Of x [rows, n].
  Slice cut(const TensorRef& x, const Piece& at) const {
    return x.tile({at.row, at.col}, at.count, cols_).until_row(at.end);
  }
  // Of x [P, rows, n].
  Slice cut(const TensorRef& x, const Index& which, const Piece& at) const {
    return x.tile({which, at.row, at.col}, at.count, cols_).until_row(at.end);
  }
  // Of x [m, n] the rows of `owner`'s run.
  Slice of_run(const TensorRef& x, const Runs& runs, const Index& owner, const Piece& at) const {
    Index first = runs.first(owner);
    return x.tile({first + at.row, at.col}, at.count, cols_)
        .until_row(min(runs.end(owner), first + at.end));
  }

 private:
  // Whether a thread has registers for all other ranks' parts of a piece as floats, which they are
  // while they are quantised: three eighths of those that it has. Compiled for sm_90a, rows of 128
  // to 16384 columns of 2 to 8 ranks: no spills.
  bool together() const {
    constexpr std::int64_t kRegisters = 64 * 1024, kMost = 255;  // of a block, of a thread
    if (!quantizes_ || cfg_.threads == 0) return true;
    std::int64_t elements = ceil_div(rows_held(cfg_) * cols_, std::int64_t{cfg_.threads});
    return elements * (d_.world_size - 1) * 8 <= 3 * std::min(kRegisters / cfg_.threads, kMost);
  }
  // With so many columns in all, or in rings those of a tile.
  std::vector<Index> slots_shape(std::int64_t width, std::int64_t cols) const {
    if (ring_ > 0) return {d_.world_size, ring_ * cfg_.tile_rows, cols};
    // Slots of packets have room for the most rows: those of this launch.
    return {d_.world_size, cfg_.packets ? Index(rows_.most) : rows_.now, width};
  }
  std::int64_t num_slots() const { return ring_ > 0 ? ring_ : num_tiles(); }
  Index at_slot(const Index& source, const Tile& t) const {
    return source * num_slots() + (ring_ > 0 ? t.index % ring_ : t.index);
  }
  Slice of_slot(const TensorRef& slots, const Index& source, const Piece& at,
                std::int64_t cols) const {
    return slots.tile({source, at.slot_row, at.slot_col}, at.count, cols)
        .until_row(cfg_.packets ? min(rows_.now, at.slot_end) : at.slot_end);
  }

  ProgramBuilder& p_;
  const CollectiveDesc& d_;
  const CollectiveConfig& cfg_;
  Rows rows_;
  std::int64_t width_, cols_;
  std::int64_t row_tiles_, col_tiles_;
  std::int64_t ring_;  // slots of a sender; 0: as many as tiles, twice
  bool quantizes_;
  TensorRef slots_, scales_;  // the latter of what is quantised
  SignalRef arrived_, freed_;
};

using Stage = std::function<void(const Tile&)>;

// What a worker does with its tiles: everything with one after the other, or, with rings, each
// stage with the tile that had the stage before in the worker's last turn, unless receivers have
// the second stage to themselves.
void in_stages(ProgramBuilder& p, const CollectiveConfig& cfg, const char* role,
               const Exchange& exchange, const std::vector<Stage>& stages) {
  if (cfg.ring_slots == 0) {
    p.role(role, Resource::sms(cfg.num_workers), exchange.grid(), [&](const Tile& t) {
      for (const Stage& stage : stages) stage(t);
    });
    return;
  }
  std::int64_t tiles = exchange.num_tiles();
  if (cfg.num_receivers > 0) {
    auto role = [&](const char* name, int workers, const Stage& stage) {
      p.role(name, Resource::sms(workers), p.range(tiles),
             [&](const Tile& t) { stage(exchange.tile(t.index)); });
    };
    role("send", cfg.num_workers, stages.front());
    role("receive", cfg.num_receivers, stages.back());
    return;
  }
  std::int64_t apart = cfg.num_workers,
               turns = tiles + apart * (static_cast<std::int64_t>(stages.size()) - 1);
  p.role(role, Resource::sms(cfg.num_workers), p.range(turns), [&](const Tile& t) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      Index tile = p.let("tile", t.index - static_cast<std::int64_t>(i) * apart);
      Index begun = tile >= 0, left = tile < tiles;
      p.when(i == 0                   ? left
             : i + 1 == stages.size() ? begun
                                      : begun && left,
             [&] { stages[i](exchange.tile(tile)); });
    }
  });
}

std::int64_t most_run_rows(const CollectiveDesc& d) {
  return ceil_div(d.m, std::int64_t{d.world_size});
}

// Of a tile, to every rank its part of x [m, n].
void send_parts(ProgramBuilder& p, const Exchange& parts, const TensorRef& x, const Runs& runs,
                const Tile& t) {
  parts.await_room(t);
  parts.for_pieces_of(t, [&](const Piece& at) {
    parts.move(
        [&](const Index& owner) { return p.load(parts.of_run(x, runs, owner, at)); },
        [&](const Index& owner, const Value& part) { parts.send(owner, at, parts.packed(part)); });
  });
  parts.tell(t);
}

Value own_part(ProgramBuilder& p, const Exchange& parts, const TensorRef& x, const Runs& runs,
               const Piece& at) {
  return p.load(parts.of_run(x, runs, p.rank(), at));
}

}  // namespace

Program push_all_gather(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_gather", d.world_size);
  Index m = p.extent("m", d.m);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {ceil_div(m, d.world_size), d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Exchange rows(p, d, cfg, {"slots", "scales", "arrived", "freed"},
                {runs.run_rows, most_run_rows(d)});

  auto send = [&](const Tile& t) {
    rows.await_room(t);
    rows.for_pieces_of(t, [&](const Piece& at) {
      Parcel mine = rows.packed(p.load(rows.cut(in, at)));
      rows.for_peers([&](const Index& peer) { rows.send(peer, at, mine); });
      p.store(rows.of_run(out, runs, p.rank(), at), rows.opened(mine));
    });
    rows.tell(t);
  };
  auto receive = [&](const Tile& t) {
    rows.await(t);
    rows.for_pieces_of(t, [&](const Piece& at) {
      rows.move([&](const Index& owner) { return rows.received_result(owner, at); },
                [&](const Index& owner, const Value& received) {
                  p.store(rows.of_run(out, runs, owner, at), received);
                });
    });
    rows.free(t);
  };
  in_stages(p, cfg, "gather", rows, {send, receive});
  return finish(p, cfg);
}

Program push_reduce_scatter(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("reduce_scatter", d.world_size);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {ceil_div(m, d.world_size), d.n});
  Exchange parts(p, d, cfg, {"slots", "scales", "arrived", "freed"},
                 {runs.run_rows, most_run_rows(d)});

  auto send = [&](const Tile& t) { send_parts(p, parts, in, runs, t); };
  auto receive = [&](const Tile& t) {
    parts.await(t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      p.store(parts.cut(out, at), rounded(parts.sum(at, own_part(p, parts, in, runs, at))));
    });
    parts.free(t);
  };
  in_stages(p, cfg, "reduce", parts, {send, receive});
  return finish(p, cfg);
}

Program push_all_reduce(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_two_shot", d.world_size);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Exchange::Rows rows{runs.run_rows, most_run_rows(d)};
  Exchange parts(p, d, cfg, {"slots", "scales", "arrived", "freed"}, rows);
  Exchange sums(p, d, cfg, {"sums", "scales_of_sums", "reduced", "summed"}, rows);

  auto send = [&](const Tile& t) { send_parts(p, parts, in, runs, t); };
  auto reduce = [&](const Tile& t) {
    parts.await(t);
    sums.await_room(t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      Value wide = parts.sum(at, own_part(p, parts, in, runs, at));
      Parcel sum = sums.packed(quantizes(d) ? rounded.scaled(wide) : rounded(wide));
      sums.for_peers([&](const Index& peer) { sums.send(peer, at, sum); });
      p.store(sums.of_run(out, runs, p.rank(), at), sums.opened(sum));
    });
    parts.free(t);
    sums.tell(t);
  };
  auto gather = [&](const Tile& t) {
    sums.await(t);
    sums.for_pieces_of(t, [&](const Piece& at) {
      sums.move([&](const Index& owner) { return sums.received_result(owner, at); },
                [&](const Index& owner, const Value& received) {
                  p.store(sums.of_run(out, runs, owner, at), received);
                });
    });
    sums.free(t);
  };
  in_stages(p, cfg, "reduce", parts, {send, reduce, gather});
  return finish(p, cfg);
}

// Whole blocks travel: how many of their rows count only the receiver knows.
Program push_all_to_all(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_to_all", d.world_size);
  TensorRef in = p.input("in", d.dtype, {d.world_size, d.m, d.n});
  TensorRef counts = p.table("recv_counts", {d.world_size}, {ContractKind::kRange, 0, d.m + 1});
  TensorRef out = p.output("out", d.dtype, {d.world_size, d.m, d.n});
  Exchange blocks(p, d, cfg, {"slots", "scales", "arrived", "freed"}, {d.m, d.m});
  // Of rows [at.row, ...) of a block those that count, the others zero.
  auto counted = [&](const Index& source, const Piece& at, const Value& block) {
    Value row = p.iota_rows(at.row, at.count),
          count = p.splat(DType::kI32, p.read(counts, {source}));
    return where(row < count, block, p.zeros(d.dtype, at.count, blocks.cols()));
  };

  auto send = [&](const Tile& t) {
    blocks.await_room(t);
    blocks.for_pieces_of(t, [&](const Piece& at) {
      blocks.move([&](const Index& peer) { return p.load(blocks.cut(in, peer, at)); },
                  [&](const Index& peer, const Value& block) {
                    blocks.send(peer, at, blocks.packed(block));
                  });
      Value own = p.load(blocks.cut(in, p.rank(), at));
      p.store(blocks.cut(out, p.rank(), at), counted(p.rank(), at, own));
    });
    blocks.tell(t);
  };
  auto receive = [&](const Tile& t) {
    blocks.await(t);
    blocks.for_pieces_of(t, [&](const Piece& at) {
      blocks.move([&](const Index& source) { return blocks.received_result(source, at); },
                  [&](const Index& source, const Value& received) {
                    p.store(blocks.cut(out, source, at), counted(source, at, received));
                  });
    });
    blocks.free(t);
  };
  in_stages(p, cfg, "exchange", blocks, {send, receive});
  return finish(p, cfg);
}

}  // namespace stretto::collective
