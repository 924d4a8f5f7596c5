// out[m, n/P] = gelu(all ranks' a[m/P, k] * b[n, k]^T + bias[1, n]), the columns of this rank: each
// tile of the product goes to the rank that owns its columns as soon as it is done. The file is
// told sizes, element type and whether it is for GPUs (program_shape.h), and places itself.
//   stretto prove examples/05_gemm_scatter.cc --ranks 1..8
//   stretto predict examples/05_gemm_scatter.cc --ranks 4 --m 8192 --n 14336 --k 4096
#include <algorithm>

#include "stretto/lang/program_builder.h"
#include "stretto/lang/program_shape.h"

using namespace stretto;  // NOLINT: an example

Program stretto_program(const ProgramShape& s) {
  const bool gpu = s.num_sms > 0;
  const std::int64_t world = s.world_size;
  const std::int64_t m = s.m ? s.m : 150, n = s.n ? s.n : 200, k = s.k ? s.k : 96;
  const std::int64_t rows = ceil_div(m, world), cols = ceil_div(n, world);  // of a rank
  const std::int64_t bm = gpu ? 128 : 32, bn = gpu ? 256 : 32, bk = 64;
  const std::int64_t row_tiles = ceil_div(rows, bm), col_tiles = ceil_div(cols, bn);
  const std::int64_t tiles = world * row_tiles * col_tiles;
  const int slots = s.dtype == DType::kF32 ? 2 : 4;  // of rows of a and b, in shared memory
  const int workers = static_cast<int>(std::min<std::int64_t>(tiles, s.num_sms));
  const Resource sms = gpu ? Resource::sms(workers).pipelined(slots) : Resource::sms(2);

  ProgramBuilder p("gemm_scatter", s.world_size);
  TensorRef a = p.input("a", s.dtype, {rows, k});
  TensorRef b = p.input("b", s.dtype, {world * cols, k});
  TensorRef bias = p.input("bias", s.dtype, {1, world * cols});
  TensorRef out = p.output("out", s.dtype, {world * rows, cols}, Space::kSymmetric);
  SignalRef ready = p.signal("ready"), sent = p.signal("sent");

  p.on_start([&] { p.notify_all(ready); });  // my `out` may be written
  p.role("gemm", sms, p.grid(row_tiles, world * col_tiles, 1, 1), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + 1 + t.n / col_tiles) % world);  // own columns last
    Index row = p.let("row", t.m * bm), col = p.let("col", t.n % col_tiles * bn);
    Index b_row = p.let("b_row", owner * cols + col), b_end = (owner + 1) * cols;
    Value acc = p.zeros(DType::kF32, bm, bn);
    p.loop(ceil_div(k, bk), [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({row, i * bk}, bm, bk)),
                p.load(b.tile({b_row, i * bk}, bn, bk).until_row(b_end)).T());
    });
    Value x = acc + cast(p.load(bias.tile({0, b_row}, 1, bn).until_col(b_end)), DType::kF32);
    Value y = x * sigmoid(1.5957691 * (x + 0.044715 * x * x * x));
    p.wait(ready, owner);
    p.store(
        out.on(owner).tile({p.rank() * rows + row, col}, bm, bn).until_row((p.rank() + 1) * rows),
        cast(y, s.dtype));
    p.notify(sent, owner);
  });
  p.on_end([&] {
    p.loop(world, [&](const Index& peer) { p.wait(sent[peer], row_tiles * col_tiles); });
  });
  return p.finish();
}
