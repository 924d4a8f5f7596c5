// Normalisations of rows whose sums over ranks, or whose columns, are spread over the ranks.
#include <fmt/format.h>

#include <functional>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/ops/norm/norm.h"
#include "stretto/ops/norm/norm_parts.h"
#include "stretto/ops/operator/field_fit.h"
#include "stretto/ops/operator/rank_sum.h"

namespace stretto {
namespace {

// The own rows of what is reduced.
struct OwnRows {
  Index run, first, end;  // rows of a rank; the first of this one's; how many of them there are

  OwnRows(ProgramBuilder& p, const NormDesc& d, const Index& m)
      : run(ceil_div(m, d.world_size)),
        first(p.rank() * run),
        end(max(min(m - p.rank() * run, run), 0)) {}
};

}  // namespace

Program reduce_scatter_add_rms_norm(const NormDesc& d, const NormConfig& cfg) {
  check_norm(d, cfg);
  NormConfig will_run = cfg;
  FieldFit::refusing("reduce_scatter_add_rms_norm " + to_string(d))
      .only("two_shot", will_run.two_shot, false, "sums stay where they are made");
  ProgramBuilder p("reduce_scatter_add_rms_norm", d.world_size);
  Index m = p.extent("m", d.m);
  OwnRows own(p, d, m);
  TensorRef x =
      p.input("x", d.dtype, {m, d.hidden}, cfg.packets ? Space::kLocal : Space::kSymmetric);
  TensorRef weight = p.input("weight", d.weight_dtype, {1, d.hidden});
  TensorRef residual = p.input("residual", d.dtype, {own.run, d.hidden});
  TensorRef sum = p.output("sum", d.dtype, {own.run, d.hidden});
  TensorRef out = p.output("out", d.dtype, {own.run, d.hidden});
  const std::int64_t most_rows = ceil_div(d.m, std::int64_t{d.world_size});
  TileSpace tiles = p.grid(most_rows, 1, cfg.tile_rows, 1);
  // Whole packets, whatever the dtype; what lies past the row is zero.
  std::int64_t width = cfg.packets ? ceil_div(d.hidden, 4) * 4 : d.hidden;
  std::optional<PeerReads> reads;
  std::optional<PacketSums> packets;
  if (cfg.packets) {
    packets.emplace(p,
                    PacketSumsOf{.dtype = d.dtype,
                                 .most_rows = most_rows,
                                 .width = width,
                                 .tile_rows = cfg.tile_rows,
                                 .threads = cfg.threads},
                    own.run);
  } else {
    reads.emplace(p);
  }

  p.role("reduce_norm", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    auto padded = [&](const TensorRef& tensor) {
      return tensor.tile({t.row, 0}, cfg.tile_rows, width);
    };
    // Of x, the rows of that rank.
    auto part = [&](const TensorRef& of, const Index& owner) {
      Index first = p.let("first", owner * own.run);
      return p.load(
          of.tile({first + t.row, 0}, cfg.tile_rows, width).until_row(min(m, first + own.run)));
    };
    Value reduced;
    if (cfg.packets) {
      packets->send(t, [&](const Index& peer) { return part(x, peer); });
      reduced = packets->received(t, part(x, p.rank()));
    } else {
      p.wait_all(reads->ready());
      reduced = cast(sum_over_ranks(p, {d.dtype, cfg.tile_rows, width},
                                    [&](const Index& r) { return part(x.on(r), p.rank()); }),
                     d.dtype);
      reads->notify_done();
    }
    auto load_weight = [&] { return p.load(weight.tile({0, 0}, 1, width)); };
    store_normalised(p, {.dtype = d.dtype, .hidden = d.hidden, .eps = d.eps},
                     {.reduced = reduced,
                      .residual = p.load(padded(residual).until_row(own.end)),
                      .weight = load_weight,
                      .sum = padded(sum),
                      .out = padded(out)});
  });
  if (!cfg.packets) reads->wait_at_end(tiles.count());
  return finish_with_threads(p, cfg.threads);
}

// A worker sends the sum of a tile's squares, then normalises the tile before, whose sums have come
// meanwhile.
Program rms_norm_columns(const NormDesc& d, const NormConfig& cfg) {
  check_norm(d, cfg);
  if (d.dtype == DType::kF64) {
    throw UserError("rms_norm_columns: dtype is float64, need one of 16 or 32 bits");
  }
  NormConfig will_run = cfg;
  auto fields = FieldFit::refusing("rms_norm_columns " + to_string(d));
  fields.only("packets", will_run.packets, true, "sums of squares travel as packets");
  fields.only("two_shot", will_run.two_shot, false, "a sum is one number");
  ProgramBuilder p("rms_norm_columns", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef x = p.input("x", d.dtype, {m, d.hidden});
  TensorRef weight = p.input("weight", d.weight_dtype, {1, d.hidden});
  TensorRef residual, sum;
  if (d.add_residual) {
    residual = p.input("residual", d.dtype, {m, d.hidden});
    sum = p.output("sum", d.dtype, {m, d.hidden});
  }
  TensorRef out = p.output("out", d.dtype, {m, d.hidden});
  PacketSums squares(p, {.most_rows = d.m, .tile_rows = cfg.tile_rows, .threads = cfg.threads}, m);

  const std::int64_t tiles = ceil_div(d.m, cfg.tile_rows), apart = cfg.num_workers;
  auto rows = [&](const TensorRef& tensor, const Index& row) {
    return tensor.tile({row, 0}, cfg.tile_rows, d.hidden);
  };
  // In f32, as it is normalised; and its squares' sum.
  auto load = [&](const Index& row) {
    Value v = cast(p.load(rows(x, row)), DType::kF32);
    if (!d.add_residual) return v;
    Value old = cast(p.load(rows(residual, row)), DType::kF32);
    return cast(cast(v + old, d.dtype), DType::kF32);
  };
  p.role("norm", Resource::sms(cfg.num_workers), p.range(tiles + apart), [&](const Tile& turn) {
    Index next = turn.index, tile = p.let("tile", turn.index - apart);
    p.when(next < tiles, [&] {
      Tile t{.index = next, .row = p.let("row", next * cfg.tile_rows)};
      Value v = load(t.row);
      Value mine = row_sum(v * v);
      squares.send(t, [&](const Index&) { return mine; });
    });
    p.when(tile >= 0, [&] {
      Tile t{.index = tile, .row = p.let("row", tile * cfg.tile_rows)};
      Value scale = p.load(weight.tile({0, 0}, 1, d.hidden));
      Value v = load(t.row);
      Value total = squares.received(t, row_sum(v * v));
      if (d.add_residual) p.store(rows(sum, t.row), cast(v, d.dtype));
      const double columns = static_cast<double>(d.hidden * d.world_size);
      const RowNorm norm{.dtype = d.dtype, .hidden = d.hidden, .eps = d.eps};
      p.store(rows(out, t.row), normalise_with(norm, v, scale, total / columns));
    });
  });
  return finish_with_threads(p, cfg.threads);
}

}  // namespace stretto
