// c[m, n] = all_gather(a[m / P, k]) * b[n, k]^T: each tile of the product starts as soon as the
// rows it needs have arrived, own rows first. The shipped operator (stretto/ops/ag_gemm) adds
// options.
//   stretto prove examples/02_ag_gemm.cc --ranks 1..8
//   stretto bench examples/02_ag_gemm.cc --ranks 4
#include "stretto/lang/program_builder.h"

using namespace stretto;  // NOLINT: an example

Program stretto_program(int world_size) {
  constexpr std::int64_t kM = 500, kN = 192, kK = 256;  // no size need divide another
  constexpr std::int64_t kBm = 64, kBn = 96, kBk = 128, kComm = 32;
  ProgramBuilder p("ag_gemm", world_size);
  TensorRef a =
      p.input("a", DType::kF32, {ceil_div(kM, std::int64_t{world_size}), kK}, Space::kSymmetric);
  TensorRef b = p.input("b", DType::kF32, {kN, kK});
  TensorRef full = p.buffer("full", DType::kF32, {kM, kK});
  TensorRef c = p.output("c", DType::kF32, {kM, kN});
  TileMapRef rows = p.tile_map("rows", full, {.tile_rows = kComm, .channels_per_rank = 2});
  SignalRef gathered = p.signal("gathered", rows.channels());  // rows of `full` that are there
  SignalRef ready = p.signal("ready");                         // my rows may be read
  SignalRef done = p.signal("done");                           // a peer has read a tile of them

  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", Resource::copy_engine(), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.rank_copy_data(
        a.on(t.owner).tile({t.local_row, 0}, kComm, kK).until_row(t.local_row + t.row_end - t.row),
        full.tile({t.row, 0}, kComm, kK).until_row(t.row_end));
    p.producer_tile_notify(gathered, rows, t, NotifyMode::kLocal);
    p.notify(done, t.owner);
  });
  p.role("gemm", Resource::sms(2), p.grid(c, kBm, kBn).rotate_rows(p.rank()), [&](const Tile& t) {
    p.consumer_tile_wait(gathered, rows, t.row, t.row + kBm);
    Value acc = p.zeros(DType::kF32, kBm, kBn);
    p.loop(ceil_div(kK, kBk), [&](const Index& i) {
      acc = dot(acc, p.load(full.tile({t.row, i * kBk}, kBm, kBk)),
                p.load(b.tile({t.col, i * kBk}, kBn, kBk)).T());
    });
    p.store(c.tile({t.row, t.col}, kBm, kBn), acc);
  });
  p.on_end([&] {
    Index tiles = rows.tiles().owned_by(p.rank()).count();
    p.loop(world_size, [&](const Index& peer) { p.wait(done[peer], tiles); });
  });
  return p.finish();
}
