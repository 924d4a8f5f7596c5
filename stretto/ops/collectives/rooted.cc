// Collectives with one rank that has or gets all: that rank reads, or is read from. What only it
// gets is an output that the others are not given.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "stretto/base/errors.h"
#include "stretto/ops/collectives/pieces.h"

namespace stretto {

using collective::finish;
using collective::for_pieces;
using collective::Rounding;
using collective::Runs;

namespace {

void check_rooted(const char* name, const CollectiveDesc& d, const CollectiveConfig& cfg,
                  int root) {
  collective::check({.name = name}, d, cfg);
  if (root < 0 || root >= d.world_size) {
    throw UserError(fmt::format("{}: root is {}, need 0..{}", name, root, d.world_size - 1));
  }
}

Resource copying(const CollectiveConfig& cfg) {
  return Resource::sms(std::max(cfg.num_workers, cfg.num_copy_sms));
}

}  // namespace

Program reduce_to(const CollectiveDesc& d, const CollectiveConfig& cfg, int root) {
  check_rooted("reduce", d, cfg, root);
  ProgramBuilder p("reduce", d.world_size);
  Index m = p.extent("m", d.m);
  Rounding rounded(p, d);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n}, {.given_on = p.rank() == root});
  SignalRef ready = p.signal("ready");  // this rank's input may be read
  SignalRef done = p.signal("done");    // the root has read a tile of it
  TileSpace tiles = p.grid(d.m, d.n, cfg.tile_rows, cfg.tile_cols);

  p.on_start([&] { p.notify(ready, root); });
  p.role("reduce", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    p.when(p.rank() == root, [&] {
      p.wait_all(ready);
      for_pieces(p, cfg, [&](const Index& first, std::int64_t rows) {
        Index row = p.let("row", t.row + first);
        auto cut = [&](const TensorRef& x) {
          return x.tile({row, t.col}, rows, cfg.tile_cols).until_row(t.row + cfg.tile_rows);
        };
        auto part = [&](const Index& r) { return p.load(cut(in).on(r)); };
        Value sum = reduce_over_ranks(p, d.reduction, {d.dtype, rows, cfg.tile_cols}, part);
        p.store(cut(out), rounded(sum));
      });
      p.notify_all(done);
    });
  });
  p.on_end([&] { p.wait(done[root], tiles.count()); });
  return finish(p, cfg);
}

Program gather_to(const CollectiveDesc& d, const CollectiveConfig& cfg, int root) {
  check_rooted("gather", d, cfg, root);
  ProgramBuilder p("gather", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {ceil_div(m, d.world_size), d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n}, {.given_on = p.rank() == root});
  Runs runs(m, d, cfg);
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");

  p.on_start([&] { p.notify(ready, root); });
  p.role("gather", copying(cfg), p.range(runs.tiles_per_run * d.world_size), [&](const Tile& t) {
    p.when(p.rank() == root, [&] {
      Index owner = p.let("owner", (root + 1 + t.index % d.world_size) % d.world_size);
      Index local = p.let("local", t.index / d.world_size * cfg.tile_rows);
      p.wait(ready, owner);
      p.rank_copy_data(
          in.on(owner).tile({local, 0}, cfg.tile_rows, d.n).until_row(runs.run_rows),
          out.tile({runs.first(owner) + local, 0}, cfg.tile_rows, d.n).until_row(runs.end(owner)));
      p.notify(done, owner);
    });
  });
  p.on_end([&] { p.wait(done[root], runs.tiles_per_run); });
  return finish(p, cfg);
}

Program send_to(const CollectiveDesc& d, const CollectiveConfig& cfg, int source, int target) {
  check_rooted("send", d, cfg, source);
  check_rooted("send", d, cfg, target);
  ProgramBuilder p("send", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {m, d.n}, {.given_on = p.rank() == target});
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");
  TileSpace tiles = p.range(ceil_div(d.m, cfg.tile_rows));
  auto at = [&](int rank, const std::function<void()>& fn) { p.when(p.rank() == rank, fn); };

  p.on_start([&] { at(source, [&] { p.notify(ready, target); }); });
  p.role("receive", copying(cfg), tiles, [&](const Tile& t) {
    at(target, [&] {
      p.wait(ready, source);
      p.rank_copy_data(in.on(source).tile({t.index * cfg.tile_rows, 0}, cfg.tile_rows, d.n),
                       out.tile({t.index * cfg.tile_rows, 0}, cfg.tile_rows, d.n));
      p.notify(done, source);
    });
  });
  p.on_end([&] { at(source, [&] { p.wait(done[target], tiles.count()); }); });
  return finish(p, cfg);
}

Program scatter_from(const CollectiveDesc& d, const CollectiveConfig& cfg, int root) {
  check_rooted("scatter", d, cfg, root);
  ProgramBuilder p("scatter", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef in = p.input("in", d.dtype, {m, d.n}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {ceil_div(m, d.world_size), d.n});
  Runs runs(m, d, cfg);
  SignalRef ready = p.signal("ready");
  SignalRef done = p.signal("done");

  p.on_start([&] { p.when(p.rank() == root, [&] { p.notify_all(ready); }); });
  p.role("scatter", copying(cfg), p.range(runs.tiles_per_run), [&](const Tile& t) {
    Index local = p.let("local", t.index * cfg.tile_rows);
    p.wait(ready, root);
    p.rank_copy_data(in.on(root)
                         .tile({runs.first(p.rank()) + local, 0}, cfg.tile_rows, d.n)
                         .until_row(runs.end(p.rank())),
                     out.tile({local, 0}, cfg.tile_rows, d.n));
    p.notify(done, root);
  });
  p.on_end([&] {
    p.when(p.rank() == root, [&] {
      p.loop(d.world_size, [&](const Index& i) { p.wait(done[i], runs.tiles_per_run); });
    });
  });
  return finish(p, cfg);
}

}  // namespace stretto
