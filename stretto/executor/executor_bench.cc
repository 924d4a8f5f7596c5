// What interpretation costs: a GEMM in 128x128x64 tiles beside the bare kernel calls that it makes,
// and the launch of a program that does nothing.
#include <benchmark/benchmark.h>

#include <random>

#include "stretto/executor/kernels/dot.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

constexpr std::int64_t kM = 512, kN = 512, kTile = 128, kBk = 64;

// `folded` false: an operation in the loop keeps every 128x128x64 step an instruction of its own.
Program gemm(std::int64_t k, DType dtype, bool folded) {
  ProgramBuilder p("gemm", 1);
  auto a = p.input("a", dtype, {kM, k});
  auto b = p.input("b", dtype, {kN, k});
  auto y = p.output("y", DType::kF32, {kM, kN});
  p.role("gemm", Resource::sms(1), p.grid(y, kTile, kTile), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, kTile);
    p.loop(k / kBk, [&](const Index& i) {
      if (!folded) p.full(DType::kF32, 1, 1, 0);
      Value left = p.load(a.tile({t.row, i * kBk}, kTile, kBk));
      acc = dot(acc, left, p.load(b.tile({t.col, i * kBk}, kTile, kBk)).T());
    });
    p.store(y.tile({t.row, t.col}, kTile, kTile), acc);
  });
  return p.finish();
}

// Launches `program` once per iteration on a world of one rank.
void launch_all(benchmark::State& state, Program tile_level) {
  auto program = at_schedule_level(std::move(tile_level));
  World world({.size = 1});
  Quotas quotas = count_quotas(*program, extent_bounds(*program));
  world.run([&](Rank& rank) {
    RankArguments arguments(rank, *program);
    Instance instance(rank, program, quotas);
    for (auto _ : state) instance.launch(arguments.args);
  });
}

void executor_gemm(benchmark::State& state, DType dtype, bool folded) {
  launch_all(state, gemm(state.range(0), dtype, folded));
  state.SetItemsProcessed(state.iterations() * kM * kN * state.range(0) / (kTile * kTile * kBk));
}

// The same tiles as bare kernel calls, one per 128x128x64 step or one per tile.
void bare_gemm(benchmark::State& state, DType dtype, bool folded) {
  std::int64_t k = state.range(0);
  std::vector<std::byte> a(static_cast<std::size_t>(kM * k) * 4 + 64), b = a;
  std::vector<float> y(kM * kN);
  std::vector<float> acc(kTile * kTile);
  std::int64_t step = folded ? k : kBk;
  auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
  for (auto _ : state) {
    for (std::int64_t t = 0; t < (kM / kTile) * (kN / kTile); ++t) {
      std::int64_t row = t / (kN / kTile) * kTile, col = t % (kN / kTile) * kTile;
      for (std::int64_t i = 0; i < k; i += step) {
        kernels::TileRef out{DType::kF32, kTile, kTile, acc.data(), kTile, 1};
        kernels::ConstTileRef left{dtype, kTile, step, a.data() + (row * k + i) * bytes, k, 1};
        kernels::ConstTileRef right{dtype, step, kTile, b.data() + (col * k + i) * bytes, 1, k};
        kernels::dot({.acc = out, .a = left, .b = right, .accumulate = i > 0});
      }
      for (std::int64_t r = 0; r < kTile; ++r) {
        std::copy_n(acc.data() + r * kTile, kTile, y.data() + (row + r) * kN + col);
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kM * kN * k / (kTile * kTile * kBk));
}

void executor_trivial_launch(benchmark::State& state) {
  ProgramBuilder p("trivial", 1);
  auto x = p.input("x", DType::kF32, {1, 16});
  auto y = p.output("y", DType::kF32, {1, 16});
  auto done = p.signal("done");
  p.role("copy", Resource::host(), p.range(1), [&](const Tile&) {
    p.copy(y.tile({0, 0}, 1, 16), x.tile({0, 0}, 1, 16));
    p.notify(done, p.rank());
  });
  p.on_end([&] { p.wait_all(done); });
  launch_all(state, p.finish());
}

BENCHMARK(executor_trivial_launch);
BENCHMARK_CAPTURE(executor_gemm, f32_steps, DType::kF32, false)->Arg(1024);
BENCHMARK_CAPTURE(bare_gemm, f32_steps, DType::kF32, false)->Arg(1024);
BENCHMARK_CAPTURE(executor_gemm, f32_folded, DType::kF32, true)->Arg(1024);
BENCHMARK_CAPTURE(bare_gemm, f32_folded, DType::kF32, true)->Arg(1024);
BENCHMARK_CAPTURE(executor_gemm, bf16_folded, DType::kBF16, true)->Arg(1024);
BENCHMARK_CAPTURE(bare_gemm, bf16_folded, DType::kBF16, true)->Arg(1024);

}  // namespace
}  // namespace stretto
