#include "stretto/ops/gemm_ar/few_rows.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/ops/gemm/k_parts.h"
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

// The rows of a tile that values have, one piece after the other.
struct Pieces {
  explicit Pieces(const GemmArConfig& cfg) {
    const std::int64_t bm = cfg.loop.tile.bm;
    if (cfg.swap_ab && bm > kMostTurnedRows && bm % 16 == 0) count = 2;
    rows = bm / count;
  }
  std::int64_t count = 1, rows = 0;
};

// What these programs declare alike, and what they do alike with a tile: its part of the sum before
// it travels, the output after that.
class Layer {
 public:
  Layer(ProgramBuilder& p, const GemmArDesc& d, const GemmArConfig& cfg)
      : m(p.extent("m", d.m)),
        pieces(cfg),
        p_(p),
        d_(d),
        tile_(cfg.loop.tile),
        swap_ab_(cfg.swap_ab),
        a_(p.input("a", d.a_dtype, {m, d.k})),  // [m, k]
        linear_(p, {.n = d.n,
                    .k = d.k,
                    .dtype = d.b_dtype,
                    .scaling = d.scaling,
                    .b_kn = d.b_kn,
                    .swap_ab = cfg.swap_ab}),
        scale_a_(scale_input(p, d.scaling, m, d.k)) {                        // [m, 1] or [m, k/128]
    if (d.residual) residual_ = p.input("residual", d.out_dtype, {m, d.n});  // [m, n]
    out_ = p.output("out", d.out_dtype, {m, d.n}, Space::kSymmetric);        // [m, n]
  }

  Index row_of(const Tile& t, std::size_t piece) const {
    return t.row + static_cast<std::int64_t>(piece) * pieces.rows;
  }

  // By piece, [pieces.rows, bn].
  std::vector<Value> partial(const Tile& t) {
    return part_of(linear_.product(tile_, t.col, rows(t)));
  }
  // The same of some steps of k, which `run` gets the sums of.
  void partial_of_part(const Tile& t, const KParts& parts, const KParts::Part& part,
                       const std::function<void(std::vector<Value> mine)>& run) {
    Linear::Sums sums = linear_.sums(tile_, t.col);
    linear_.accumulate(sums, tile_, t.col, rows(t), part.steps);
    parts.add_up(part, sums, [&] { run(part_of(linear_.finish(std::move(sums), tile_, t.col))); });
  }

  // What the sum of `count` rows from `row` on is added to; no value without.
  std::optional<Value> residual_of(const Tile& t, const Index& row, std::int64_t count) {
    if (!d_.residual) return {};
    return p_.load(residual_.tile({row, t.col}, count, tile_.bn));
  }
  Value finished(Value sum, const std::optional<Value>& residual) const {
    if (residual) sum = sum + cast(*residual, sum.dtype());
    return cast(sum, d_.out_dtype);
  }
  Slice out(const Tile& t, const Index& row, std::int64_t count) const {
    return out_.tile({row, t.col}, count, tile_.bn);
  }

  const Index m;
  const Pieces pieces;

 private:
  TileRows rows(const Tile& t) const { return tile_rows(a_, scale_a_, tile_, {.row = t.row}); }
  // A rank's part of the sum, rounded, and turned where it has to be.
  std::vector<Value> part_of(const Value& product) const {
    Value all = cast(product, d_.out_dtype);
    if (!swap_ab_) return {all};
    if (pieces.count == 1) return {all.T()};
    std::vector<Value> out;
    for (std::int64_t i = 0; i < pieces.count; ++i) {
      out.push_back(columns(all, i * pieces.rows, pieces.rows).T());
    }
    return out;
  }

  ProgramBuilder& p_;
  const GemmArDesc& d_;
  const GemmTile& tile_;
  const bool swap_ab_;
  TensorRef a_;
  Linear linear_;
  TensorRef scale_a_, residual_, out_;
};

// For as many ranks, the next one first, the own one, if it is among them, last.
void for_ranks(ProgramBuilder& p, int count, const std::function<void(const Index& rank)>& fn) {
  if (count == 0) return;
  p.loop(count, [&](const Index& i) { fn(p.let("peer", (p.rank() + 1 + i) % p.world_size())); });
}

// Partial sums go to every rank, which adds them in the epilogue of its own tiles or on SMs of
// their own.
class OneShot {
 public:
  OneShot(const GemmArDesc& d, const GemmArConfig& cfg)
      : d_(d),
        cfg_(cfg),
        tile_(cfg.loop.tile),
        num_tiles_(num_tiles(d, cfg.loop.tile)),
        per_channel_(tiles_per_channel(d, cfg)),
        channels_(ceil_div(num_tiles_, per_channel_)),
        in_epilogue_(cfg.num_reduce_sms == 0),
        p_("gemm_ar", d.world_size),
        layer_(p_, d, cfg) {
    slots_ = p_.buffer("slots", d.out_dtype, {d.world_size, layer_.m, d.n},
                       {.space = Space::kSymmetric, .num_slots = cfg.num_slots});  // [P, m, n]
    arrived_ = p_.signal("arrived", d.world_size * channels_);  // by sender and group of tiles
    if (has_credit()) ready_ = p_.signal("ready");
  }

  Program run() {
    p_.on_start([&] {
      if (has_credit()) p_.notify_all(ready_);
    });
    cfg_.split_k > 1 ? multiply_parts() : multiply();
    if (!in_epilogue_) reduce();
    return p_.finish();
  }

 private:
  bool has_credit() const { return cfg_.num_slots == 1; }
  TileSpace tiles() { return p_.grid(d_.m, d_.n, tile_.bm, tile_.bn); }

  void multiply() {
    p_.role("gemm", product_sms(cfg_.loop), tiles(), [&](const Tile& t) {
      std::vector<Value> mine = zeros(d_.out_dtype);
      p_.when(t.row < layer_.m, [&] {
        std::vector<Value> made = layer_.partial(t);
        for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = std::move(made[i]);
        send(t, mine);
      });
      sent(t, mine);
    });
  }
  // Several workers to a tile, of which the last one goes on with it.
  void multiply_parts() {
    KParts parts(p_,
                 {.m = d_.m,
                  .n = d_.n,
                  .k = d_.k,
                  .tile = tile_,
                  .parts = cfg_.split_k,
                  .sum = sum_dtype(d_.b_dtype),
                  .swap_ab = cfg_.swap_ab},
                 layer_.m);
    p_.role("gemm", product_sms(cfg_.loop), parts.tiles(), [&](const Tile& t) {
      KParts::Part part = parts.part_of(t);
      Tile whole = t;
      whole.row = part.row, whole.index = part.channel;
      layer_.partial_of_part(whole, parts, part, [&](const std::vector<Value>& mine) {
        send(whole, mine);
        sent(whole, mine);
      });
    });
  }
  void reduce() {
    p_.role("reduce", Resource::sms(cfg_.num_reduce_sms), tiles(), [&](const Tile& t) {
      std::vector<Value> sums = zeros(sum_dtype(d_.out_dtype));
      p_.loop(d_.world_size, [&](const Index& source) {
        await(t, source);
        for (std::size_t i = 0; i < sums.size(); ++i) {
          Value part = p_.load(slot(source, t, layer_.row_of(t, i)));
          sums[i] = sums[i] + cast(part, sums[i].dtype());
        }
      });
      for (std::size_t i = 0; i < sums.size(); ++i) {
        finish(t, layer_.row_of(t, i), std::move(sums[i]));
      }
    });
  }

  // Who sums its own tiles has its part in registers.
  int receivers() const { return d_.world_size - (in_epilogue_ ? 1 : 0); }
  void send(const Tile& t, const std::vector<Value>& mine) {
    for_ranks(p_, receivers(), [&](const Index& peer) {
      if (has_credit()) p_.wait(ready_, peer);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        p_.store(slot(p_.rank(), t, layer_.row_of(t, i)).on(peer), mine[i]);
      }
    });
  }
  void sent(const Tile& t, const std::vector<Value>& mine) {
    for_ranks(p_, receivers(), [&](const Index& peer) {
      p_.notify(arrived_[p_.rank() * channels_ + t.index / per_channel_], peer);
    });
    if (!in_epilogue_) return;
    for_ranks(p_, receivers(), [&](const Index& source) { await(t, source); });
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const Index row = layer_.row_of(t, i);
      finish(t, row, sum_with_own(p_, mine[i], [&](const Index& source) {
               return p_.load(slot(source, t, row));
             }));
    }
  }
  void await(const Tile& t, const Index& source) {
    Index channel = p_.let("channel", t.index / per_channel_);
    Index count = p_.let("count", min(per_channel_, num_tiles_ - channel * per_channel_));
    p_.wait(arrived_[source * channels_ + channel], count);
  }
  void finish(const Tile& t, const Index& row, Value sum) {
    const std::int64_t rows = layer_.pieces.rows;
    // After the sum: both fill the registers.
    std::optional<Value> residual = layer_.residual_of(t, row, rows);
    p_.store(layer_.out(t, row, rows), layer_.finished(std::move(sum), residual));
  }

  std::vector<Value> zeros(DType dtype) {
    std::vector<Value> out;
    for (std::int64_t i = 0; i < layer_.pieces.count; ++i) {
      out.push_back(p_.zeros(dtype, layer_.pieces.rows, tile_.bn));
    }
    return out;
  }
  Slice slot(const Index& source, const Tile& t, const Index& row) const {
    return slots_.tile({source, row, t.col}, layer_.pieces.rows, tile_.bn);
  }

  const GemmArDesc& d_;
  const GemmArConfig& cfg_;
  const GemmTile& tile_;
  const std::int64_t num_tiles_, per_channel_, channels_;
  const bool in_epilogue_;
  ProgramBuilder p_;
  Layer layer_;
  TensorRef slots_;
  SignalRef arrived_, ready_;
};

}  // namespace

Program one_shot(const GemmArDesc& d, const GemmArConfig& cfg) { return OneShot(d, cfg).run(); }

Program packets(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm_ar", d.world_size);
  Layer layer(p, d, cfg);
  std::int64_t n = ceil_div(d.n, 4) * 4;  // whole packets in every row, whatever the dtype
  auto inbox = p.buffer("inbox", d.out_dtype, {d.world_size, d.m, n},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  Index end = max(layer.m, 1);

  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, p.grid(d.m, d.n, tile.bm, tile.bn), [&](const Tile& t) {
    auto row_of = [&](std::size_t piece) { return layer.row_of(t, piece); };
    const std::int64_t rows = layer.pieces.rows;
    // On its way while the product goes on: few rows leave room for it.
    std::vector<std::optional<Value>> residuals;
    for (std::int64_t i = 0; i < layer.pieces.count; ++i) {
      residuals.push_back(layer.residual_of(t, row_of(residuals.size()), rows));
    }
    std::vector<Value> mine = layer.partial(t);
    auto slot = [&](const Index& source, std::size_t piece) {
      return inbox.tile({source, row_of(piece), t.col}, rows, tile.bn).until_row(end);
    };
    p.loop(1, d.world_size, [&](const Index& i) {
      Index peer = p.let("peer", (p.rank() + i) % d.world_size);
      for (std::size_t piece = 0; piece < mine.size(); ++piece) {
        p.store_packet(slot(p.rank(), piece).on(peer), mine[piece]);
      }
    });
    for (std::size_t piece = 0; piece < mine.size(); ++piece) {
      Value sum = sum_with_own(
          p, mine[piece], [&](const Index& source) { return p.load_packet(slot(source, piece)); });
      p.store(layer.out(t, row_of(piece), rows), layer.finished(std::move(sum), residuals[piece]));
    }
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
        layer_(p_, d, cfg),
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
    std::vector<Value> mine = layer_.partial(t);
    const std::int64_t rows = layer_.pieces.rows;
    for_all([&](const Index& owner) {
      for (std::size_t i = 0; i < mine.size(); ++i) {
        // Rows before the owner's come to lie before its first, and are masked.
        Index first = static_cast<std::int64_t>(i) * rows - owner * rows_;
        Slice part = parts_.tile({plane(t, p_.rank()), first, t.col}, rows, tile_.bn)
                         .until_row(share(t, owner))
                         .on(owner);
        cfg_.packets ? p_.store_packet(part, mine[i]) : p_.store(part, mine[i]);
      }
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
