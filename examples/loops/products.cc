// The loops with products, in the tile that product_tile.h has.
#include "examples/loops/loops.h"
#include "examples/loops/product_tile.h"
#include "stretto/lang/program_builder.h"

namespace stretto::loops {
// out = relu(a b') v: the first product never leaves the registers.
Program chained(const LoopShape& s, int workers) {
  constexpr std::int64_t kWidth = 128;  // holds a whole row; n may be less
  ProgramBuilder p("chained", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.n});       // [m, n]
  auto b = p.input("b", DType::kBF16, {s.k, s.n});     // [k, n]
  auto v = p.input("v", DType::kBF16, {s.k, s.n});     // [k, n]
  auto out = p.output("out", DType::kBF16, {m, s.n});  // [m, n]
  p.role("chain", Resource::sms(workers).pipelined(2), p.grid(m, 1, kRows, 1), [&](const Tile& t) {
    Value left = p.load(a.tile({t.row, 0}, kRows, kWidth));
    Value acc = p.zeros(DType::kF32, kRows, kWidth);
    p.loop(ceil_div(s.k, kWidth), [&](const Index& j) {
      Value right = p.load(b.tile({j * kWidth, 0}, kWidth, kWidth)).T();
      Value inner = dot(p.zeros(DType::kF32, kRows, kWidth), left, right);  // [kRows, kWidth]
      inner = maximum(inner, p.full(DType::kF32, 1, 1, 0));
      acc = dot(acc, cast(inner, DType::kBF16), p.load(v.tile({j * kWidth, 0}, kWidth, kWidth)));
    });
    p.store(out.tile({t.row, 0}, kRows, kWidth), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c[i] = a[rows[i]] b', zero where rows[i] is negative.
Program gathered(const LoopShape& s, int workers) {
  ProgramBuilder p("gathered", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {s.m, s.k});   // [bound of m, k]
  auto rows = p.input("rows", DType::kI32, {m, 1});  // [m, 1] rows of a
  auto b = p.input("b", DType::kBF16, {s.n, s.k});   // [n, k]
  auto c = p.output("c", DType::kBF16, {m, s.n});    // [m, n]
  auto sms = Resource::sms(workers).pipelined(kStages);
  p.role("gather", sms, grid_of(p, c), [&](const Tile& t) {
    Value which = p.load(rows.tile({t.row, 0}, kRows, 1));
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    p.loop(ceil_div(s.k, kStep), [&](const Index& i) {
      Value left = p.load_rows(a.tile({0, i * kStep}, kRows, kStep), which);
      acc = dot(acc, left, p.load(b.tile({t.col, i * kStep}, kCols, kStep)).T());
    });
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c = sum over blocks of 128 along k of (a b') with a scale for each row and each column of the
// block. Beside the sum there are two products of its size, so tiles are small; pairs of blocks
// share the columns' factor, since so small tiles need more bandwidth from L2 than there is.
Program scaled(const LoopShape& s, int workers) {
  constexpr std::int64_t kBlock = 128, kScaledCols = 128;
  constexpr int kPair = 2;
  constexpr std::int64_t kScaledRows = kPair * kRows;
  std::int64_t blocks = ceil_div(s.k, kBlock);
  ProgramBuilder p("scaled", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.k});                  // [m, k]
  auto b = p.input("b", DType::kBF16, {s.n, s.k});                // [n, k]
  auto scale_a = p.input("scale_a", DType::kF32, {m, blocks});    // [m, blocks]
  auto scale_b = p.input("scale_b", DType::kF32, {blocks, s.n});  // [blocks, n]
  auto c = p.output("c", DType::kBF16, {m, s.n});                 // [m, n]
  auto sms = Resource::sms((workers + 1) / kPair).pipelined(3).clustered(kPair);
  auto tiles = p.grid(c, kScaledRows, kScaledCols).raster(kRaster);
  p.role("scale", sms, tiles, [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kScaledRows, kScaledCols);
    p.loop(blocks, [&](const Index& i) {
      DotScales scales = {p.load(scale_a.tile({t.row, i}, kScaledRows, 1)),
                          p.load(scale_b.tile({i, t.col}, 1, kScaledCols))};
      acc = dot_scaled(acc, p.load(a.tile({t.row, i * kBlock}, kScaledRows, kBlock)),
                       p.load(b.tile({t.col, i * kBlock}, kScaledCols, kBlock)).T(), scales);
    });
    p.store(c.tile({t.row, t.col}, kScaledRows, kScaledCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c = a' b, where both lie along k first, as gradients of weights do.
Program transposed(const LoopShape& s, int workers) {
  ProgramBuilder p("transposed", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {s.k, m});    // [k, m]
  auto b = p.input("b", DType::kBF16, {s.k, s.n});  // [k, n]
  auto c = p.output("c", DType::kBF16, {m, s.n});   // [m, n]
  auto sms = Resource::sms(workers).pipelined(kStages);
  p.role("transpose", sms, grid_of(p, c), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    p.loop(ceil_div(s.k, kStep), [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({i * kStep, t.row}, kStep, kRows)).T(),
                p.load(b.tile({i * kStep, t.col}, kStep, kCols)));
    });
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c = tril(a) b: what lies right of the diagonal is not read, or masked where its tile has other
// elements. Long sums first. Rows of an odd number of 16 bytes lie across the lines of L2, which
// then looks up two for each 128 bytes; pairs of blocks that share b ask it for less. The few
// products with a mask are awaited one by one.
Program triangular(const LoopShape& s, int workers) {
  constexpr int kPair = 2;
  constexpr std::int64_t kRows = kPair * loops::kRows, kCols = 256;  // wide: fewer lines of `a`
  constexpr std::int64_t kOddRaster = 5;  // clusters 66 tiles apart see long rows and short ones
  ProgramBuilder p("triangular", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.m});    // [m, bound of m]
  auto b = p.input("b", DType::kBF16, {s.m, s.n});  // [bound of m, n]
  auto c = p.output("c", DType::kBF16, {m, s.n});   // [m, n]
  auto sms = Resource::sms((workers + 1) / kPair)
                 .pipelined(kStages)
                 .clustered(kPair)
                 .multiplying(ProductOrder::kAwaited);
  p.role("mask", sms, p.grid(c, kRows, kCols).raster(kOddRaster), [&](const Tile& t) {
    Index first = p.let("first", (ceil_div(m, kRows) - 1) * kRows - t.row);
    Index full = p.let("full", first / kStep);  // steps that no row masks
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    auto left = [&](const Index& i) { return p.load(a.tile({first, i * kStep}, kRows, kStep)); };
    auto right = [&](const Index& i) { return p.load(b.tile({i * kStep, t.col}, kStep, kCols)); };
    p.loop(full, [&](const Index& i) { acc = dot(acc, left(i), right(i)); });
    p.loop(full, ceil_div(min(first + kRows, m), kStep), [&](const Index& i) {
      Value seen = p.iota_cols(i * kStep, kStep) <= p.iota_rows(first, kRows);
      Value masked = where(seen, left(i), p.zeros(DType::kBF16, 1, 1));
      acc = dot(acc, masked, right(i));
    });
    p.store(c.tile({first, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c = (a * w) b' with a weight for each column of a, rounded to bf16 before the product.
Program register_a(const LoopShape& s, int workers) {
  ProgramBuilder p("register_a", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.k});    // [m, k]
  auto w = p.input("w", DType::kBF16, {1, s.k});    // [1, k]
  auto b = p.input("b", DType::kBF16, {s.n, s.k});  // [n, k]
  auto c = p.output("c", DType::kBF16, {m, s.n});   // [m, n]
  auto sms = Resource::sms(workers).pipelined(kStages);
  p.role("weigh", sms, grid_of(p, c), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    p.loop(ceil_div(s.k, kStep), [&](const Index& i) {
      Value wide = cast(p.load(a.tile({t.row, i * kStep}, kRows, kStep)), DType::kF32);
      Value weight = cast(p.load(w.tile({0, i * kStep}, 1, kStep)), DType::kF32);
      acc = dot(acc, cast(wide * weight, DType::kBF16),
                p.load(b.tile({t.col, i * kStep}, kCols, kStep)).T());
    });
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

}  // namespace stretto::loops
