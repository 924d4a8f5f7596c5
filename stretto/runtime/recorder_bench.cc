// What recording costs a rank per event, and how fast a trace is written.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

void record_span(benchmark::State& state) {
  Recorder recorder(1, std::size_t{1} << 16);
  const char* role = recorder.intern("gemm");
  std::int64_t tile = 0;
  for (auto _ : state) {
    if (tile % (1 << 16) == 0) {
      state.PauseTiming();
      recorder.clear();
      state.ResumeTiming();
    }
    std::int64_t begin = Recorder::now_ns();
    recorder.add(
        Span{.role = role, .tile = tile++, .begin_ns = begin, .end_ns = Recorder::now_ns()});
  }
}
BENCHMARK(record_span);

void write_trace(benchmark::State& state) {
  constexpr int kEvents = 100'000;  // per rank, a third of them notifies and a third waits
  Recorder recorder(4);
  for (int i = 0; i < 4 * kEvents; ++i) {
    int rank = i % 4, kind = i / 4 % 3;
    std::int64_t begin = 100 * i;
    if (kind == 0) {
      recorder.add(NotifyMark{.from_rank = rank,
                              .to_rank = (rank + 1) % 4,
                              .program = "p",
                              .role = "gather",
                              .signal = "here",
                              .channel = i % 16,
                              .time_ns = begin});
      continue;
    }
    recorder.add(Span{.kind = kind == 1 ? SpanKind::kTile : SpanKind::kWait,
                      .rank = rank,
                      .worker = i % 8,
                      .program = "p",
                      .role = "gemm",
                      .detail = "here",
                      .tile = i,
                      .channel = i % 16,
                      .begin_ns = begin,
                      .end_ns = begin + 90});
  }
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("stretto-bench-" + std::to_string(getpid()));
  for (auto _ : state) recorder.write_trace(path);
  state.counters["MB"] = 1e-6 * static_cast<double>(std::filesystem::file_size(path));
  state.SetItemsProcessed(state.iterations() * 4 * kEvents);
  std::filesystem::remove(path);
}
BENCHMARK(write_trace)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stretto
