// How long the proof takes, and in how much memory, where it is largest: AG+GEMM and GEMM+RS at
// m = 8192 on all SMs of every rank, with m fixed and given at run time. peak_mb is the process's,
// so it belongs to the largest case so far: run one case (--benchmark_filter) to know its own.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

constexpr std::int64_t kM = 8192, kK = 8192, kBm = 128, kBn = 256, kBk = 64;

Value product(ProgramBuilder& p, const Slice& a, const TensorRef& b, const Index& col) {
  Value acc = p.zeros(DType::kF32, kBm, kBn);
  p.loop(b.dim(1).const_value() / kBk, [&](const Index& i) {
    Region block = a.region();
    block.origin.back() = i * kBk;
    acc = dot(acc, p.load(Slice(block)), p.load(b.tile({col, i * kBk}, kBn, kBk)).T());
  });
  return cast(acc, DType::kBF16);
}

// c[m, n] = all_gather(a)[m, k] * b[n, k]^T
Program ag_gemm(int world, std::int64_t n, bool run_time_m) {
  constexpr std::int64_t kCommRows = 128;
  ProgramBuilder p("ag_gemm", world);
  Index m = run_time_m ? p.extent("m", kM) : Index(kM);
  auto a = p.input("a", DType::kBF16, {ceil_div(m, world), kK}, Space::kSymmetric);
  auto b = p.input("b", DType::kBF16, {n, kK});
  auto full = p.buffer("full", DType::kBF16, {m, kK});
  auto c = p.output("c", DType::kBF16, {m, n});
  auto rows = p.tile_map("rows", full, {.tile_rows = kCommRows, .channels_per_rank = 2});
  auto here = p.signal("gathered", rows.channels());
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", Resource::copy_engine(), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.rank_copy_data(a.on(t.owner)
                         .tile({t.local_row, 0}, kCommRows, kK)
                         .until_row(t.local_row + t.row_end - t.row),
                     full.tile({t.row, 0}, kCommRows, kK).until_row(t.row_end));
    p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
    p.notify(done, t.owner);
  });
  p.role("gemm", Resource::sms(132), p.grid(c, kBm, kBn).rotate_rows(p.rank()), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row + kBm);
    p.store(c.tile({t.row, t.col}, kBm, kBn),
            product(p, full.tile({t.row, 0}, kBm, kBk), b, t.col));
  });
  std::int64_t tiles_per_rank = ceil_div(kM / world, kCommRows);
  p.on_end([&] { p.loop(world, [&](const Index& r) { p.wait(done[r], tiles_per_rank); }); });
  return run_pipeline(p.finish());
}

// out[m/P, n] = reduce_scatter(a[m, k/P] * b[n, k/P]^T): 100 workers store tiles straight into
// their owner's slots, 32 sum what has arrived, in two channels per sender.
Program gemm_rs(int world, std::int64_t n, bool run_time_m) {
  std::int64_t bound_rows = ceil_div(kM, std::int64_t{world});
  std::int64_t num_blocks = ceil_div(bound_rows, kBm);
  std::int64_t channels = num_blocks > 1 ? 2 : 1, per_channel = ceil_div(num_blocks, channels);
  ProgramBuilder p("gemm_rs", world);
  Index m = run_time_m ? p.extent("m", kM) : Index(kM);
  Index run_rows = ceil_div(m, world);
  auto a = p.input("a", DType::kBF16, {m, kK / world});
  auto b = p.input("b", DType::kBF16, {n, kK / world});
  auto slots = p.buffer("slots", DType::kBF16, {world, run_rows, n},
                        {.space = Space::kSymmetric, .num_slots = 2});
  auto out = p.output("out", DType::kBF16, {run_rows, n});
  auto arrived = p.signal("arrived", world * channels);
  p.role("gemm", Resource::sms(100), p.grid(world * num_blocks, n, 1, kBn), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + 1 + t.m / num_blocks) % world);
    Index block = p.let("block", t.m % num_blocks);
    Index row = p.let("row", block * kBm);
    Index rows = p.let("rows", max(min(m - owner * run_rows, run_rows), Index(0)));
    p.when(row < rows, [&] {
      Slice mine = a.tile({owner * run_rows + row, 0}, kBm, kBk).until_row(owner * run_rows + rows);
      p.store(slots.tile({p.rank(), row, t.col}, kBm, kBn).on(owner).until_row(rows),
              product(p, mine, b, t.col));
    });
    p.notify(arrived[p.rank() * channels + block / per_channel], owner);
  });
  p.role("reduce", Resource::sms(32), p.grid(num_blocks * kBm, n, kBm, kBn), [&](const Tile& t) {
    Index channel = p.let("channel", t.m / per_channel);
    Index last = min(Index(num_blocks), (channel + 1) * per_channel);
    Index count = p.let("count", (last - channel * per_channel) * ceil_div(n, kBn));
    Index rows = p.let("rows", max(min(m - p.rank() * run_rows, run_rows), Index(0)));
    Value sum = p.zeros(DType::kF32, kBm, kBn);
    p.loop(world, [&](const Index& source) {
      p.wait(arrived[source * channels + channel], count);
      Slice partial = slots.tile({source, t.row, t.col}, kBm, kBn).until_row(rows);
      sum = sum + cast(p.load(partial), DType::kF32);
    });
    p.store(out.tile({t.row, t.col}, kBm, kBn), cast(sum, DType::kBF16));
  });
  return run_pipeline(p.finish());
}

void run(benchmark::State& state, const Program& program) {
  ProofResult result;
  for (auto _ : state) {
    result = prove(program);
    if (result.rejected()) state.SkipWithError(result.report.c_str());
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_mb"] = static_cast<double>(usage.ru_maxrss) / 1024;
  state.counters["cases"] = result.stats.cases;
  state.counters["events"] = static_cast<double>(result.stats.events);
  state.counters["clocks"] = static_cast<double>(result.stats.clocks);
  state.counters["components"] = result.stats.components;
}

void prove_ag_gemm(benchmark::State& state) {
  run(state, ag_gemm(static_cast<int>(state.range(0)), state.range(1), state.range(2) != 0));
}
void prove_gemm_rs(benchmark::State& state) {
  run(state, gemm_rs(static_cast<int>(state.range(0)), state.range(1), state.range(2) != 0));
}
BENCHMARK(prove_ag_gemm)
    ->ArgNames({"ranks", "n_local", "run_time_m"})
    ->Args({8, 57344 / 8, 0})
    ->Args({8, 57344 / 8, 1})
    ->Args({64, 57344 / 64, 0})
    ->Args({64, 57344 / 64, 1})
    ->Args({8, 57344, 0})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(prove_gemm_rs)
    ->ArgNames({"ranks", "n", "run_time_m"})
    ->Args({8, 8192, 0})
    ->Args({8, 8192, 1})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stretto
