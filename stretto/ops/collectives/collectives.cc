#include "stretto/ops/collectives/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/collectives/pieces.h"
#include "stretto/ops/operator/rank_sum.h"

namespace stretto {

using collective::finish;
using collective::for_pieces;
using collective::Rounding;
using collective::rows_held;
using collective::Runs;

namespace {

Resource copies(const CollectiveConfig& c) {
  return c.num_copy_sms > 0 ? Resource::sms(c.num_copy_sms) : Resource::copy_engine(c.num_queues);
}

// Waits, before the launch ends, until every rank has read `times` tiles of what this rank offers.
void wait_for_readers(ProgramBuilder& p, const SignalRef& done, const Index& times) {
  p.on_end([&] {
    p.loop(p.world_size(),
           [&](const Index& i) { p.wait(done[(p.rank() + i) % p.world_size()], times); });
  });
}

}  // namespace

// Tiles of different owners take turns, peers first, so that every link and the own memory are
// busy from the beginning; queue q of P queues copies from one rank.
Program all_gather(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  collective::check({.name = "all_gather", .pushes = true}, d, cfg);
  if (cfg.push && d.world_size > 1) return collective::push_all_gather(d, cfg);
  ProgramBuilder p("all_gather", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {ceil_div(m, d.world_size), d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Runs runs(m, d, cfg);
  SignalRef ready = p.signal("ready");  // my shard may be read
  SignalRef done = p.signal("done");    // a peer has read a tile of it

  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", copies(cfg), p.range(runs.tiles_per_run * d.world_size), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + 1 + t.index % d.world_size) % d.world_size);
    Index local = p.let("local", t.index / d.world_size * cfg.tile_rows);
    p.wait(ready, owner);
    p.rank_copy_data(
        in.on(owner).tile({local, 0}, cfg.tile_rows, d.n).until_row(runs.run_rows),
        out.tile({runs.first(owner) + local, 0}, cfg.tile_rows, d.n).until_row(runs.end(owner)));
    p.notify(done, owner);
  });
  wait_for_readers(p, done, runs.tiles_per_run);
  return finish(p, cfg);
}

Program reduce_scatter(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  collective::check({.name = "reduce_scatter", .pushes = true}, d, cfg);
  if (cfg.push && d.world_size > 1) return collective::push_reduce_scatter(d, cfg);
  ProgramBuilder p("reduce_scatter", d.world_size);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {ceil_div(m, d.world_size), d.n});
  Runs runs(m, d, cfg);
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  // Sized by the bound: every launch notifies equally often.
  TileSpace tiles = p.grid(ceil_div(d.m, d.world_size), d.n, cfg.tile_rows, cfg.tile_cols);

  p.on_start([&] { p.notify_all(ready); });
  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    p.wait_all(ready);
    for_pieces(p, cfg, [&](const Index& first, std::int64_t rows) {
      Index local = p.let("local", t.row + first);
      Slice mine = in.tile({runs.first(p.rank()) + local, t.col}, rows, cfg.tile_cols)
                       .until_row(runs.first(p.rank()) + min(runs.run_rows, t.row + cfg.tile_rows));
      auto part = [&](const Index& r) { return p.load(mine.on(r)); };
      Value sum = reduce_over_ranks(p, d.reduction, {d.dtype, rows, cfg.tile_cols}, part);
      p.store(out.tile({local, t.col}, rows, cfg.tile_cols).until_row(t.row + cfg.tile_rows),
              rounded(sum));
    });
    p.notify_all(done);
  });
  wait_for_readers(p, done, tiles.count());
  return finish(p, cfg);
}

namespace {

// Two slots bound the run-ahead: a rank that writes slot e % 2 again, in launch e + 2, has read
// every rank's part of launch e + 1, which each rank sent after it had finished launch e.
Program all_reduce_one_shot(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_one_shot", d.world_size);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  TensorRef inbox = p.buffer("inbox", d.dtype, {d.world_size, m, d.n},
                             {.space = Space::kSymmetric, .num_slots = 2});
  std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows), col_tiles = ceil_div(d.n, cfg.tile_cols);
  // By source: a rank that is a launch ahead must not stand in for one that is late.
  std::int64_t num_tiles = row_tiles * col_tiles;
  SignalRef arrived = p.signal("arrived", d.world_size * num_tiles);
  TileSpace tiles = p.grid(d.m, d.n, cfg.tile_rows, cfg.tile_cols);

  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Index end = t.row + cfg.tile_rows;
    for_pieces(p, cfg, [&](const Index& first, std::int64_t rows) {
      Index row = p.let("row", t.row + first);
      Value mine = p.load(in.tile({row, t.col}, rows, cfg.tile_cols).until_row(end));
      p.loop(d.world_size, [&](const Index& i) {
        Index peer = (p.rank() + 1 + i) % d.world_size;
        p.store(inbox.on(peer).tile({p.rank(), row, t.col}, rows, cfg.tile_cols).until_row(end),
                mine);
      });
    });
    p.loop(d.world_size, [&](const Index& i) {
      p.notify(arrived[p.rank() * num_tiles + t.index], (p.rank() + 1 + i) % d.world_size);
    });
    p.loop(d.world_size,
           [&](const Index& source) { p.wait(arrived[source * num_tiles + t.index], 1); });
    for_pieces(p, cfg, [&](const Index& first, std::int64_t rows) {
      Index row = p.let("row", t.row + first);
      auto part = [&](const Index& r) {
        return p.load(inbox.tile({r, row, t.col}, rows, cfg.tile_cols).until_row(end));
      };
      Value sum = reduce_over_ranks(p, d.reduction, {d.dtype, rows, cfg.tile_cols}, part);
      p.store(out.tile({row, t.col}, rows, cfg.tile_cols).until_row(end), rounded(sum));
    });
  });
  return finish(p, cfg);
}

// A launch ends after the sums of every owner have come, so every input has been read; sums are
// written again after every rank's `ready` of the next launch.
Program all_reduce_two_shot(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_two_shot", d.world_size);
  std::int64_t world = d.world_size, peers = std::max<std::int64_t>(world - 1, 1);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  TensorRef sums =
      p.buffer("sums", d.dtype, {ceil_div(m, world), d.n}, {.space = Space::kSymmetric});
  Runs runs(m, d, cfg);
  std::int64_t col_tiles = ceil_div(d.n, cfg.tile_cols);
  std::int64_t tiles_per_run = runs.tiles_per_run * col_tiles;
  SignalRef ready = p.signal("ready");
  SignalRef reduced = p.signal("reduced", world * tiles_per_run);
  TileSpace tiles = p.grid(ceil_div(d.m, world), d.n, cfg.tile_rows, cfg.tile_cols);

  p.on_start([&] { p.notify_all(ready); });
  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    p.wait_all(ready);
    for_pieces(p, cfg, [&](const Index& first, std::int64_t rows) {
      Index local = p.let("local", t.row + first);
      Index row = runs.first(p.rank()) + local;
      Index end = min(runs.end(p.rank()), runs.first(p.rank()) + t.row + cfg.tile_rows);
      Slice mine = in.tile({row, t.col}, rows, cfg.tile_cols).until_row(end);
      auto part = [&](const Index& r) { return p.load(mine.on(r)); };
      Value sum = rounded(reduce_over_ranks(p, d.reduction, {d.dtype, rows, cfg.tile_cols}, part));
      p.store(sums.tile({local, t.col}, rows, cfg.tile_cols).until_row(t.row + cfg.tile_rows), sum);
      p.store(out.tile({row, t.col}, rows, cfg.tile_cols).until_row(end), sum);
    });
    p.loop(world - 1, [&](const Index& i) {
      p.notify(reduced[p.rank() * tiles_per_run + t.index], (p.rank() + 1 + i) % world);
    });
  });
  if (world == 1) return finish(p, cfg);
  p.role("gather", copies(cfg), p.range(tiles_per_run * peers), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + 1 + t.index % peers) % world);
    Index tile = p.let("tile", t.index / peers);
    Index local = p.let("local", tile / col_tiles * cfg.tile_rows);
    Index col = p.let("col", tile % col_tiles * cfg.tile_cols);
    p.wait(reduced[owner * tiles_per_run + tile], 1);
    p.rank_copy_data(sums.on(owner).tile({local, col}, cfg.tile_rows, cfg.tile_cols),
                     out.tile({runs.first(owner) + local, col}, cfg.tile_rows, cfg.tile_cols)
                         .until_row(runs.end(owner)));
  });
  return finish(p, cfg);
}

// Slots as in the one-shot: packets of launch e + 1 stand for the signals, so there is always one,
// even without rows.
Program all_reduce_packet(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_packet", d.world_size);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  std::int64_t n = ceil_div(d.n, 4) * 4;  // whole packets in every row, whatever the dtype
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  TensorRef inbox = p.buffer("inbox", d.dtype, {d.world_size, d.m, n},
                             {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  std::int64_t rows = rows_held(cfg), cols = std::min(ceil_div(cfg.tile_cols, 4) * 4, n);
  TileSpace tiles = p.grid(d.m, n, rows, cols);
  Index end = max(m, 1);

  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Value mine = p.load(in.tile({t.row, t.col}, rows, cols));
    p.loop(d.world_size - 1, [&](const Index& i) {
      Index peer = (p.rank() + 1 + i) % d.world_size;
      p.store_packet(inbox.on(peer).tile({p.rank(), t.row, t.col}, rows, cols).until_row(end),
                     mine);
    });
    Value sum = reduce_with_own(p, d.reduction, mine, [&](const Index& r) {
      return p.load_packet(inbox.tile({r, t.row, t.col}, rows, cols).until_row(end));
    });
    p.store(out.tile({t.row, t.col}, rows, cols), rounded(sum));
  });
  return finish(p, cfg);
}

// Of the ring's step s what the own part is reduced with: what has arrived, at first what changes
// nothing. `part` is zero.
struct RingParts {
  Slice arrived, own;
};
void begin_with(ProgramBuilder& p, Reduction reduction, const Index& s, Value& part,
                const RingParts& from) {
  p.when(s > 0, [&] { part = p.load(from.arrived); });
  if (is_sum(reduction)) return;
  p.when(s == 0, [&] {
    part = reduction == Reduction::kProduct ? p.full(part.dtype(), part.rows(), part.cols(), 1)
                                            : p.load(from.own);
  });
}

// Chunk c starts at rank c + 1 and travels c + 2, ..., c, each rank adding its part; then the sums
// travel once more.
Program all_reduce_ring(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_ring", d.world_size);
  std::int64_t world = d.world_size, steps = 2 * world - 1;
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Index chunk_rows = max(ceil_div(m, world), 1);
  std::int64_t max_rows = ceil_div(d.m, world), rows = rows_held(cfg),
               tiles_per_step = ceil_div(max_rows, rows);
  // hop[s]: what arrives at step s, so no step reuses another's memory.
  TensorRef hop = p.buffer("hop", d.dtype, {steps, max_rows, d.n}, {.space = Space::kSymmetric});
  SignalRef ready = p.signal("ready");  // the next rank's hop buffer is free again
  SignalRef arrived = p.signal("arrived", steps);
  Index next = (p.rank() + 1) % world, previous = (p.rank() + world - 1) % world;
  DType wide = reduced_in(d.dtype);

  p.on_start([&] { p.notify(ready, previous); });
  p.role("ring", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(ready, next);
    p.loop(steps, [&](const Index& s) {
      Index chunk = p.let("chunk", (p.rank() + 2 * world - 1 - s) % world);
      p.when(s > 0, [&] { p.wait(arrived[s], tiles_per_step); });
      p.loop(tiles_per_step, [&](const Index& i) {
        Index local = i * rows;
        Index row = p.let("row", chunk * chunk_rows + local);
        auto own = [&](const TensorRef& t) {
          return t.tile({row, 0}, rows, d.n).until_row((chunk + 1) * chunk_rows);
        };
        auto at_step = [&](const Index& step) {
          return hop.tile({step, local, 0}, rows, d.n).until_row(chunk_rows);
        };
        Value part = p.zeros(d.dtype, rows, d.n);
        begin_with(p, d.reduction, s, part, {at_step(s), own(in)});
        p.when(s < world, [&] {
          // Rounded at each hop, so that an average is one of parts.
          Value mine = rounded.scaled(cast(p.load(own(in)), wide));
          Value sum = reduced(d.reduction, cast(part, wide), mine);
          part = cast(sum, d.dtype);
        });
        p.when(s >= world - 1, [&] { p.store(own(out), part); });
        p.when(s < steps - 1, [&] {
          p.store(at_step(s + 1).on(next), part);
          p.notify(arrived[s + 1], next);
        });
      });
    });
  });
  return p.finish();
}

}  // namespace

Program all_reduce(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  std::string form = fmt::format("all_reduce_{}", name(cfg.all_reduce));
  collective::check({.name = form.c_str(),
                     .pushes = cfg.all_reduce == AllReduceKind::kTwoShot,
                     .several_workers = cfg.all_reduce != AllReduceKind::kRing,
                     .one_hop = false},
                    d, cfg);
  switch (cfg.all_reduce) {
    case AllReduceKind::kOneShot:
      return all_reduce_one_shot(d, cfg);
    case AllReduceKind::kTwoShot:
      return cfg.push && d.world_size > 1 ? collective::push_all_reduce(d, cfg)
                                          : all_reduce_two_shot(d, cfg);
    case AllReduceKind::kPacket:
      return all_reduce_packet(d, cfg);
    case AllReduceKind::kRing:
      return all_reduce_ring(d, cfg);
  }
  throw InternalError("all_reduce: unknown kind");
}

Program all_to_all(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  collective::check({.name = "all_to_all", .pushes = true}, d, cfg);
  if (cfg.push && d.world_size > 1) return collective::push_all_to_all(d, cfg);
  ProgramBuilder p("all_to_all", d.world_size);
  TensorRef in = p.input("in", d.dtype, {d.world_size, d.m, d.n}, Space::kSymmetric);
  TensorRef counts = p.table("recv_counts", {d.world_size}, {ContractKind::kRange, 0, d.m + 1});
  TensorRef out = p.output("out", d.dtype, {d.world_size, d.m, d.n});
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows);
  std::int64_t cols = std::min(cfg.tile_cols, d.n);

  p.on_start([&] { p.notify_all(ready); });
  p.role("pull", Resource::sms(cfg.num_workers), p.range(d.world_size * row_tiles),
         [&](const Tile& t) {
           Index source = p.let("source", (p.rank() + 1 + t.index % d.world_size) % d.world_size);
           Index begin = p.let("begin", t.index / d.world_size * cfg.tile_rows);
           Index end = begin + cfg.tile_rows;
           Index count = p.read(counts, {source});
           p.wait(ready, source);
           for_pieces(p, cfg, [&](const Index& first, std::int64_t rows) {
             p.loop(ceil_div(d.n, cols), [&](const Index& j) {
               Index row = p.let("row", begin + first);
               Value piece = p.load(in.on(source)
                                        .tile({p.rank(), row, j * cols}, rows, cols)
                                        .until_row(min(count, end)));
               p.store(out.tile({source, row, j * cols}, rows, cols).until_row(end), piece);
             });
           });
           p.notify(done, source);
         });
  wait_for_readers(p, done, row_tiles);
  return finish(p, cfg);
}

Program broadcast(const CollectiveDesc& d, const CollectiveConfig& cfg, int root) {
  collective::check({.name = "broadcast"}, d, cfg);
  if (root < 0 || root >= d.world_size) {
    throw UserError(fmt::format("broadcast: root is {}, need 0..{}", root, d.world_size - 1));
  }
  ProgramBuilder p("broadcast", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  TileSpace tiles = p.range(ceil_div(d.m, cfg.tile_rows));

  p.on_start([&] { p.when(p.rank() == root, [&] { p.notify_all(ready); }); });
  p.role("pull", copies(cfg), tiles, [&](const Tile& t) {
    p.wait(ready, root);
    p.rank_copy_data(in.on(root).tile({t.index * cfg.tile_rows, 0}, cfg.tile_rows, d.n),
                     out.tile({t.index * cfg.tile_rows, 0}, cfg.tile_rows, d.n));
    p.notify(done, root);
  });
  p.on_end([&] {
    p.when(p.rank() == root,
           [&] { p.loop(d.world_size, [&](const Index& i) { p.wait(done[i], tiles.count()); }); });
  });
  return finish(p, cfg);
}

const char* name(AllReduceKind kind) {
  constexpr const char* kNames[] = {"one_shot", "two_shot", "packet", "ring"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* name(Payload payload) {
  constexpr const char* kNames[] = {"same", "int8", "float8_e4m3fn"};
  return kNames[static_cast<std::size_t>(payload)];
}

bool quantizes(const CollectiveDesc& d) { return d.payload != Payload::kSame && d.world_size > 1; }

NamedFields fields_of(CollectiveDesc& d) {
  using enum Reduction;
  return {
      NamedField("m", d.m).as("[{},"),
      NamedField("n", d.n).as("{}]"),
      NamedField("dtype", d.dtype).as("{}"),
      NamedField("world_size", d.world_size).as("P={}"),
      NamedField("reduction", d.reduction, {kSum, kAverage, kMin, kMax, kProduct, kPremulSum}, kSum)
          .as("{}"),
      NamedField("payload", d.payload, {Payload::kSame, Payload::kInt8, Payload::kE4M3},
                 Payload::kSame)
          .as("as {}")};
}

NamedFields fields_of(CollectiveConfig& c) {
  using enum AllReduceKind;
  return {{"tile", {&c.tile_rows, &c.tile_cols}},
          {"piece_rows", c.piece_rows, 0},
          {"workers", c.num_workers},
          {"queues", c.num_queues},
          {"copy_sms", c.num_copy_sms},
          {"threads", c.threads, 0},
          {"push", c.push},
          {"packets", c.packets},
          {"ring_slots", c.ring_slots, 0},
          {"receivers", c.num_receivers, 0},
          {"all_reduce", c.all_reduce, {kOneShot, kTwoShot, kPacket, kRing}, kTwoShot}};
}

}  // namespace stretto
