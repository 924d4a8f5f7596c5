// c[m, n/P] = all_gather(a[m/P, k]) * b[n/P, k]^T. Copy engines send each rank's rows to its peers
// while the SMs multiply: own rows first, then those of the next ranks, as they arrive. ./run shows
// what can be done with this file; the shipped operator is stretto/ops/ag_gemm.
#include "stretto/lang/program_builder.h"
#include "stretto/lang/program_shape.h"

using namespace stretto;  // NOLINT: an example

Program stretto_program(const ProgramShape& s) {
  const bool gpu = s.num_sms > 0;
  const std::int64_t world = s.world_size, peers = world - 1;
  const std::int64_t m = s.m ? s.m : 512, k = s.k ? s.k : 256;  // no size need divide another
  const std::int64_t n = ceil_div(s.n ? s.n : 768, world);      // columns of a rank
  const std::int64_t rows = ceil_div(m, world);                 // of a rank
  const std::int64_t bm = gpu ? 128 : 64, bn = gpu ? 256 : 96, bk = 64;
  const std::int64_t row_tiles = ceil_div(rows, bm);                         // of a rank
  const std::int64_t send_rows = ceil_div(row_tiles, std::int64_t{4}) * bm;  // whole tiles
  const std::int64_t sends = ceil_div(rows, send_rows);                      // to each peer
  const std::int64_t tiles = world * row_tiles * ceil_div(n, bn);
  const int workers = !gpu ? 2 : tiles < s.num_sms ? static_cast<int>(tiles) : s.num_sms;

  ProgramBuilder p("ag_gemm", s.world_size);
  TensorRef a = p.input("a", s.dtype, {rows, k});
  TensorRef b = p.input("b", s.dtype, {n, k});
  TensorRef c = p.output("c", s.dtype, {m, n});
  TensorRef full = p.buffer("full", s.dtype, {world * rows, k}, {.space = Space::kSymmetric});
  SignalRef arrived = p.signal("arrived", world * sends);  // rows of a peer in my `full`
  SignalRef ready = p.signal("ready");                     // a peer's `full` may be written

  p.on_start([&] { p.notify_all(ready); });
  p.role("send", Resource::copy_engine(2), p.grid(peers, sends, 1, 1), [&](const Tile& t) {
    Index peer = p.let("peer", (p.rank() + peers - t.m) % world);  // first who needs them first
    Index row = p.let("row", p.rank() * rows + t.n * send_rows);   // in `full`
    p.wait(ready, peer);
    p.put_signal(full.on(peer).tile({row, 0}, send_rows, k).until_row((p.rank() + 1) * rows),
                 a.tile({t.n * send_rows, 0}, send_rows, k), arrived[p.rank() * sends + t.n], peer);
  });
  Resource sms = Resource::sms(workers).pipelined(gpu ? 4 : 0);
  p.role("gemm", sms, p.grid(world * row_tiles, n, 1, bn).raster(8), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + t.m / row_tiles) % world);
    Index row = p.let("row", t.m % row_tiles * bm), first = p.let("first", owner * rows);
    Value acc = p.zeros(DType::kF32, bm, bn);
    auto multiply = [&](const TensorRef& x, const Index& from, const Index& end) {
      p.loop(ceil_div(k, bk), [&](const Index& i) {
        Value left = p.load(x.tile({from, i * bk}, bm, bk).until_row(end));
        acc = dot(acc, left, p.load(b.tile({t.col, i * bk}, bn, bk)).T());
      });
    };
    auto multiply_arrived = [&] {
      p.wait(arrived[owner * sends + row / send_rows], 1);
      multiply(full, first + row, first + rows);
    };
    p.when(
        owner == p.rank(), [&] { multiply(a, row, rows); }, multiply_arrived);
    p.store(c.tile({first + row, t.col}, bm, bn).until_row(first + rows), cast(acc, s.dtype));
  });
  return p.finish();
}
