// Collectives whose senders write: each rank puts what another needs into a slot of that rank's
// memory and tells it; the receiver copies or adds it up from there. Two slots bound the run-ahead:
// a rank that writes slot e % 2 again, in launch e + 2, has received every rank's part of launch
// e + 1, which each rank sent after it had finished launch e. So every rank tells every other in
// every launch, rows or not. What arrives says so by a signal for each tile, or by itself, as
// packets (CollectiveConfig::packets). What a rank only keeps goes through no slot.
#include <algorithm>
#include <cstdint>
#include <functional>

#include "stretto/ops/collectives/pieces.h"
#include "stretto/ops/harness/rank_sum.h"

namespace stretto::collective {
namespace {

// `count` rows of a tile, from `row` on; those at or past `end` belong to others.
struct Piece {
  Index row, col, end;
  std::int64_t count;
};

// Tiles of [rows, n] that travel from every rank to every rank.
class Exchange {
 public:
  struct Names {
    const char *slots, *arrived;
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
        tiles_(p.grid(rows.most, width_, cfg.tile_rows, cols_)),
        num_tiles_(ceil_div(rows.most, cfg.tile_rows) * ceil_div(width_, cols_)),
        slots_(p.buffer(names.slots, d.dtype,
                        {d.world_size, cfg.packets ? Index(rows.most) : rows.now, width_},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = cfg.packets})) {
    if (!cfg.packets) arrived_ = p.signal(names.arrived, d.world_size * num_tiles_);
  }

  // As many for every m, so that each launch tells alike.
  const TileSpace& tiles() const { return tiles_; }
  std::int64_t cols() const { return cols_; }

  void send(const Index& to, const Piece& at, const Value& piece) const {
    Slice slot = cut(slots_.on(to), p_.rank(), at);
    cfg_.packets ? p_.store_packet(within(slot, at), piece) : p_.store(slot, piece);
  }
  Value received(const Index& source, const Piece& at) const {
    Slice slot = cut(slots_, source, at);
    return cfg_.packets ? p_.load_packet(within(slot, at)) : p_.load(slot);
  }
  // That all of a tile has been sent.
  void tell(const Tile& t) const {
    if (cfg_.packets) return;
    for_peers([&](const Index& r) { p_.notify(arrived_[p_.rank() * num_tiles_ + t.index], r); });
  }
  void await(const Tile& t) const {
    if (cfg_.packets) return;
    for_peers([&](const Index& r) { p_.wait(arrived_[r * num_tiles_ + t.index], 1); });
  }
  // The next rank first.
  void for_peers(const std::function<void(const Index& rank)>& fn) const {
    p_.loop(d_.world_size - 1, [&](const Index& i) { fn((p_.rank() + 1 + i) % d_.world_size); });
  }
  void for_pieces_of(const Tile& t, const std::function<void(const Piece&)>& fn) const {
    for_pieces(p_, cfg_, [&](const Index& first, std::int64_t rows) {
      fn({p_.let("row", t.row + first), t.col, t.row + cfg_.tile_rows, rows});
    });
  }
  // What came of others and `mine`.
  Value sum(const Piece& at, const Value& mine) const {
    return rounded(d_, sum_with_own(p_, mine, [&](const Index& r) { return received(r, at); }));
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
  // Slots of packets have room for the most rows: those of this launch.
  Slice within(const Slice& slot, const Piece& at) const {
    return Slice(slot).until_row(min(rows_.now, at.end));
  }

  ProgramBuilder& p_;
  const CollectiveDesc& d_;
  const CollectiveConfig& cfg_;
  Rows rows_;
  std::int64_t width_, cols_;
  TileSpace tiles_;
  std::int64_t num_tiles_;
  TensorRef slots_;
  SignalRef arrived_;
};

std::int64_t most_run_rows(const CollectiveDesc& d) {
  return ceil_div(d.m, std::int64_t{d.world_size});
}

// Of a tile, to every rank its part of x [m, n].
void send_parts(ProgramBuilder& p, const Exchange& parts, const TensorRef& x, const Runs& runs,
                const Tile& t) {
  parts.for_pieces_of(t, [&](const Piece& at) {
    move_by_peer(
        p, [&](const Index& owner) { return p.load(parts.of_run(x, runs, owner, at)); },
        [&](const Index& owner, const Value& part) { parts.send(owner, at, part); });
  });
  parts.tell(t);
  parts.await(t);
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
  Exchange rows(p, d, cfg, {"slots", "arrived"}, {runs.run_rows, most_run_rows(d)});

  p.role("gather", Resource::sms(cfg.num_workers), rows.tiles(), [&](const Tile& t) {
    rows.for_pieces_of(t, [&](const Piece& at) {
      Value mine = p.load(rows.cut(in, at));
      rows.for_peers([&](const Index& peer) { rows.send(peer, at, mine); });
      p.store(rows.of_run(out, runs, p.rank(), at), mine);
    });
    rows.tell(t);
    rows.await(t);
    rows.for_pieces_of(t, [&](const Piece& at) {
      move_by_peer(
          p, [&](const Index& owner) { return rows.received(owner, at); },
          [&](const Index& owner, const Value& received) {
            p.store(rows.of_run(out, runs, owner, at), received);
          });
    });
  });
  return finish(p, cfg);
}

Program push_reduce_scatter(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("reduce_scatter", d.world_size);
  Index m = p.extent("m", d.m);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {ceil_div(m, d.world_size), d.n});
  Exchange parts(p, d, cfg, {"slots", "arrived"}, {runs.run_rows, most_run_rows(d)});

  p.role("reduce", Resource::sms(cfg.num_workers), parts.tiles(), [&](const Tile& t) {
    send_parts(p, parts, in, runs, t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      p.store(parts.cut(out, at), parts.sum(at, own_part(p, parts, in, runs, at)));
    });
  });
  return finish(p, cfg);
}

Program push_all_reduce(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_two_shot", d.world_size);
  Index m = p.extent("m", d.m);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Exchange::Rows rows{runs.run_rows, most_run_rows(d)};
  Exchange parts(p, d, cfg, {"slots", "arrived"}, rows);
  Exchange sums(p, d, cfg, {"sums", "reduced"}, rows);

  p.role("reduce", Resource::sms(cfg.num_workers), parts.tiles(), [&](const Tile& t) {
    send_parts(p, parts, in, runs, t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      Value sum = parts.sum(at, own_part(p, parts, in, runs, at));
      sums.for_peers([&](const Index& peer) { sums.send(peer, at, sum); });
      p.store(sums.of_run(out, runs, p.rank(), at), sum);
    });
    sums.tell(t);
    sums.await(t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      move_by_peer(
          p, [&](const Index& owner) { return sums.received(owner, at); },
          [&](const Index& owner, const Value& received) {
            p.store(sums.of_run(out, runs, owner, at), received);
          });
    });
  });
  return finish(p, cfg);
}

// Whole blocks travel: how many of their rows count only the receiver knows.
Program push_all_to_all(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_to_all", d.world_size);
  TensorRef in = p.input("in", d.dtype, {d.world_size, d.m, d.n});
  TensorRef counts = p.table("recv_counts", {d.world_size}, {ContractKind::kRange, 0, d.m + 1});
  TensorRef out = p.output("out", d.dtype, {d.world_size, d.m, d.n});
  Exchange blocks(p, d, cfg, {"slots", "arrived"}, {d.m, d.m});
  // Of rows [at.row, ...) of a block those that count, the others zero.
  auto counted = [&](const Index& source, const Piece& at, const Value& block) {
    Value row = p.iota_rows(at.row, at.count),
          count = p.splat(DType::kI32, p.read(counts, {source}));
    return where(row < count, block, p.zeros(d.dtype, at.count, blocks.cols()));
  };

  p.role("exchange", Resource::sms(cfg.num_workers), blocks.tiles(), [&](const Tile& t) {
    blocks.for_pieces_of(t, [&](const Piece& at) {
      move_by_peer(
          p, [&](const Index& peer) { return p.load(blocks.cut(in, peer, at)); },
          [&](const Index& peer, const Value& block) { blocks.send(peer, at, block); });
      Value own = p.load(blocks.cut(in, p.rank(), at));
      p.store(blocks.cut(out, p.rank(), at), counted(p.rank(), at, own));
    });
    blocks.tell(t);
    blocks.await(t);
    blocks.for_pieces_of(t, [&](const Piece& at) {
      move_by_peer(
          p, [&](const Index& source) { return blocks.received(source, at); },
          [&](const Index& source, const Value& received) {
            p.store(blocks.cut(out, source, at), counted(source, at, received));
          });
    });
  });
  return finish(p, cfg);
}

}  // namespace stretto::collective
