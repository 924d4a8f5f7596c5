#include "stretto/ops/gemm_ar/gemm_ar.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dot.h"
#include "stretto/ops/gemm_rs/partial_sums.h"
#include "stretto/ops/harness/field_fit.h"

namespace stretto {
namespace {

// The reduce-scatter half of two shots.
GemmRsDesc scattered(const GemmArDesc& d) {
  return {.world_size = d.world_size,
          .m = d.m,
          .n = d.n,
          .k = d.k,
          .a_dtype = d.a_dtype,
          .b_dtype = d.b_dtype,
          .out_dtype = d.out_dtype,
          .scaling = d.scaling,
          .b_kn = d.b_kn};
}

GemmRsConfig scattered(const GemmArConfig& cfg) {
  return {.tile = cfg.tile,
          .num_compute_sms = cfg.num_compute_sms,
          .num_reduce_sms = cfg.num_reduce_sms,
          .scatter = cfg.scatter,
          .num_copy_queues = cfg.num_copy_queues,
          .channels_per_rank = cfg.channels,
          .num_slots = cfg.num_slots,
          .num_stages = cfg.num_stages,
          .raster = cfg.raster,
          .stagger = cfg.stagger,
          .store_slots = cfg.store_slots,
          .load_slots = cfg.load_slots};
}

std::int64_t num_tiles(const GemmArDesc& d, const GemmTile& tile) {
  return ceil_div(d.m, tile.bm) * ceil_div(d.n, tile.bn);
}

// Tiles of the largest m that share a channel, so that each launch notifies alike. A tile whose
// epilogue waited for later ones of the same SM would wait for ever.
std::int64_t tiles_per_channel(const GemmArDesc& d, const GemmArConfig& cfg) {
  return cfg.num_reduce_sms == 0 ? 1 : ceil_div(num_tiles(d, cfg.tile), cfg.channels);
}

void fit(const FieldFit& fields, const GemmArDesc& d, GemmArConfig& c) {
  bool two = c.shots == ReduceShots::kTwo;
  if (two || c.num_reduce_sms > 0) {
    fields.only("packets", c.packets, false, "packets need one shot with sums in the epilogue");
  }
  if (two) {
    int load_slots = fitted(scattered(d), scattered(c)).load_slots;
    fields.only("load_slots", c.load_slots, load_slots,
                "loads ahead need stages, copy engines and sums in the epilogue");
  } else {
    fields.only("store_slots", c.store_slots, 0, "an agent that stores needs two shots");
    fields.only("load_slots", c.load_slots, 0, "loads ahead need two shots");
  }
  if (d.world_size == 1) return;
  if (two) {
    GemmRsConfig possible = fitted(scattered(d), scattered(c));
    std::string reason = fmt::format("tiles of {} rows, by {} ranks", c.tile.bm, d.world_size);
    fields.only("channels", c.channels, possible.channels_per_rank, reason);
    fields.only("raster", c.raster, possible.raster, reason);
    if (c.gather == Scatter::kEpilogue) {
      fields.only("num_copy_queues", c.num_copy_queues, possible.num_copy_queues,
                  "the epilogue scatters");
    }
    return;
  }
  const char* one_shot = "every rank sums all rows, which go to it in one shot";
  fields.only("scatter", c.scatter, Scatter::kEpilogue, one_shot);
  fields.only("gather", c.gather, Scatter::kEpilogue, one_shot);
  fields.only("num_copy_queues", c.num_copy_queues, 1, one_shot);
  fields.only("raster", c.raster, 1, one_shot);
  if (c.packets) fields.only("num_slots", c.num_slots, 2, "packets have no other order");
  const std::int64_t tiles = std::max<std::int64_t>(num_tiles(d, c.tile), 1);
  fields.only("channels", c.channels,
              ceil_div(tiles, std::max<std::int64_t>(tiles_per_channel(d, c), 1)),
              fmt::format("{} tiles, as many to a channel, one where its SM sums it", tiles));
}

void check(const GemmArDesc& d, const GemmArConfig& cfg) {
  check_product_sizes("gemm_ar", d, cfg);
  check_sizes("gemm_ar", {{"channels", cfg.channels},
                          {"num_slots", cfg.num_slots},
                          {"num_copy_queues", cfg.num_copy_queues}});
  check_sizes("gemm_ar", {{"num_reduce_sms", cfg.num_reduce_sms}, {"load_slots", cfg.load_slots}},
              0);
  check_factors("gemm_ar", {d.a_dtype, d.b_dtype, d.scaling, cfg.tile, d.b_kn});
  check_result("gemm_ar", "out_dtype", d.out_dtype, d.a_dtype);
  GemmArConfig will_run = cfg;
  fit(FieldFit::refusing(to_string(d)), d, will_run);
}

// What the programs of one hop declare alike, and what they do alike with a tile: its part of the
// sum before the hop, the output after it.
class OneHop {
 public:
  OneHop(ProgramBuilder& p, const GemmArDesc& d, const GemmTile& tile)
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
  std::optional<Value> residual(const Tile& t) {
    if (!d_.residual) return {};
    return p_.load(slice(residual_, t));
  }
  void finish(const Tile& t, Value sum, const std::optional<Value>& residual) {
    if (residual) sum = sum + cast(*residual, sum.dtype());
    p_.store(slice(out_, t), cast(sum, d_.out_dtype));
  }

  const Index m;

 private:
  Slice slice(const TensorRef& tensor, const Tile& t) const {
    return tensor.tile({t.row, t.col}, tile_.bm, tile_.bn);
  }

  ProgramBuilder& p_;
  const GemmArDesc& d_;
  const GemmTile& tile_;
  TensorRef a_;
  Linear linear_;
  TensorRef scale_a_, residual_, out_;
};

Program one_shot(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.tile;
  ProgramBuilder p("gemm_ar", d.world_size);
  OneHop hop(p, d, tile);
  const Index& m = hop.m;
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
  auto sum_of = [&](const Tile& t) {
    Value sum = p.zeros(sum_dtype(d.out_dtype), tile.bm, tile.bn);
    p.loop(d.world_size, [&](const Index& source) {
      await(t, source);
      Slice partial = slots.tile({source, t.row, t.col}, tile.bm, tile.bn);
      sum = sum + cast(p.load(partial), sum.dtype());
    });
    return sum;
  };

  auto finish = [&](const Tile& t) {
    Value sum = sum_of(t);
    hop.finish(t, std::move(sum), hop.residual(t));  // after the sum: both fill the registers
  };

  p.on_start([&] {
    if (credit) p.notify_all(ready);
  });
  Resource sms =
      Resource::sms(cfg.num_compute_sms).pipelined(cfg.num_stages).staggered(cfg.stagger);
  p.role("gemm", sms, tiles, [&](const Tile& t) {
    p.when(t.row < m, [&] {
      Value partial = hop.partial(t);
      p.loop(d.world_size, [&](const Index& i) {
        Index peer = p.let("peer", (p.rank() + 1 + i) % d.world_size);
        if (credit) p.wait(ready, peer);
        p.store(slots.tile({p.rank(), t.row, t.col}, tile.bm, tile.bn).on(peer), partial);
      });
    });
    p.loop(d.world_size, [&](const Index& i) {
      p.notify(arrived[p.rank() * channels + t.index / per_channel],
               (p.rank() + 1 + i) % d.world_size);
    });
    if (in_epilogue) finish(t);
  });
  if (!in_epilogue) {
    p.role("reduce", Resource::sms(cfg.num_reduce_sms), tiles, finish);
  }
  return p.finish();
}

// One shot whose partial sums carry their own flags: one way over the link, no signal after it, for
// twice the bytes. Every launch exchanges at least a row, so that no rank runs two launches ahead.
Program packets(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.tile;
  ProgramBuilder p("gemm_ar", d.world_size);
  OneHop hop(p, d, tile);
  std::int64_t n = ceil_div(d.n, 4) * 4;  // whole packets in every row, whatever the dtype
  auto inbox = p.buffer("inbox", d.out_dtype, {d.world_size, d.m, n},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  Index end = max(hop.m, 1);

  Resource sms =
      Resource::sms(cfg.num_compute_sms).pipelined(cfg.num_stages).staggered(cfg.stagger);
  p.role("gemm", sms, p.grid(d.m, d.n, tile.bm, tile.bn), [&](const Tile& t) {
    // On its way while the product goes on: few rows leave room for it.
    std::optional<Value> residual = hop.residual(t);
    Value mine = hop.partial(t);
    auto slot = [&](const Index& source) {
      return inbox.tile({source, t.row, t.col}, tile.bm, tile.bn).until_row(end);
    };
    p.loop(1, d.world_size, [&](const Index& i) {
      Index peer = p.let("peer", (p.rank() + i) % d.world_size);
      p.store_packet(slot(p.rank()).on(peer), mine);
    });
    Value sum = p.zeros(sum_dtype(d.out_dtype), tile.bm, tile.bn);
    auto receive = [&](const Index& source) {
      sum = sum + cast(p.load_packet(slot(source)), sum.dtype());
    };
    p.loop(0, p.rank(), receive);
    sum = sum + cast(mine, sum.dtype());
    p.loop(p.rank() + 1, d.world_size, receive);
    hop.finish(t, std::move(sum), residual);
  });
  return p.finish();
}

// gemm_rs whose owners send their sums to every rank. A sum exists only after every rank has sent
// its part, hence after every rank has started this launch: its output may be written without
// further asking.
Program two_shot(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.tile;
  const bool whole = cfg.store_slots > 0;  // tiles, which is what another agent can store
  ProgramBuilder p("gemm_ar", d.world_size);
  PartialSums partials(p, scattered(d), scattered(cfg), whole);  // m; a [m, k], b [n, k]
  const Index& m = partials.m();
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.out_dtype, {m, d.n});  // [m, n]
  auto out = p.output("out", d.out_dtype, {m, d.n}, Space::kSymmetric);   // [m, n]
  bool by_copy_engine = cfg.gather == Scatter::kCopyEngine;
  const RowRuns& runs = partials.runs();
  // By owner: tiles of its sums that lie in `out`, or channels of them.
  auto gathered = p.signal("gathered");
  SignalRef summed;  // of the copy engine: by channel, tiles that may be sent
  if (by_copy_engine) summed = p.signal("summed", runs.num_channels());

  p.on_start([&] { partials.announce(); });
  auto finish = [&](const PartialSums::OwnTile& t, Value sum) {
    Index row = p.let("row", partials.own_first_row() + t.row);
    Index end = p.let("end", partials.own_first_row() + partials.own_rows());
    if (d.residual) {
      Slice rows = residual.tile({row, t.col}, tile.bm, t.cols).until_row(end);
      sum = sum + cast(p.load(rows), sum.dtype());
    }
    Value rounded = cast(sum, d.out_dtype);
    Slice own = out.tile({row, t.col}, tile.bm, t.cols);
    if (!whole) own = own.until_row(end);
    auto store = [&] {
      if (by_copy_engine) return p.store(own, rounded);
      p.loop(d.world_size, [&](const Index& i) {
        Index peer = p.let("peer", (p.rank() + 1 + i) % d.world_size);
        p.store(own.on(peer), rounded);
      });
    };
    whole ? p.when(row < end, store) : store();  // what is beyond is the next rank's
  };
  // All stores are under way before the first notify waits for them.
  auto done = [&](const PartialSums::OwnTile& t) {
    if (by_copy_engine) return p.notify(summed[runs.channel_of(t.block)], p.rank());
    p.loop(d.world_size,
           [&](const Index& i) { p.notify(gathered, (p.rank() + 1 + i) % d.world_size); });
  };
  partials.run(finish, done);
  if (by_copy_engine) {
    p.role("gather", Resource::copy_engine(cfg.num_copy_queues),
           p.grid(d.world_size - 1, runs.num_channels(), 1, 1), [&](const Tile& t) {
             Index peer = p.let("peer", (p.rank() + 1 + t.m) % d.world_size);
             Index row = p.let("row", partials.own_first_row() + t.n * runs.rows_per_channel());
             Slice rows = out.tile({row, 0}, runs.rows_per_channel(), d.n)
                              .until_row(partials.own_first_row() + partials.own_rows());
             p.wait(summed[t.n], partials.tiles_in(t.n));
             p.put_signal(rows.on(peer), rows, gathered[p.rank()], peer);
           });
  }
  Index sent = by_copy_engine ? Index(runs.num_channels()) : Index(partials.num_own_tiles());
  p.on_end([&] {
    p.loop(d.world_size, [&](const Index& owner) {
      Index awaited = by_copy_engine ? owner != p.rank() : Index(1);
      p.when(awaited, [&] { p.wait(gathered[owner], sent); });
    });
  });
  return p.finish();
}

// Beyond, twice the bytes take longer than a signal.
constexpr std::int64_t kMaxPacketRows = 16;

// Gives the tile an agent that stores, where slots for it fit beside the stages.
void drain(GemmRsConfig& cfg, const GemmArDesc& d) {
  struct Choice {
    std::int64_t cols;
    int stages, stagger, store_slots;
  };
  constexpr Choice kChoices[] = {{256, 3, 0, 4}, {192, 4, 2, 4}, {128, 6, 3, 2}};
  bool halves =
      d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && size_bytes(d.out_dtype) == 2;
  cfg.store_slots = 0;
  if (!halves || cfg.tile.bm != 128 || cfg.tile.bn < 128) return;
  const std::int64_t row_tiles =
      ceil_div(ceil_div(d.m, std::int64_t{d.world_size}), cfg.tile.bm) * d.world_size;
  // The agent pays where its tiles keep the SMs busy by no more than two per cent more.
  std::int64_t below = columns_of_sm(row_tiles, d.n, cfg.tile.bn) * 51 / 50 + 1;
  // Of ranks that are no power of two, sums beside 256 columns spill (gemm_rs.cc).
  const std::int64_t most = masks_ranks(d.world_size) ? 256 : 192;
  for (const Choice& c : kChoices) {
    std::int64_t columns = columns_of_sm(row_tiles, d.n, c.cols);
    if (c.cols > most || columns >= below) continue;
    below = columns;
    cfg.tile.bn = c.cols;
    cfg.num_stages = c.stages;
    cfg.stagger = c.stagger;
    cfg.store_slots = c.store_slots;
    cfg.num_compute_sms = gpu_workers(row_tiles * ceil_div(d.n, c.cols));
  }
}

GemmArConfig gpu_config(const GemmArDesc& d, ReduceShots shots) {
  if (shots == ReduceShots::kTwo) {
    GemmRsConfig rs = gpu_config_of_runs(scattered(d));
    // Engines that scatter, and sums that leave tile by tile: on two H100s, 2026-11-25, 1024, 4096
    // and 8192 rows times 8192 x 7168 took 0.201, 0.743 and 1.478 ms, 0.203, 0.769 and 1.605 where
    // the agent that stores scatters, too, 0.251, 0.782 and 1.507 where engines send the sums as
    // well (gpu_bench overlap).
    const bool loads_ahead = rs.load_slots > 0;
    if (rs.scatter == Scatter::kCopyEngine && !loads_ahead) {
      rs = with_scatter(rs, Scatter::kEpilogue);
      std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
      rs.channels_per_rank = ceil_div(run_rows, rs.tile.bm);
      rs.num_compute_sms = kGpuSms;
    }
    if (!loads_ahead) drain(rs, d);
    return {.tile = rs.tile,
            .shots = shots,
            .num_compute_sms = rs.num_compute_sms,
            .num_reduce_sms = rs.num_reduce_sms,
            .channels = rs.channels_per_rank,
            .num_slots = rs.num_slots,
            .scatter = rs.scatter,
            .num_copy_queues = rs.num_copy_queues,
            .num_stages = rs.num_stages,
            .raster = rs.raster,
            .stagger = rs.stagger,
            .store_slots = rs.store_slots,
            .load_slots = rs.load_slots};
  }
  GpuLoop loop = gpu_loop({.m = d.m,
                           .n = d.n,
                           .k = d.k,
                           .a_dtype = d.a_dtype,
                           .b_dtype = d.b_dtype,
                           .scaling = d.scaling});
  // A tile and its sum in rank order fill the registers.
  loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 128);
  std::int64_t tiles = ceil_div(d.m, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
  return {.tile = loop.tile,
          .shots = shots,
          .num_compute_sms = gpu_workers(tiles),
          .num_reduce_sms = 0,
          .packets = d.m <= kMaxPacketRows,
          .channels = tiles,
          .num_stages = loop.num_stages};
}

}  // namespace

std::string to_string(const GemmArDesc& d) {
  return fmt::format("gemm_ar P={} m={} n={} k={} a={} b={} out={}{}{}{}", d.world_size, d.m, d.n,
                     d.k, short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.out_dtype),
                     d.residual ? " residual" : "", scaling_text(d.scaling), weights_text(d.b_kn));
}

std::string to_string(const GemmArConfig& cfg) {
  return fmt::format(
      "tile={}x{}x{} shots={}{} compute={} reduce={} channels={} slots={} scatter={} gather={} "
      "queues={} stages={}{}{}{}{}",
      cfg.tile.bm, cfg.tile.bn, cfg.tile.bk, cfg.shots == ReduceShots::kOne ? 1 : 2,
      cfg.packets ? " packets" : "", cfg.num_compute_sms, cfg.num_reduce_sms, cfg.channels,
      cfg.num_slots, name(cfg.scatter), name(cfg.gather), cfg.num_copy_queues, cfg.num_stages,
      cfg.raster > 1 ? fmt::format(" raster={}", cfg.raster) : "", stagger_text(cfg.stagger),
      cfg.store_slots > 0 ? fmt::format(" store_slots={}", cfg.store_slots) : "",
      cfg.load_slots > 0 ? fmt::format(" load_slots={}", cfg.load_slots) : "");
}

GemmArConfig default_config(const GemmArDesc& d, Target target) {
  // One hop while the rows are few, as in a decode step. Beyond, P times the bytes cost more than
  // the second hop: on two H200s from about 512 rows of 8192 on (docs/performance/gemm_ar.md).
  std::int64_t most_rows = target == Target::kCuda ? 256 : 32;
  return default_config(d, d.m <= most_rows ? ReduceShots::kOne : ReduceShots::kTwo, target);
}

GemmArConfig fitted(const GemmArDesc& d, GemmArConfig cfg) {
  fit(FieldFit::reducing(), d, cfg);
  return cfg;
}

GemmArConfig default_config(const GemmArDesc& d, ReduceShots shots, Target target) {
  check_sizes("gemm_ar", {{"world_size", d.world_size}, {"m", d.m}, {"n", d.n}, {"k", d.k}});
  if (target == Target::kCuda) return fitted(d, gpu_config(d, shots));
  bool one = shots == ReduceShots::kOne;
  GemmTile tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling);
  if (!one) {
    bool many_rows = tile.bm > kernels::kMaxSmallRows;
    tile = default_config(scattered(d)).tile;
    // One kernel for both algorithms, so that both give the same bits.
    if (many_rows) tile.bm = std::max(tile.bm, std::int64_t{2} * kernels::kMaxSmallRows);
  }
  GemmArConfig cfg{.tile = tile,
                   .shots = shots,
                   .channels = one ? ceil_div(d.m, tile.bm) * ceil_div(d.n, tile.bn) : 2};
  return fitted(d, cfg);
}

Program gemm_ar(const GemmArDesc& d, const GemmArConfig& cfg) {
  check(d, cfg);
  if (cfg.packets) return packets(d, cfg);
  return cfg.shots == ReduceShots::kOne ? one_shot(d, cfg) : two_shot(d, cfg);
}

}  // namespace stretto
