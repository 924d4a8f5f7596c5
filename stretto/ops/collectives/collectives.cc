#include "stretto/ops/collectives/collectives.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

void check(const CollectiveDesc& d, const CollectiveConfig& c) {
  auto positive = [](std::int64_t value, const char* field) {
    if (value < 1)
      throw UserError(fmt::format("collective: {} is {}, need at least 1", field, value));
  };
  positive(d.m, "m");
  positive(d.n, "n");
  positive(d.world_size, "world_size");
  positive(c.tile_rows, "tile_rows");
  positive(c.tile_cols, "tile_cols");
  positive(c.num_workers, "num_workers");
  positive(c.num_queues, "num_queues");
}

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

// One tile of the sum over all ranks of in[row.., col..], in rank order, fp32.
Value sum_over_ranks(ProgramBuilder& p, const SignalRef& ready, const Slice& box) {
  Value sum = p.zeros(DType::kF32, box.region().rows, box.region().cols);
  p.loop(p.world_size(), [&](const Index& r) {
    p.wait(ready, r);
    sum = sum + cast(p.load(box.on(r)), DType::kF32);
  });
  return sum;
}

}  // namespace

Program all_gather(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("all_gather", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {ceil_div(m, d.world_size), d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  TileMapRef rows = p.tile_map("rows", out, {.tile_rows = cfg.tile_rows});
  SignalRef ready = p.signal("ready");  // my shard may be read
  SignalRef done = p.signal("done");    // a peer has read a tile of it

  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", copies(cfg), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    Slice from = in.on(t.owner).tile({t.local_row, 0}, cfg.tile_rows, d.n);
    p.rank_copy_data(from.until_row(t.local_row + t.row_end - t.row),
                     out.tile({t.row, 0}, cfg.tile_rows, d.n).until_row(t.row_end));
    p.notify(done, t.owner);
  });
  wait_for_readers(p, done, rows.tiles().owned_by(p.rank()).count());
  return p.finish();
}

Program reduce_scatter(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("reduce_scatter", d.world_size);
  Index m = p.extent("m", d.m);
  Index rows = max(ceil_div(m, d.world_size), 1);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {ceil_div(m, d.world_size), d.n});
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  // Sized by the bound: every launch notifies equally often.
  TileSpace tiles = p.grid(ceil_div(d.m, d.world_size), d.n, cfg.tile_rows, cfg.tile_cols);

  p.on_start([&] { p.notify_all(ready); });
  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Slice mine = in.tile({p.rank() * rows + t.row, t.col}, cfg.tile_rows, cfg.tile_cols);
    Value sum = sum_over_ranks(p, ready, mine.until_row((p.rank() + 1) * rows));
    p.store(out.tile({t.row, t.col}, cfg.tile_rows, cfg.tile_cols), cast(sum, d.dtype));
    p.notify_all(done);
  });
  wait_for_readers(p, done, tiles.count());
  return p.finish();
}

namespace {

Program all_reduce_one_shot(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_one_shot", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  TileSpace tiles = p.grid(d.m, d.n, cfg.tile_rows, cfg.tile_cols);

  p.on_start([&] { p.notify_all(ready); });
  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Value sum = sum_over_ranks(p, ready, in.tile({t.row, t.col}, cfg.tile_rows, cfg.tile_cols));
    p.store(out.tile({t.row, t.col}, cfg.tile_rows, cfg.tile_cols), cast(sum, d.dtype));
    p.notify_all(done);
  });
  wait_for_readers(p, done, tiles.count());
  return p.finish();
}

Program all_reduce_two_shot(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_two_shot", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  TensorRef sums = p.buffer("sums", d.dtype, {m, d.n}, {.space = Space::kSymmetric});
  TileMapRef rows = p.tile_map("rows", out, {.tile_rows = cfg.tile_rows});
  SignalRef ready = p.signal("ready");
  SignalRef reduced = p.signal("reduced", rows.channels());
  SignalRef done = p.signal("done");
  Index own_tiles = rows.tiles().owned_by(p.rank()).count();

  p.on_start([&] { p.notify_all(ready); });
  p.role("reduce", Resource::sms(cfg.num_workers), rows.tiles().owned_by(p.rank()),
         [&](const Tile& t) {
           p.loop(ceil_div(d.n, cfg.tile_cols), [&](const Index& j) {
             Slice box = in.tile({t.row, j * cfg.tile_cols}, cfg.tile_rows, cfg.tile_cols)
                             .until_row(t.row_end);
             Value sum = cast(sum_over_ranks(p, ready, box), d.dtype);
             p.store(sums.tile({t.row, j * cfg.tile_cols}, cfg.tile_rows, cfg.tile_cols)
                         .until_row(t.row_end),
                     sum);
           });
           p.producer_tile_notify(reduced, rows, t, NotifyMode::kBroadcast);
           p.notify_all(done);  // this tile of every rank's input has been read
         });
  p.role("gather", copies(cfg), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.consumer_tile_wait(reduced, rows, t.row, t.row_end);
    p.tile_pull_data(rows, t, sums, out);
    p.notify(done, t.owner);
  });
  wait_for_readers(p, done, own_tiles * 2);
  return p.finish();
}

// Two slots bound the run-ahead: a rank that writes slot e % 2 again, in launch e + 2, has read
// every rank's packets of launch e + 1, which each rank sent after it had finished launch e.
Program all_reduce_packet(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  ProgramBuilder p("all_reduce_packet", d.world_size);
  Index m = p.extent("m", d.m);
  std::int64_t n = ceil_div(d.n, 4) * 4;  // whole packets in every row, whatever the dtype
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  TensorRef inbox = p.buffer("inbox", d.dtype, {d.world_size, d.m, n},
                             {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  std::int64_t cols = std::min(ceil_div(cfg.tile_cols, 4) * 4, n);
  TileSpace tiles = p.grid(d.m, n, cfg.tile_rows, cols);

  p.role("push", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Value mine = p.load(in.tile({t.row, t.col}, cfg.tile_rows, cols));
    p.loop(p.world_size(), [&](const Index& i) {
      Index peer = (p.rank() + i) % p.world_size();
      p.store_packet(inbox.on(peer).tile({p.rank(), t.row, t.col}, cfg.tile_rows, cols), mine);
    });
  });
  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Value sum = p.zeros(DType::kF32, cfg.tile_rows, cols);
    p.loop(p.world_size(), [&](const Index& r) {
      sum = sum +
            cast(p.load_packet(inbox.tile({r, t.row, t.col}, cfg.tile_rows, cols)), DType::kF32);
    });
    p.store(out.tile({t.row, t.col}, cfg.tile_rows, cols), cast(sum, d.dtype));
  });
  return p.finish();
}

// Chunk c starts at rank c + 1 and travels c + 2, ..., c, each rank adding its part; then the sums
// travel once more.
Program all_reduce_ring(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  std::int64_t world = d.world_size;
  ProgramBuilder p("all_reduce_ring", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {m, d.n});
  TensorRef out = p.output("out", d.dtype, {m, d.n});
  Index chunk_rows = max(ceil_div(m, world), 1);
  std::int64_t max_rows = ceil_div(d.m, world);
  std::int64_t steps = 2 * world - 1;
  // hop[s]: what arrives at step s, so no step reuses another's memory.
  TensorRef hop = p.buffer("hop", d.dtype, {steps, max_rows, d.n}, {.space = Space::kSymmetric});
  SignalRef ready = p.signal("ready");  // the next rank's hop buffer is free again
  SignalRef arrived = p.signal("arrived", steps);
  Index next = (p.rank() + 1) % world, previous = (p.rank() + world - 1) % world;
  TileSpace one = p.range(1);
  std::int64_t tiles_per_step = ceil_div(max_rows, cfg.tile_rows);

  p.on_start([&] { p.notify(ready, previous); });
  p.role("ring", Resource::sms(1), one, [&](const Tile&) {
    p.wait(ready, next);
    p.loop(steps, [&](const Index& s) {
      Index chunk = p.let("chunk", (p.rank() + 2 * world - 1 - s) % world);
      p.when(s > 0, [&] { p.wait(arrived[s], tiles_per_step); });
      p.loop(tiles_per_step, [&](const Index& i) {
        Index local = i * cfg.tile_rows;
        Index row = p.let("row", chunk * chunk_rows + local);
        auto own = [&](const TensorRef& t) {
          return t.tile({row, 0}, cfg.tile_rows, d.n).until_row((chunk + 1) * chunk_rows);
        };
        auto at_step = [&](const Index& step) {
          return hop.tile({step, local, 0}, cfg.tile_rows, d.n).until_row(chunk_rows);
        };
        Value part = p.zeros(d.dtype, cfg.tile_rows, d.n);
        p.when(s > 0, [&] { part = p.load(at_step(s)); });
        p.when(s < world, [&] {
          Value sum = cast(part, DType::kF32) + cast(p.load(own(in)), DType::kF32);
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
  check(d, cfg);
  switch (cfg.all_reduce) {
    case AllReduceKind::kOneShot:
      return all_reduce_one_shot(d, cfg);
    case AllReduceKind::kTwoShot:
      return all_reduce_two_shot(d, cfg);
    case AllReduceKind::kPacket:
      return all_reduce_packet(d, cfg);
    case AllReduceKind::kRing:
      return all_reduce_ring(d, cfg);
  }
  throw InternalError("all_reduce: unknown kind");
}

Program all_to_all(const CollectiveDesc& d, const CollectiveConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("all_to_all", d.world_size);
  TensorRef in = p.input("in", d.dtype, {d.world_size, d.m, d.n}, Space::kSymmetric);
  TensorRef counts = p.table("recv_counts", {d.world_size}, {ContractKind::kRange, 0, d.m + 1});
  TensorRef out = p.output("out", d.dtype, {d.world_size, d.m, d.n});
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows);

  p.on_start([&] { p.notify_all(ready); });
  p.role("pull", Resource::sms(cfg.num_workers), p.range(d.world_size * row_tiles),
         [&](const Tile& t) {
           Index source = p.let("source", (p.rank() + t.index / row_tiles) % d.world_size);
           Index row = p.let("row", t.index % row_tiles * cfg.tile_rows);
           Index count = p.read(counts, {source});
           p.wait(ready, source);
           Value rows =
               p.load(in.on(source).tile({p.rank(), row, 0}, cfg.tile_rows, d.n).until_row(count));
           p.store(out.tile({source, row, 0}, cfg.tile_rows, d.n), rows);
           p.notify(done, source);
         });
  wait_for_readers(p, done, row_tiles);
  return p.finish();
}

Program broadcast(const CollectiveDesc& d, const CollectiveConfig& cfg, int root) {
  check(d, cfg);
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
  return p.finish();
}

const char* name(AllReduceKind kind) {
  constexpr const char* kNames[] = {"one_shot", "two_shot", "packet", "ring"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_string(const CollectiveDesc& d) {
  return fmt::format("[{}, {}] {} P={}", d.m, d.n, short_name(d.dtype), d.world_size);
}

std::string to_string(const CollectiveConfig& c) {
  return fmt::format("tile {}x{}, {} workers, {} queues, {} copying SMs", c.tile_rows, c.tile_cols,
                     c.num_workers, c.num_queues, c.num_copy_sms);
}

CollectiveConfig default_config(const CollectiveDesc& d, Target target) {
  CollectiveConfig c;
  if (target == Target::kCuda) {
    constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
    c.tile_cols = 2048;
    c.tile_rows = std::max<std::int64_t>(kElements / d.n, 1);
    // Two roles at most share the GPU.
    std::int64_t tiles = ceil_div(d.m, c.tile_rows);
    c.num_workers = gpu_workers(tiles, kGpuSms / 2);
    c.num_copy_sms = c.num_workers;
  }
  c.tile_rows = std::min<std::int64_t>(c.tile_rows, ceil_div(d.m, d.world_size));
  c.tile_cols = std::min(c.tile_cols, d.n);
  c.all_reduce = d.m * d.n * static_cast<std::int64_t>(size_bytes(d.dtype)) <= 64 * 1024
                     ? AllReduceKind::kOneShot
                     : AllReduceKind::kTwoShot;
  return c;
}

}  // namespace stretto
