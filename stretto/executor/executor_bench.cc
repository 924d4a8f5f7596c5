// What interpretation costs: a GEMM in 128x128x64 tiles beside the bare kernel calls that it makes,
// in turn, launch by launch, so that a machine that slows down slows both; and the launch of a
// program that does nothing. `overhead` is the median of program time / bare time - 1, on the
// thread's processor clock; lo and hi bound its 95 % interval.
#include <benchmark/benchmark.h>
#include <time.h>

#include <string>
#include <vector>

#include "stretto/base/statistics.h"
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

// Processor time of the calling thread, on which both run.
double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Call>
double seconds(const Call& call) {
  double begin = thread_seconds();
  call();
  return thread_seconds() - begin;
}

void report_overhead(benchmark::State& state, std::vector<double> ratios) {
  MedianInterval ratio = median_interval(std::move(ratios));
  state.counters["overhead"] = ratio.median - 1;
  state.counters["overhead_lo"] = ratio.low - 1;
  state.counters["overhead_hi"] = ratio.high - 1;
}

// The same tiles as bare kernel calls, one per 128x128x64 step or one per tile.
class BareGemm {
 public:
  BareGemm(std::int64_t k, DType dtype, bool folded)
      : k_(k),
        step_(folded ? k : kBk),
        dtype_(dtype),
        a_(static_cast<std::size_t>(kM * k) * 4 + 64),
        b_(a_),
        y_(kM * kN),
        acc_(kTile * kTile) {}

  void run() {
    for (std::int64_t t = 0; t < (kM / kTile) * (kN / kTile); ++t)
      tile(t / (kN / kTile) * kTile, t % (kN / kTile) * kTile);
    benchmark::ClobberMemory();
  }

 private:
  void tile(std::int64_t row, std::int64_t col) {
    auto bytes = static_cast<std::int64_t>(size_bytes(dtype_));
    for (std::int64_t i = 0; i < k_; i += step_) {
      kernels::TileRef out{DType::kF32, kTile, kTile, acc_.data(), kTile, 1};
      kernels::ConstTileRef left{dtype_, kTile, step_, a_.data() + (row * k_ + i) * bytes, k_, 1};
      kernels::ConstTileRef right{dtype_, step_, kTile, b_.data() + (col * k_ + i) * bytes, 1, k_};
      kernels::dot({.acc = out, .a = left, .b = right, .accumulate = i > 0});
    }
    for (std::int64_t r = 0; r < kTile; ++r)
      std::copy_n(acc_.data() + r * kTile, kTile, y_.data() + (row + r) * kN + col);
  }

  std::int64_t k_, step_;
  DType dtype_;
  std::vector<std::byte> a_, b_;
  std::vector<float> y_, acc_;
};

void executor_gemm(benchmark::State& state, DType dtype, bool folded) {
  std::int64_t k = state.range(0);
  auto program = at_schedule_level(gemm(k, dtype, folded));
  BareGemm bare(k, dtype, folded);
  std::vector<double> ratios;
  World world({.size = 1});
  const Proved ready = prove(lower(*program));
  world.run([&](Rank& rank) {
    RankArguments arguments(rank, *program);
    Instance instance(rank, ready);
    auto launch = [&] { instance.launch(arguments.args, arguments.extents); };
    launch();
    bare.run();
    for (auto _ : state) {
      bool bare_first = ratios.size() % 2 == 0;  // neither always finds the other's cache
      double before = bare_first ? seconds([&] { bare.run(); }) : 0;
      double launched = seconds(launch);
      double alone = bare_first ? before : seconds([&] { bare.run(); });
      ratios.push_back(launched / alone);
      state.SetIterationTime(launched);
    }
  });
  report_overhead(state, ratios);
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
  auto program = at_schedule_level(p.finish());
  World world({.size = 1});
  const Proved ready = prove(lower(*program));
  world.run([&](Rank& rank) {
    RankArguments arguments(rank, *program);
    Instance instance(rank, ready);
    for (auto _ : state) instance.launch(arguments.args, arguments.extents);
  });
}

BENCHMARK(executor_trivial_launch);

const bool kRegistered = [] {
  auto add = [](const char* name, DType dtype, bool folded) {
    benchmark::RegisterBenchmark(name, executor_gemm, dtype, folded)
        ->Arg(1024)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(100);
  };
  add("executor_gemm/f32_steps", DType::kF32, false);
  add("executor_gemm/bf16_steps", DType::kBF16, false);
  add("executor_gemm/f32_folded", DType::kF32, true);
  add("executor_gemm/bf16_folded", DType::kBF16, true);
  return true;
}();

}  // namespace
}  // namespace stretto
