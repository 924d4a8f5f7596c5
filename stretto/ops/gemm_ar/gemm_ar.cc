#include "stretto/ops/gemm_ar/gemm_ar.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/k_parts.h"
#include "stretto/ops/gemm_ar/few_rows.h"
#include "stretto/ops/gemm_rs/partial_sums.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {

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

namespace {

GemmRsConfig scattered(const GemmArConfig& cfg) {
  return {.loop = cfg.loop,
          .num_reduce_sms = cfg.num_reduce_sms,
          .scatter = cfg.scatter,
          .num_copy_queues = cfg.num_copy_queues,
          .channels_per_rank = cfg.channels,
          .num_slots = cfg.num_slots};
}

void fit(const FieldFit& fields, const GemmArDesc& d, GemmArConfig& c) {
  if (c.shots == ReduceShots::kShared) {
    const std::int64_t others = (d.world_size - 1) * few_rows::shared_rows(d, c.loop.tile);
    std::string reason = fmt::format("a tile of {} rows has no share for each of {} ranks",
                                     c.loop.tile.bm, d.world_size);
    if (others >= c.loop.tile.bm) fields.only("shots", c.shots, ReduceShots::kOne, reason);
  }
  bool two = c.shots == ReduceShots::kTwo, shared = c.shots == ReduceShots::kShared;
  if (two) {
    fields.only("swap_ab", c.swap_ab, false, "two shots have the weights on the right");
  } else if (d.scaling != Scaling::kNone) {
    fields.only("swap_ab", c.swap_ab, false, "scales are those of rows on the left");
  }
  if (two || shared || c.packets || c.num_reduce_sms > 0) {
    fields.only("split_k", c.split_k, 1,
                "parts of k need one shot by signals, with sums in the epilogue");
  }
  if (shared) {
    fields.only("num_reduce_sms", c.num_reduce_sms, 0, "who multiplied a tile sums its share");
  }
  if (two || c.num_reduce_sms > 0) {
    fields.only("packets", c.packets, false,
                "packets need one shot or shares, with sums in the epilogue");
  }
  if (two) {
    int load_slots = fitted(scattered(d), scattered(c)).loop.load_slots;
    fields.only("load_slots", c.loop.load_slots, load_slots,
                "loads ahead need stages, copy engines and sums in the epilogue");
  } else {
    fields.only("store_slots", c.loop.store_slots, 0, "an agent that stores needs two shots");
    fields.only("load_slots", c.loop.load_slots, 0, "loads ahead need two shots");
    if (shared) {
      // With signals a launch ends after every rank has summed, and so read, its shares.
      fields.only("num_slots", c.num_slots, c.packets ? 2 : 1, "shares have no other order");
    }
  }
  if (d.world_size == 1) return;
  if (two) {
    GemmRsConfig possible = fitted(scattered(d), scattered(c));
    std::string reason = fmt::format("tiles of {} rows, by {} ranks", c.loop.tile.bm, d.world_size);
    fields.only("channels", c.channels, possible.channels_per_rank, reason);
    fields.only("raster", c.loop.raster, possible.loop.raster, reason);
    if (c.gather == Scatter::kEpilogue) {
      fields.only("num_copy_queues", c.num_copy_queues, possible.num_copy_queues,
                  "the epilogue scatters");
    }
    return;
  }
  const char* few_rows = "every rank multiplies tiles of all rows and takes part in their sums";
  fields.only("scatter", c.scatter, Scatter::kEpilogue, few_rows);
  fields.only("gather", c.gather, Scatter::kEpilogue, few_rows);
  fields.only("num_copy_queues", c.num_copy_queues, 1, few_rows);
  fields.only("raster", c.loop.raster, 1, few_rows);
  if (c.packets) fields.only("num_slots", c.num_slots, 2, "packets have no other order");
  const std::int64_t tiles = std::max<std::int64_t>(few_rows::num_tiles(d, c.loop.tile), 1);
  fields.only("channels", c.channels,
              ceil_div(tiles, std::max<std::int64_t>(few_rows::tiles_per_channel(d, c), 1)),
              fmt::format("{} tiles, as many to a channel, one where its SM sums it", tiles));
}

void check(const GemmArDesc& d, const GemmArConfig& cfg) {
  check_product_sizes("gemm_ar", d, cfg);
  check_sizes("gemm_ar", {{"channels", cfg.channels},
                          {"num_slots", cfg.num_slots},
                          {"num_copy_queues", cfg.num_copy_queues},
                          {"split_k", cfg.split_k}});
  check_k_parts("gemm_ar", d.k, cfg.loop.tile, cfg.split_k);
  check_sizes("gemm_ar",
              {{"num_reduce_sms", cfg.num_reduce_sms}, {"load_slots", cfg.loop.load_slots}}, 0);
  check_factors("gemm_ar", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("gemm_ar", "out_dtype", d.out_dtype, d.a_dtype);
  GemmArConfig will_run = cfg;
  fit(FieldFit::refusing(to_string(d)), d, will_run);
}

// gemm_rs whose owners send their sums to every rank. A sum exists only after every rank has sent
// its part, hence after every rank has started this launch: its output may be written without
// further asking.
Program two_shot(const GemmArDesc& d, const GemmArConfig& cfg) {
  const GemmTile& tile = cfg.loop.tile;
  const bool whole = cfg.loop.store_slots > 0;  // tiles, which is what another agent can store
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

}  // namespace

const char* name(ReduceShots shots) {
  constexpr const char* kNames[] = {"1", "2", "shared"};
  return kNames[static_cast<std::size_t>(shots)];
}

NamedFields fields_of(GemmArDesc& d) {
  return joined(product_fields(d, d.out_dtype, "out={}"),
                {{"residual", d.residual}, scaling_field(d.scaling), weights_field(d.b_kn)});
}

std::string to_string(const GemmArDesc& d) { return "gemm_ar " + text_of(d); }

NamedFields fields_of(GemmArConfig& c) {
  using enum ReduceShots;
  const std::initializer_list<Scatter> ways = {Scatter::kEpilogue, Scatter::kCopyEngine};
  NamedFields fields = with_rest({tile_field(c.loop.tile),
                                  {"shots", c.shots, {kOne, kTwo, kShared}},
                                  {"packets", c.packets},
                                  {"compute", c.loop.num_compute_sms},
                                  {"reduce", c.num_reduce_sms},
                                  {"channels", c.channels},
                                  {"slots", c.num_slots},
                                  {"scatter", c.scatter, ways},
                                  {"gather", c.gather, ways},
                                  {"queues", c.num_copy_queues},
                                  {"stages", c.loop.num_stages}},
                                 c.loop);
  fields.push_back({"split_k", c.split_k, 1});
  fields.push_back({"swap_ab", c.swap_ab});
  return fields;
}

GemmArConfig fitted(const GemmArDesc& d, GemmArConfig cfg) {
  fit(FieldFit::reducing(), d, cfg);
  return cfg;
}

Program gemm_ar(const GemmArDesc& d, const GemmArConfig& cfg) {
  check(d, cfg);
  switch (cfg.shots) {
    case ReduceShots::kOne:
      return cfg.packets ? few_rows::packets(d, cfg) : few_rows::one_shot(d, cfg);
    case ReduceShots::kTwo:
      return two_shot(d, cfg);
    case ReduceShots::kShared:
      return few_rows::shared_tiles(d, cfg);
  }
  throw InternalError("gemm_ar: unknown shots");
}

}  // namespace stretto
