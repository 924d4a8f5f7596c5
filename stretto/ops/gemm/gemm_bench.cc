// What the tile program costs on top of its arithmetic: one CPU rank runs the gemm program, the
// kernel that its dots call, and OpenBLAS in f32, in turn, call by call, so that a machine that
// slows down slows all three. `of_kernel` and `of_openblas` are medians of time ratios below 1
// where the program is slower; lo and hi bound their 95 % intervals.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <time.h>

#include <functional>
#include <string>
#include <vector>

#include "stretto/base/statistics.h"
#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/executor/kernels/dot.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/measure/cpu_time.h"
#include "stretto/testing/harness/case_memory.h"

namespace stretto {
namespace {

constexpr std::int64_t kSize = 1024;

// Processor time of the calling thread, on which all three run: other work on the machine would
// otherwise decide the ratios.
double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds(const std::function<void()>& call) {
  double begin = thread_seconds();
  call();
  return thread_seconds() - begin;
}

void report_ratio(benchmark::State& state, const std::string& name, std::vector<double> ratios) {
  MedianInterval ratio = median_interval(std::move(ratios));
  state.counters[name] = ratio.median;
  state.counters[name + "_lo"] = ratio.low;
  state.counters[name + "_hi"] = ratio.high;
}

// One operand or result as the bare calls see it.
struct Matrix {
  std::vector<std::byte> bytes;
  DType dtype;
  Matrix(DType type, std::uint64_t seed) : dtype(type) {
    Values values = random_values(kSize * kSize, type, seed);
    bytes.resize(values.size() * size_bytes(type));
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_element(type, bytes.data() + i * size_bytes(type), values[i]);
    }
  }
  kernels::TileRef tile() { return {dtype, kSize, kSize, bytes.data(), kSize, 1}; }
  float* f32() { return reinterpret_cast<float*>(bytes.data()); }
};

struct BareCalls {
  Matrix a, b, acc{DType::kF32, 2};
  Matrix a_f32{DType::kF32, 0}, b_f32{DType::kF32, 1};
  explicit BareCalls(DType dtype) : a(dtype, 0), b(dtype, 1) {}

  void kernel() {
    kernels::dot({.acc = acc.tile(),
                  .a = a.tile(),
                  .b = kernels::transposed(b.tile()),
                  .accumulate = false});
  }
  void openblas() {
    constexpr int n = static_cast<int>(kSize);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, a_f32.f32(), n, b_f32.f32(), n,
                0, acc.f32(), n);
  }
};

void gemm_program(benchmark::State& state, DType dtype, const GemmTile& tile) {
  openblas_set_num_threads(1);
  GemmDesc desc{
      .m = kSize, .n = kSize, .k = kSize, .a_dtype = dtype, .b_dtype = dtype, .c_dtype = dtype};
  GemmConfig config = default_config(desc);
  if (tile.bm != 0) config.loop.tile = tile;
  OpCase c = random_case(gemm(desc, config), 0);
  Proved compiled = prove(lower(c.program));
  BareCalls bare(dtype);
  std::vector<double> of_kernel, of_openblas;
  World world({.size = 1});
  world.run([&](Rank& rank) {
    CaseMemory memory(rank, c);
    std::unique_ptr<Executable> loaded = load(compiled, rank);
    memory.launch(*loaded);
    for (auto _ : state) {
      double program = seconds([&] { memory.launch(*loaded); });
      of_kernel.push_back(seconds([&] { bare.kernel(); }) / program);
      of_openblas.push_back(seconds([&] { bare.openblas(); }) / program);
      state.SetIterationTime(program);
    }
  });
  report_ratio(state, "of_kernel", of_kernel);
  report_ratio(state, "of_openblas", of_openblas);
  state.counters["GFLOPS"] = benchmark::Counter(2e-9 * kSize * kSize * kSize,
                                                benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(to_string(config));
}

void add(const std::string& name, DType dtype, const GemmTile& tile) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { gemm_program(state, dtype, tile); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(30);
}

const bool kRegistered = [] {
  constexpr GemmTile kDefault{}, kSmall{.bm = 128, .bn = 128, .bk = 64};
  add("gemm/f32", DType::kF32, kDefault);
  add("gemm/bf16", DType::kBF16, kDefault);
  add("gemm/f32/tile_128x128x64", DType::kF32, kSmall);
  add("gemm/bf16/tile_128x128x64", DType::kBF16, kSmall);
  return true;
}();

}  // namespace
}  // namespace stretto
