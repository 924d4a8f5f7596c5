// What waiting costs: a round trip between two ranks, a token round a ring of ranks (with the wake
// hint and without), a host barrier, and starting a run. Ranks may exceed cores.
#include <benchmark/benchmark.h>

#include <ctime>
#include <vector>

#include "stretto/base/statistics.h"
#include "stretto/runtime/world.h"

namespace stretto {
namespace {

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void wait_for(const Rank& rank, const SignalCounter& counter, std::uint64_t at_least) {
  for (int polls = 0; counter.value.load(std::memory_order_acquire) < at_least; ++polls) {
    if (rank.aborted()) rank.throw_fault();
    rank.pause(polls);
  }
}

// One token goes round: every rank but one waits at any time. The 10th percentile over laps is what
// a lap costs while nothing else runs on the machine.
void ring(benchmark::State& state) {
  auto size = static_cast<int>(state.range(0));
  bool hint = state.range(1) != 0;
  constexpr std::uint64_t kLaps = 100;
  World world({.size = size});
  std::vector<double> laps;
  for (auto _ : state) {
    double run_seconds = 0;
    world.run([&](Rank& rank) {
      SignalBlock token = rank.allocate_signals("token", 1);
      rank.barrier();
      int next = (rank.index() + 1) % size;
      double run_begin = seconds(CLOCK_MONOTONIC);
      for (std::uint64_t lap = 1; lap <= kLaps; ++lap) {
        double begin = seconds(CLOCK_MONOTONIC);
        if (rank.index() != 0) wait_for(rank, token.at[rank.index()][0], lap);
        token.at[next][0].value.fetch_add(1, std::memory_order_release);
        if (hint) rank.notify_changed(next);
        if (rank.index() != 0) continue;
        wait_for(rank, token.at[0][0], lap);
        laps.push_back(seconds(CLOCK_MONOTONIC) - begin);
      }
      if (rank.index() == 0) run_seconds = seconds(CLOCK_MONOTONIC) - run_begin;
      rank.release(token);
    });
    state.SetIterationTime(run_seconds / kLaps);
  }
  state.counters["p10_us"] = 1e6 * quantile(laps, 0.1);
  state.counters["p50_us"] = 1e6 * median(laps);
}
BENCHMARK(ring)->ArgNames({"ranks", "hint"})->ArgsProduct({{2, 4, 8}, {0, 1}})->UseManualTime();

// What 7 ranks cost that wait for 200 ms for an eighth, which sleeps.
void idle_ranks(benchmark::State& state) {
  World world({.size = 8});
  double cores = 0;
  for (auto _ : state) {
    double begin = seconds(CLOCK_MONOTONIC), cpu_begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
    world.run([&](Rank& rank) {
      SignalBlock go = rank.allocate_signals("go", 1);
      if (rank.index() == 0) {
        timespec pause{.tv_sec = 0, .tv_nsec = 200'000'000};
        nanosleep(&pause, nullptr);
        for (SignalCounter* counter : go.at) counter->value.fetch_add(1, std::memory_order_release);
      } else {
        wait_for(rank, go.at[rank.index()][0], 1);
      }
      rank.release(go);
    });
    cores = (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin) / (seconds(CLOCK_MONOTONIC) - begin);
  }
  state.counters["cores_used"] = cores;
}
BENCHMARK(idle_ranks)->Unit(benchmark::kMillisecond)->Iterations(5)->UseRealTime();

void barrier(benchmark::State& state) {
  constexpr int kBarriers = 100;
  World world({.size = static_cast<int>(state.range(0))});
  for (auto _ : state) {
    double each = 0;
    world.run([&](Rank& rank) {
      rank.barrier();
      double begin = seconds(CLOCK_MONOTONIC);
      for (int i = 0; i < kBarriers; ++i) rank.barrier();
      if (rank.index() == 0) each = (seconds(CLOCK_MONOTONIC) - begin) / kBarriers;
    });
    state.SetIterationTime(each);
  }
}
BENCHMARK(barrier)->ArgName("ranks")->Arg(2)->Arg(8)->UseManualTime();

void start_and_join(benchmark::State& state) {
  World world({.size = static_cast<int>(state.range(0))});
  for (auto _ : state) world.run([](Rank&) {});
}
BENCHMARK(start_and_join)->ArgName("ranks")->Arg(1)->Arg(4)->Arg(8)->UseRealTime();

}  // namespace
}  // namespace stretto
