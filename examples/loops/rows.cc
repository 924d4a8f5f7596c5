// The loops without products, which memory bounds. 256 columns of bf16 are a warp's row of 16 bytes
// a lane, so no reduction crosses warps; 16 warps, each at its own place, keep HBM busy.
#include "examples/loops/loops.h"
#include "stretto/lang/program_builder.h"

namespace stretto::loops {
namespace {

constexpr std::int64_t kRowCols = 256;
constexpr int kThreads = 512;

Program with_threads(Program program) {
  program.roles[0].agents[0].num_threads = kThreads;
  return program;
}

}  // namespace

// out[i] = sum of x[i, j]^2 over j.
Program reduction(const LoopShape& s, int workers) {
  constexpr std::int64_t kRows = 128;
  ProgramBuilder p("reduction", 1);
  Index m = p.extent("m", s.m);
  auto x = p.input("x", DType::kBF16, {m, s.n});    // [m, n]
  auto out = p.output("out", DType::kF32, {m, 1});  // [m, 1]
  p.role("sum", Resource::sms(workers), p.grid(m, 1, kRows, 1), [&](const Tile& t) {
    Value total = p.zeros(DType::kF32, kRows, kRowCols);
    p.loop(ceil_div(s.n, kRowCols), [&](const Index& j) {
      Value wide = cast(p.load(x.tile({t.row, j * kRowCols}, kRows, kRowCols)), DType::kF32);
      total = total + wide * wide;
    });
    p.store(out.tile({t.row, 0}, kRows, 1), row_sum(total));
  });
  return with_threads(p.finish());
}

// out = silu(x) * g + r / sqrt(r^2 + 1).
Program elementwise(const LoopShape& s, int workers) {
  constexpr std::int64_t kRows = 64;
  ProgramBuilder p("elementwise", 1);
  Index m = p.extent("m", s.m);
  auto x = p.input("x", DType::kBF16, {m, s.n});       // [m, n]
  auto g = p.input("g", DType::kBF16, {m, s.n});       // [m, n]
  auto r = p.input("r", DType::kBF16, {m, s.n});       // [m, n]
  auto out = p.output("out", DType::kBF16, {m, s.n});  // [m, n]
  p.role("map", Resource::sms(workers), p.grid(out, kRows, kRowCols), [&](const Tile& t) {
    auto box = [&](const TensorRef& tensor) { return tensor.tile({t.row, t.col}, kRows, kRowCols); };
    Value of_x = p.load(box(x)), of_g = p.load(box(g)), of_r = p.load(box(r));  // all under way
    Value gate = cast(of_x, DType::kF32), up = cast(of_g, DType::kF32);
    Value rest = cast(of_r, DType::kF32);
    Value sum = silu(gate) * up + rest * rsqrt(rest * rest + 1.0);
    p.store(box(out), cast(sum, DType::kBF16));
  });
  return with_threads(p.finish());
}

}  // namespace stretto::loops
