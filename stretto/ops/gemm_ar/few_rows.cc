#include "stretto/ops/gemm_ar/few_rows.h"

#include <functional>
#include <optional>
#include <utility>

#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/operator/rank_sum.h"

namespace stretto::few_rows {

std::int64_t num_tiles(const GemmArDesc& d, const GemmTile& tile) {
  return ceil_div(d.m, tile.bm) * ceil_div(d.n, tile.bn);
}

std::int64_t tiles_per_channel(const GemmArDesc& d, const GemmArConfig& cfg) {
  return cfg.num_reduce_sms == 0 ? 1 : ceil_div(num_tiles(d, cfg.loop.tile), cfg.channels);
}

std::int64_t shared_rows(const GemmArDesc& d, const GemmTile& tile) {
  return ceil_div(tile.bm, std::int64_t{d.world_size});
}

namespace {

// What these programs declare alike, and what they do alike with a tile: its part of the sum before
// it travels, the output after that.
class Layer {
 public:
  Layer(ProgramBuilder& p, const GemmArDesc& d, const GemmTile& tile)
      : m(p.extent("m", d.m)),
        p_(p),
        d_(d),
        tile_(tile),
        a_(p.input("a", d.a_dtype, {m, d.k})),  // [m, k]
        linear_(p, {.n = d.n, .k = d.k, .dtype = d.b_dtype, .scaling = d.scaling, .b_kn = d.b_kn}),
        scale_a_(scale_input(p, d.scaling, m, d.k)) {                        // [m, 1] or [m, k/128]
    if (d.residual) residual_ = p.input("residual", d.out_dtype, {m, d.n});  // [m, n]
    out_ = p.output("out", d.out_dtype, {m, d.n}, Space::kSymmetric);        // [m, n]
  }

  Value partial(const Tile& t) {
    TileRows rows = tile_rows(a_, scale_a_, tile_, {.row = t.row});
    return cast(linear_.product(tile_, t.col, rows), d_.out_dtype);
  }

  // What the sum is added to; no value without.
  std::optional<Value> residual(const Tile& t) { return residual_of(t, t.row, tile_.bm); }
  // The same of `count` rows from `row` on.
  std::optional<Value> residual_of(const Tile& t, const Index& row, std::int64_t count) {
    if (!d_.residual) return {};
    return p_.load(residual_.tile({row, t.col}, count, tile_.bn));
  }
  Value finished(Value sum, const std::optional<Value>& residual) const {
    if (residual) sum = sum + cast(*residual, sum.dtype());
    return cast(sum, d_.out_dtype);
  }
  void finish(const Tile& t, Value sum, const std::optional<Value>& residual) {
    p_.store(out(t, t.row, tile_.bm), finished(std::move(sum), residual));
  }
  Slice out(const Tile& t, const Index& row, std::int64_t count) const {
    return out_.tile({row, t.col}, count, tile_.bn);
  }

  const Index m;

 private:
  ProgramBuilder& p_;
  const GemmArDesc& d_;
  const GemmTile& tile_;
  TensorRef a_;
  Linear linear_;
  TensorRef scale_a_, residual_, out_;
};

// For as many ranks, the next one first, the own one, if it is among them, last.
void for_ranks(ProgramBuilder& p, int count, const std::function<void(const Index& rank)>& fn) {
  if (count == 0) return;
  p.loop(count, [&](const Index& i) { fn(p.let("peer", (p.rank() + 1 + i) % p.world_size())); });
}

}  // namespace

Program one_shot(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm_ar", d.world_size);
  Layer layer(p, d, tile);
  const Index& m = layer.m;
  auto slots = p.buffer("slots", d.out_dtype, {d.world_size, m, d.n},
                        {.space = Space::kSymmetric, .num_slots = cfg.num_slots});  // [P, m, n]

  const std::int64_t all = num_tiles(d, tile), per_channel = tiles_per_channel(d, cfg);
  const std::int64_t channels = ceil_div(all, per_channel);
  bool in_epilogue = cfg.num_reduce_sms == 0;
  auto tiles = p.grid(d.m, d.n, tile.bm, tile.bn);
  auto arrived = p.signal("arrived", d.world_size * channels);  // by sender and group of tiles
  bool credit = cfg.num_slots == 1;
  SignalRef ready;
  if (credit) ready = p.signal("ready");

  auto await = [&](const Tile& t, const Index& source) {
    Index channel = p.let("channel", t.index / per_channel);
    Index count = p.let("count", min(per_channel, all - channel * per_channel));
    p.wait(arrived[source * channels + channel], count);
  };
  auto part_of = [&](const Tile& t, const Index& source) {
    return p.load(slots.tile({source, t.row, t.col}, tile.bm, tile.bn));
  };
  auto finish = [&](const Tile& t, Value sum) {
    layer.finish(t, std::move(sum), layer.residual(t));  // after the sum: both fill the registers
  };

  p.on_start([&] {
    if (credit) p.notify_all(ready);
  });
  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, tiles, [&](const Tile& t) {
    // Who sums its own tiles has its part in registers.
    const int receivers = d.world_size - (in_epilogue ? 1 : 0);
    Value mine = p.zeros(d.out_dtype, tile.bm, tile.bn);
    p.when(t.row < m, [&] {
      mine = layer.partial(t);
      for_ranks(p, receivers, [&](const Index& peer) {
        if (credit) p.wait(ready, peer);
        p.store(slots.tile({p.rank(), t.row, t.col}, tile.bm, tile.bn).on(peer), mine);
      });
    });
    for_ranks(p, receivers, [&](const Index& peer) {
      p.notify(arrived[p.rank() * channels + t.index / per_channel], peer);
    });
    if (!in_epilogue) return;
    for_ranks(p, receivers, [&](const Index& source) { await(t, source); });
    finish(t, sum_with_own(p, mine, [&](const Index& source) { return part_of(t, source); }));
  });
  if (!in_epilogue) {
    p.role("reduce", Resource::sms(cfg.num_reduce_sms), tiles, [&](const Tile& t) {
      Value sum = p.zeros(sum_dtype(d.out_dtype), tile.bm, tile.bn);
      p.loop(d.world_size, [&](const Index& source) {
        await(t, source);
        sum = sum + cast(part_of(t, source), sum.dtype());
      });
      finish(t, std::move(sum));
    });
  }
  return p.finish();
}

Program packets(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm_ar", d.world_size);
  Layer layer(p, d, tile);
  std::int64_t n = ceil_div(d.n, 4) * 4;  // whole packets in every row, whatever the dtype
  auto inbox = p.buffer("inbox", d.out_dtype, {d.world_size, d.m, n},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  Index end = max(layer.m, 1);

  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, p.grid(d.m, d.n, tile.bm, tile.bn), [&](const Tile& t) {
    // On its way while the product goes on: few rows leave room for it.
    std::optional<Value> residual = layer.residual(t);
    Value mine = layer.partial(t);
    auto slot = [&](const Index& source) {
      return inbox.tile({source, t.row, t.col}, tile.bm, tile.bn).until_row(end);
    };
    p.loop(1, d.world_size, [&](const Index& i) {
      Index peer = p.let("peer", (p.rank() + i) % d.world_size);
      p.store_packet(slot(p.rank()).on(peer), mine);
    });
    Value sum =
        sum_with_own(p, mine, [&](const Index& source) { return p.load_packet(slot(source)); });
    layer.finish(t, std::move(sum), residual);
  });
  return p.finish();
}

namespace {

// Of each tile, by owner, the rows from owner * shared_rows on.
class SharedTiles {
 public:
  SharedTiles(const GemmArDesc& d, const GemmArConfig& cfg)
      : cfg_(cfg),
        tile_(cfg.loop.tile),
        dtype_(d.out_dtype),
        world_(d.world_size),
        rows_(shared_rows(d, cfg.loop.tile)),
        num_tiles_(num_tiles(d, cfg.loop.tile)),
        row_tiles_(ceil_div(d.m, cfg.loop.tile.bm)),
        p_("gemm_ar", d.world_size),
        layer_(p_, d, cfg.loop.tile),
        tiles_(p_.grid(d.m, d.n, tile_.bm, tile_.bn)) {
    // Whole packets in every row, whatever the dtype.
    Index cols = cfg.packets ? ceil_div(d.n, 4) * 4 : d.n, planes = world_ * row_tiles_;
    BufferOptions slots{
        .space = Space::kSymmetric, .num_slots = cfg.num_slots, .packet = cfg.packets};
    parts_ = p_.buffer("parts", dtype_, {planes, rows_, cols}, slots);  // by source, tile of rows
    if (cfg.packets) {
      sums_ = p_.buffer("sums", dtype_, {planes, rows_, cols}, slots);  // by owner, tile of rows
      return;
    }
    arrived_ = p_.signal("arrived", world_ * num_tiles_);  // by source and tile
    gathered_ = p_.signal("gathered");                     // by owner: tiles in `out`
  }

  Program run() {
    Resource sms = product_sms(cfg_.loop);
    p_.role("gemm", sms, tiles_,
            [&](const Tile& t) { cfg_.packets ? tile_of_packets(t) : tile_of_signals(t); });
    if (!cfg_.packets) {
      p_.on_end([&] {
        p_.loop(world_, [&](const Index& owner) { p_.wait(gathered_[owner], num_tiles_); });
      });
    }
    return p_.finish();
  }

 private:
  // Every launch exchanges at least a row of every share, so that no rank runs two launches ahead.
  void tile_of_packets(const Tile& t) {
    send_parts(t);
    std::optional<Value> residual = layer_.residual_of(t, own_row(t), rows_);
    Value sum = layer_.finished(sum_of(t), residual);
    for_ranks(p_, world_ - 1, [&](const Index& peer) {
      p_.store_packet(of_owner(sums_, t, p_.rank()).on(peer), sum);
    });
    p_.store(out(t, p_.rank()), sum);
    move_by_peer(
        p_, [&](const Index& owner) { return p_.load_packet(of_owner(sums_, t, owner)); },
        [&](const Index& owner, const Value& received) { p_.store(out(t, owner), received); });
  }

  // A sum exists only after every rank has sent its part, hence after every rank has started this
  // launch: its output may be written without further asking. And a launch ends after all sums, so
  // that parts may be written again.
  void tile_of_signals(const Tile& t) {
    p_.when(t.row < layer_.m, [&] { send_parts(t); });
    for_all(
        [&](const Index& owner) { p_.notify(arrived_[p_.rank() * num_tiles_ + t.index], owner); });
    p_.loop(world_, [&](const Index& s) { p_.wait(arrived_[s * num_tiles_ + t.index], 1); });
    p_.when(t.row < layer_.m, [&] {
      Value sum = sum_of(t);  // before the residual: both fill the registers
      Value all = layer_.finished(sum, layer_.residual_of(t, own_row(t), rows_));
      for_all([&](const Index& peer) { p_.store(out(t, p_.rank()).on(peer), all); });
    });
    for_all([&](const Index& peer) { p_.notify(gathered_, peer); });
  }

  void for_all(const std::function<void(const Index& rank)>& fn) {
    for_ranks(p_, p_.world_size(), fn);
  }

  void send_parts(const Tile& t) {
    Value mine = layer_.partial(t);
    for_all([&](const Index& owner) {
      // Rows before the owner's come to lie before its first, and are masked.
      Index first = Index(0) - owner * rows_;
      Slice part = parts_.tile({plane(t, p_.rank()), first, t.col}, tile_.bm, tile_.bn)
                       .until_row(share(t, owner))
                       .on(owner);
      cfg_.packets ? p_.store_packet(part, mine) : p_.store(part, mine);
    });
  }
  Value sum_of(const Tile& t) {
    return sum_over_ranks(p_, {dtype_, rows_, tile_.bn}, [&](const Index& source) {
      Slice part =
          parts_.tile({plane(t, source), 0, t.col}, rows_, tile_.bn).until_row(share(t, p_.rank()));
      return cfg_.packets ? p_.load_packet(part) : p_.load(part);
    });
  }

  Index plane(const Tile& t, const Index& rank) const { return rank * row_tiles_ + t.m; }
  Index own_row(const Tile& t) { return p_.let("own_row", t.row + p_.rank() * rows_); }
  // Rows of a tile that an owner has in this launch, of packets at least one.
  Index share(const Tile& t, const Index& owner) const {
    Index first = owner * rows_;
    Index rows = min(min(tile_.bm - first, layer_.m - t.row - first), rows_);
    return cfg_.packets ? max(rows, 1) : rows;
  }
  Slice of_owner(const TensorRef& planes, const Tile& t, const Index& owner) const {
    return planes.tile({plane(t, owner), 0, t.col}, rows_, tile_.bn).until_row(share(t, owner));
  }
  Slice out(const Tile& t, const Index& owner) const {
    return layer_.out(t, t.row + owner * rows_, rows_).until_row(t.row + tile_.bm);
  }

  const GemmArConfig& cfg_;
  const GemmTile& tile_;
  const DType dtype_;
  const std::int64_t world_, rows_, num_tiles_, row_tiles_;
  ProgramBuilder p_;
  Layer layer_;
  TileSpace tiles_;
  TensorRef parts_, sums_;
  SignalRef arrived_, gathered_;
};

}  // namespace

Program shared_tiles(const GemmArDesc& d, const GemmArConfig& cfg) {
  return SharedTiles(d, cfg).run();
}

}  // namespace stretto::few_rows
