// How long the proof takes where it is largest: AG+GEMM at m = k = 8192 with 128x256 tiles on 132
// SMs per rank, the columns split over the ranks (n = 57344 in all) or n = 57344 on every rank.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

Program ag_gemm(int world, std::int64_t n) {
  constexpr std::int64_t kM = 8192, kK = 8192, kBm = 128, kBn = 256, kBk = 64, kCommRows = 128;
  ProgramBuilder p("ag_gemm", world);
  auto a = p.input("a", DType::kBF16, {kM / world, kK}, Space::kSymmetric);
  auto b = p.input("b", DType::kBF16, {n, kK});
  auto full = p.buffer("full", DType::kBF16, {kM, kK});
  auto c = p.output("c", DType::kBF16, {kM, n});
  auto rows = p.tile_map("rows", full, {.tile_rows = kCommRows, .channels_per_rank = 2});
  auto here = p.signal("gathered", rows.channels());
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", Resource::copy_engine(), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.rank_copy_data(a.on(t.owner).tile({t.local_row, 0}, kCommRows, kK),
                     full.tile({t.row, 0}, kCommRows, kK).until_row(t.row_end));
    p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
    p.notify(done, t.owner);
  });
  p.role("gemm", Resource::sms(132), p.grid(c, kBm, kBn).rotate_rows(p.rank()), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row + kBm);
    Value acc = p.zeros(DType::kF32, kBm, kBn);
    p.loop(kK / kBk, [&](const Index& i) {
      acc = dot(acc, p.load(full.tile({t.row, i * kBk}, kBm, kBk)),
                p.load(b.tile({t.col, i * kBk}, kBn, kBk)).T());
    });
    p.store(c.tile({t.row, t.col}, kBm, kBn), cast(acc, DType::kBF16));
  });
  std::int64_t tiles_per_rank = ceil_div(kM / world, kCommRows);
  p.on_end([&] { p.loop(world, [&](const Index& r) { p.wait(done[r], tiles_per_rank); }); });
  return run_pipeline(p.finish());
}

void prove_ag_gemm(benchmark::State& state) {
  int world = static_cast<int>(state.range(0));
  Program program = ag_gemm(world, state.range(1));
  ProofResult result;
  for (auto _ : state) {
    result = prove(program);
    if (!result.proved) state.SkipWithError(result.report.c_str());
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_mb"] = static_cast<double>(usage.ru_maxrss) / 1024;
  state.counters["events"] = static_cast<double>(result.stats.events);
  state.counters["clocks"] = static_cast<double>(result.stats.clocks);
  state.counters["components"] = result.stats.components;
  state.counters["rounds"] = result.stats.rounds;
}
BENCHMARK(prove_ag_gemm)
    ->ArgNames({"ranks", "n_local"})
    ->Args({8, 57344 / 8})
    ->Args({64, 57344 / 64})
    ->Args({8, 57344})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stretto
