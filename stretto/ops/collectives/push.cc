// Collectives whose senders write: each rank puts what another needs into a slot of that rank's
// memory and tells it; the receiver copies or adds it up from there. Two slots bound the run-ahead:
// a rank that writes slot e % 2 again, in launch e + 2, has received every rank's part of launch
// e + 1, which each rank sent after it had finished launch e. So every rank tells every other in
// every launch, rows or not.
#include <functional>
#include <utility>
#include <vector>

#include "stretto/ops/collectives/pieces.h"

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
  // Rows as the launch has them, and at most.
  struct Rows {
    Index now;
    std::int64_t most;
  };
  Exchange(ProgramBuilder& p, const CollectiveDesc& d, const CollectiveConfig& cfg,
           const Names& names, const Rows& rows)
      : p_(p),
        d_(d),
        cfg_(cfg),
        tiles_(p.grid(rows.most, d.n, cfg.tile_rows, cfg.tile_cols)),
        num_tiles_(ceil_div(rows.most, cfg.tile_rows) * ceil_div(d.n, cfg.tile_cols)),
        slots_(p.buffer(names.slots, d.dtype, {d.world_size, rows.now, d.n},
                        {.space = Space::kSymmetric, .num_slots = 2})),
        arrived_(p.signal(names.arrived, d.world_size * num_tiles_)) {}

  // As many for every m, so that each launch tells alike.
  const TileSpace& tiles() const { return tiles_; }

  void send(const Index& peer, const Piece& at, const Value& piece) const {
    p_.store(cut(slots_.on(peer), p_.rank(), at), piece);
  }
  Value received(const Index& source, const Piece& at) const {
    return p_.load(cut(slots_, source, at));
  }
  void tell_all(const Tile& t) const {
    for_ranks([&](const Index& r) { p_.notify(arrived_[p_.rank() * num_tiles_ + t.index], r); });
  }
  void await_all(const Tile& t) const {
    for_ranks([&](const Index& r) { p_.wait(arrived_[r * num_tiles_ + t.index], 1); });
  }
  // The next rank first, this one last.
  void for_ranks(const std::function<void(const Index& rank)>& fn) const {
    p_.loop(d_.world_size, [&](const Index& i) { fn((p_.rank() + 1 + i) % d_.world_size); });
  }
  // For all ranks: what `load` gives goes to `store`, all under way before the first is stored in
  // worlds that a node holds.
  void move(const std::function<Value(const Index& rank)>& load,
            const std::function<void(const Index& rank, const Value&)>& store) const {
    constexpr int kTogether = 8;
    if (d_.world_size > kTogether) return for_ranks([&](const Index& r) { store(r, load(r)); });
    std::vector<std::pair<Index, Value>> loaded;
    for (int i = 1; i <= d_.world_size; ++i) {
      Index r = p_.let("peer", (p_.rank() + i) % d_.world_size);
      loaded.emplace_back(r, load(r));
    }
    for (const auto& [r, value] : loaded) store(r, value);
  }
  void for_pieces_of(const Tile& t, const std::function<void(const Piece&)>& fn) const {
    for_pieces(p_, cfg_, [&](const Index& first, std::int64_t rows) {
      fn({p_.let("row", t.row + first), t.col, t.row + cfg_.tile_rows, rows});
    });
  }
  // In rank order.
  Value sum(const Piece& at) const {
    Value all = sum_over_ranks(p_, [&](const Index& r) { return received(r, at); },
                               {d_.dtype, at.count, cfg_.tile_cols});
    return cast(all, d_.dtype);
  }
  // Of x [m, n] the rows of `owner`'s run.
  Slice of_run(const TensorRef& x, const Runs& runs, const Index& owner, const Piece& at) const {
    Index first = runs.first(owner);
    return x.tile({first + at.row, at.col}, at.count, cfg_.tile_cols)
        .until_row(min(runs.end(owner), first + at.end));
  }
  // Of x [P, rows, n].
  Slice cut(const TensorRef& x, const Index& which, const Piece& at) const {
    return x.tile({which, at.row, at.col}, at.count, cfg_.tile_cols).until_row(at.end);
  }

 private:
  ProgramBuilder& p_;
  const CollectiveDesc& d_;
  const CollectiveConfig& cfg_;
  TileSpace tiles_;
  std::int64_t num_tiles_;
  TensorRef slots_;
  SignalRef arrived_;
};

std::int64_t most_run_rows(const CollectiveDesc& d) {
  return ceil_div(d.m, std::int64_t{d.world_size});
}

}  // namespace

Program push_all_gather(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_gather", d.world_size);
  Index m = p.extent("m", d.m);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {ceil_div(m, d.world_size), d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Exchange rows(p, d, cfg, {"slots", "arrived"}, {runs.run_rows, most_run_rows(d)});

  p.role("gather", Resource::sms(cfg.num_workers), rows.tiles(), [&](const Tile& t) {
    rows.for_pieces_of(t, [&](const Piece& at) {
      Value mine = p.load(in.tile({at.row, at.col}, at.count, cfg.tile_cols).until_row(at.end));
      rows.for_ranks([&](const Index& peer) { rows.send(peer, at, mine); });
    });
    rows.tell_all(t);
    rows.await_all(t);
    rows.for_pieces_of(t, [&](const Piece& at) {
      rows.move([&](const Index& owner) { return rows.received(owner, at); },
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
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {ceil_div(m, d.world_size), d.n});
  Exchange parts(p, d, cfg, {"slots", "arrived"}, {runs.run_rows, most_run_rows(d)});

  p.role("reduce", Resource::sms(cfg.num_workers), parts.tiles(), [&](const Tile& t) {
    parts.for_pieces_of(t, [&](const Piece& at) {
      parts.move([&](const Index& owner) { return p.load(parts.of_run(in, runs, owner, at)); },
                 [&](const Index& owner, const Value& part) { parts.send(owner, at, part); });
    });
    parts.tell_all(t);
    parts.await_all(t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      p.store(out.tile({at.row, at.col}, at.count, cfg.tile_cols).until_row(at.end), parts.sum(at));
    });
  });
  return finish(p, cfg);
}

Program push_all_reduce(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_two_shot", d.world_size);
  Index m = p.extent("m", d.m);
  Runs runs(m, d, cfg);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Exchange::Rows rows{runs.run_rows, most_run_rows(d)};
  Exchange parts(p, d, cfg, {"slots", "arrived"}, rows);
  Exchange sums(p, d, cfg, {"sums", "reduced"}, rows);

  p.role("reduce", Resource::sms(cfg.num_workers), parts.tiles(), [&](const Tile& t) {
    parts.for_pieces_of(t, [&](const Piece& at) {
      parts.move([&](const Index& owner) { return p.load(parts.of_run(in, runs, owner, at)); },
                 [&](const Index& owner, const Value& part) { parts.send(owner, at, part); });
    });
    parts.tell_all(t);
    parts.await_all(t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      Value sum = parts.sum(at);
      sums.for_ranks([&](const Index& peer) { sums.send(peer, at, sum); });
    });
    sums.tell_all(t);
    sums.await_all(t);
    parts.for_pieces_of(t, [&](const Piece& at) {
      sums.move([&](const Index& owner) { return sums.received(owner, at); },
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
  TensorRef in = p.input("in", d.dtype, {d.world_size, d.m, d.n}, Space::kSymmetric);
  TensorRef counts = p.table("recv_counts", {d.world_size}, {ContractKind::kRange, 0, d.m + 1});
  TensorRef out = p.output("out", d.dtype, {d.world_size, d.m, d.n});
  Exchange blocks(p, d, cfg, {"slots", "arrived"}, {d.m, d.m});

  p.role("exchange", Resource::sms(cfg.num_workers), blocks.tiles(), [&](const Tile& t) {
    blocks.for_pieces_of(t, [&](const Piece& at) {
      blocks.move([&](const Index& peer) { return p.load(blocks.cut(in, peer, at)); },
                  [&](const Index& peer, const Value& block) { blocks.send(peer, at, block); });
    });
    blocks.tell_all(t);
    blocks.await_all(t);
    blocks.for_pieces_of(t, [&](const Piece& at) {
      blocks.move(
          [&](const Index& source) {
            Piece sent = at;
            sent.end = min(at.end, p.read(counts, {source}));
            return blocks.received(source, sent);
          },
          [&](const Index& source, const Value& received) {
            p.store(blocks.cut(out, source, at), received);
          });
    });
  });
  return finish(p, cfg);
}

}  // namespace stretto::collective
