// The loops that are held out, with the tile and the options that products.cc and rows.cc begin
// from: two warpgroups of 64 rows, accumulators of half the registers, four steps loaded ahead. Two
// of them were refused so, for want of shared memory, and have what lets them run; nothing else was
// tried.
#include "examples/loops/loops.h"
#include "examples/loops/product_tile.h"
#include "stretto/lang/program_builder.h"

namespace stretto::loops {
// out = relu(a b')^2 v: sums three times as long as rows of the result.
Program squared(const LoopShape& s, int workers) {
  constexpr std::int64_t kInner = 192, kKeys = 128, kWidth = 64;  // n up to kWidth
  ProgramBuilder p("squared", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, 3 * s.n});    // [m, 3 n]
  auto b = p.input("b", DType::kBF16, {s.k, 3 * s.n});  // [k, 3 n]
  auto v = p.input("v", DType::kBF16, {s.k, s.n});      // [k, n]
  auto out = p.output("out", DType::kBF16, {m, s.n});   // [m, n]
  // Two tiles of `a` would not fit beside two steps.
  auto sms = Resource::sms(workers).pipelined(2).holding(1);
  p.role("chain", sms, p.grid(m, 1, kRows, 1), [&](const Tile& t) {
    Value left = p.load(a.tile({t.row, 0}, kRows, kInner));
    Value acc = p.zeros(DType::kF32, kRows, kWidth);
    p.loop(ceil_div(s.k, kKeys), [&](const Index& j) {
      Value right = p.load(b.tile({j * kKeys, 0}, kKeys, kInner)).T();
      Value inner = dot(p.zeros(DType::kF32, kRows, kKeys), left, right);  // [kRows, kKeys]
      inner = maximum(inner, 0.0);
      acc = dot(acc, cast(inner * inner, DType::kBF16),
                p.load(v.tile({j * kKeys, 0}, kKeys, kWidth)));
    });
    p.store(out.tile({t.row, 0}, kRows, kWidth), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c = a (b + d), the sum rounded to bf16 before the product. A right factor that is computed takes
// shared memory of its own for each product under way, so each is awaited, and there is room for
// two steps.
Program right_sum(const LoopShape& s, int workers) {
  ProgramBuilder p("right_sum", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.k});    // [m, k]
  auto b = p.input("b", DType::kBF16, {s.k, s.n});  // [k, n]
  auto d = p.input("d", DType::kBF16, {s.k, s.n});  // [k, n]
  auto c = p.output("c", DType::kBF16, {m, s.n});   // [m, n]
  auto sms = Resource::sms(workers).pipelined(2).multiplying(ProductOrder::kAwaited);
  p.role("add", sms, grid_of(p, c), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    p.loop(ceil_div(s.k, kStep), [&](const Index& i) {
      auto wide = [&](const TensorRef& tensor) {
        return cast(p.load(tensor.tile({i * kStep, t.col}, kStep, kCols)), DType::kF32);
      };
      acc = dot(acc, p.load(a.tile({t.row, i * kStep}, kRows, kStep)),
                cast(wide(b) + wide(d), DType::kBF16));
    });
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// Column j of c = a b[rows[j]]', zero where rows[j] is negative.
Program gathered_right(const LoopShape& s, int workers) {
  ProgramBuilder p("gathered_right", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.k});       // [m, k]
  auto b = p.input("b", DType::kBF16, {s.n, s.k});     // [n, k]
  auto rows = p.input("rows", DType::kI32, {s.n, 1});  // [n, 1] rows of b
  auto c = p.output("c", DType::kBF16, {m, s.n});      // [m, n]
  auto sms = Resource::sms(workers).pipelined(kStages);
  p.role("gather", sms, grid_of(p, c), [&](const Tile& t) {
    Value which = p.load(rows.tile({t.col, 0}, kCols, 1));
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    p.loop(ceil_div(s.k, kStep), [&](const Index& i) {
      Value right = p.load_rows(b.tile({0, i * kStep}, kCols, kStep), which).T();
      acc = dot(acc, p.load(a.tile({t.row, i * kStep}, kRows, kStep)), right);
    });
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// c = a b', and of every row the largest magnitude in each block of kCols columns.
Program maxima(const LoopShape& s, int workers) {
  ProgramBuilder p("maxima", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.k});                         // [m, k]
  auto b = p.input("b", DType::kBF16, {s.n, s.k});                       // [n, k]
  auto c = p.output("c", DType::kBF16, {m, s.n});                        // [m, n]
  auto most = p.output("most", DType::kF32, {m, ceil_div(s.n, kCols)});  // [m, blocks]
  auto sms = Resource::sms(workers).pipelined(kStages);
  p.role("measure", sms, grid_of(p, c), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    p.loop(ceil_div(s.k, kStep), [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * kStep}, kRows, kStep)),
                p.load(b.tile({t.col, i * kStep}, kCols, kStep)).T());
    });
    p.store(most.tile({t.row, t.n}, kRows, 1), row_max(abs(acc)));
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// out = h / sqrt(mean(h^2) + eps) of h = x + silu(y) z, the mean over a row. A thread has the same
// 32 elements of each tensor as one of `elementwise`, and rows are as many as that leaves.
Program normalised(const LoopShape& s, int workers) {
  constexpr std::int64_t kWhole = 4096, kFew = 4;  // holds a whole row; n may be less
  constexpr int kThreads = 512;
  ProgramBuilder p("normalised", 1);
  Index m = p.extent("m", s.m);
  auto x = p.input("x", DType::kBF16, {m, s.n});       // [m, n]
  auto y = p.input("y", DType::kBF16, {m, s.n});       // [m, n]
  auto z = p.input("z", DType::kBF16, {m, s.n});       // [m, n]
  auto out = p.output("out", DType::kBF16, {m, s.n});  // [m, n]
  p.role("normalise", Resource::sms(workers), p.grid(m, 1, kFew, 1), [&](const Tile& t) {
    auto box = [&](const TensorRef& tensor) { return tensor.tile({t.row, 0}, kFew, kWhole); };
    Value of_x = p.load(box(x)), of_y = p.load(box(y)), of_z = p.load(box(z));  // all under way
    Value h = cast(of_x, DType::kF32) + silu(cast(of_y, DType::kF32)) * cast(of_z, DType::kF32);
    Value mean = row_sum(h * h) / static_cast<double>(s.n);
    p.store(box(out), cast(h * rsqrt(mean + kNormEps), DType::kBF16));
  });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = kThreads;
  return program;
}

// c = band(a) b: of row i of a, columns i - k to i + k. Steps that no row of a tile masks lie
// between others.
Program banded(const LoopShape& s, int workers) {
  ProgramBuilder p("banded", 1);
  Index m = p.extent("m", s.m);
  auto a = p.input("a", DType::kBF16, {m, s.m});    // [m, bound of m]
  auto b = p.input("b", DType::kBF16, {s.m, s.n});  // [bound of m, n]
  auto c = p.output("c", DType::kBF16, {m, s.n});   // [m, n]
  auto sms = Resource::sms(workers).pipelined(kStages);
  p.role("mask", sms, grid_of(p, c), [&](const Tile& t) {
    Index first = p.let("first", max(t.row - s.k, 0) / kStep);
    Index end = p.let("end", ceil_div(min(t.row + kRows + s.k, s.m), kStep));
    Index whole = p.let("whole", min(ceil_div(max(t.row + kRows - 1 - s.k, 0), kStep), end));
    Index whole_end = p.let("whole_end", max(whole, min((t.row + s.k + 1) / kStep, end)));
    Value acc = p.zeros(DType::kF32, kRows, kCols);
    auto left = [&](const Index& i) { return p.load(a.tile({t.row, i * kStep}, kRows, kStep)); };
    auto right = [&](const Index& i) { return p.load(b.tile({i * kStep, t.col}, kStep, kCols)); };
    auto edge = [&](const Index& i) {
      Value rows = p.iota_rows(t.row, kRows), cols = p.iota_cols(i * kStep, kStep);
      auto width = static_cast<double>(s.k);
      Value seen = (cols <= rows + width) && (rows <= cols + width);
      acc = dot(acc, where(seen, left(i), p.zeros(DType::kBF16, 1, 1)), right(i));
    };
    p.loop(first, whole, edge);
    p.loop(whole, whole_end, [&](const Index& i) { acc = dot(acc, left(i), right(i)); });
    p.loop(whole_end, end, edge);
    p.store(c.tile({t.row, t.col}, kRows, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

}  // namespace stretto::loops
