#include "stretto/ops/measure/ranks_time.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <span>
#include <stop_token>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

// A stream's queue holds about a thousand entries; a full one would wait for a device that waits
// for the gate. A sample takes two events, a meeting of P entries and the call's own; a graph
// counts with each call in it.
constexpr int kEntriesAhead = 400;
constexpr int kEntriesOfCall = 6;
constexpr int kEntriesOfGraphCall = 12;  // with a copy engine's
constexpr int kRoundsOfWarmUp = 4;       // enqueued before the host waits for them
// A call that takes longer to enqueue waits for a device, which waits for the gate.
constexpr std::chrono::milliseconds kPatience{500};

// Of the processes' values, one by one. In one process its own.
std::vector<double> greatest(const GpuWorld& world, std::vector<double> own) {
  for (const std::vector<std::byte>& other : world.exchange(std::as_bytes(std::span(own)))) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      double value = 0;
      std::memcpy(&value, other.data() + i * sizeof(value), sizeof(value));
      own[i] = std::max(own[i], value);
    }
  }
  return own;
}

double greatest(const GpuWorld& world, double own) {
  return greatest(world, std::vector<double>{own}).front();
}

// Holds all local streams back until it is opened.
class GateOfAll {
 public:
  explicit GateOfAll(const GpuWorld& world)
      : word_(world.device(world.local_ranks().front()), sizeof(std::uint64_t)), world_(world) {}
  ~GateOfAll() { write(round_); }
  GateOfAll(const GateOfAll&) = delete;
  GateOfAll& operator=(const GateOfAll&) = delete;

  void close() {
    ++round_;
    calls_ = 0;
    for (int r : world_.local_ranks()) {
      world_.stream(r).wait_value(word_.address(), round_, cuda::WaitUntil::kAtLeast);
    }
    opener_ = std::jthread([this, round = round_](const std::stop_token& stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any never;
      for (int before = -1; before != calls_;) {
        before = calls_;
        never.wait_for(lock, stop, kPatience, [] { return false; });
        if (stop.stop_requested()) return;
      }
      blocked_at_ = calls_.load();
      write(round);
    });
  }
  // Another call has been enqueued.
  void passed() { ++calls_; }
  // How many calls were enqueued while the gate was closed.
  int open() {
    opener_ = {};  // stops and joins
    int calls = read() == round_ ? blocked_at_.load() : calls_.load();
    write(round_);
    return calls;
  }

 private:
  void write(std::uint64_t value) const {
    *static_cast<volatile std::uint64_t*>(word_.host()) = value;
  }
  std::uint64_t read() const { return *static_cast<volatile std::uint64_t*>(word_.host()); }

  cuda::HostMappedMemory word_;
  const GpuWorld& world_;
  std::uint64_t round_ = 0;
  std::atomic<int> calls_ = 0, blocked_at_ = 0;
  std::jthread opener_;
};

// An event on every local rank.
class RankEvents {
 public:
  explicit RankEvents(const GpuWorld& world) {
    for (int r : world.local_ranks()) {
      events_.emplace_back(world.device(r), cuda::Event::Timing::kOn);
    }
  }
  void record(const GpuWorld& world) const {
    for (int r : world.local_ranks()) world.stream(r).record(events_[world.local_index(r)]);
  }
  double slowest_ms(const RankEvents& since) const {
    double ms = 0;
    for (std::size_t r = 0; r < events_.size(); ++r) {
      ms = std::max(ms, cuda::elapsed_ms(since.events_[r], events_[r]));
    }
    return ms;
  }

 private:
  std::vector<cuda::Event> events_;
};

// Sample i of contestant c.
using Sample = std::function<void(std::size_t contestant, int i)>;

// Without the gate: kernels are loaded at their first call, which may wait for everything that
// runs, so nothing else may run then.
void warm_up(const GpuWorld& world, std::size_t contestants, const Sample& sample, double ms) {
  for (std::size_t c = 0; c < contestants; ++c) {
    sample(c, 0);
    world.synchronize();
  }
  Clock::time_point begin = Clock::now();
  auto spent_ms = [&] {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  for (int round = 1; greatest(world, spent_ms()) < ms;) {
    for (int end = round + kRoundsOfWarmUp; round < end; ++round) {
      for (std::size_t c = 0; c < contestants; ++c) sample(c, round);
    }
    world.synchronize();
  }
}

class Sampler {
 public:
  Sampler(const GpuWorld& world, std::size_t contestants, const Sample& sample, int calls_per_graph)
      : world_(world), contestants_(contestants), sample_(sample), gate_(world) {
    int entries = kEntriesOfCall + world.size() + kEntriesOfGraphCall * calls_per_graph;
    rounds_ahead_ = std::max(kEntriesAhead / entries / static_cast<int>(contestants), 1);
    for (std::size_t i = 0; i < static_cast<std::size_t>(rounds_ahead_) * contestants; ++i) {
      begin_.emplace_back(world);
      end_.emplace_back(world);
    }
  }

  std::vector<std::vector<double>> run(int samples) {
    std::vector<std::vector<double>> ms(contestants_);
    for (int done = 0; done < samples;) {
      int rounds = std::min(rounds_ahead_, samples - done);
      int calls = (untimed_rounds_ + rounds) * static_cast<int>(contestants_);
      if (int fit = batch(rounds); fit < calls) {
        enqueue_fewer(fit);
        continue;
      }
      for (std::size_t i = 0; i < static_cast<std::size_t>(rounds) * contestants_; ++i) {
        ms[i % contestants_].push_back(end_[i].slowest_ms(begin_[i]));
      }
      done += rounds;
    }
    for (std::vector<double>& of_one : ms) of_one = greatest(world_, std::move(of_one));
    return ms;
  }

 private:
  // Returns how many of its calls every process had enqueued before the devices began: all, else
  // its samples are not worth anything.
  int batch(int rounds) {
    gate_.close();
    for (int i = 0; i < untimed_rounds_; ++i, ++round_) {
      for (std::size_t c = 0; c < contestants_; ++c) {
        sample_(c, round_);
        gate_.passed();
      }
    }
    std::size_t next = 0;
    for (int i = 0; i < rounds; ++i, ++round_) {
      for (std::size_t c = 0; c < contestants_; ++c, ++next) {
        world_.meet_on_streams();
        begin_[next].record(world_);
        sample_(c, round_);
        end_[next].record(world_);
        gate_.passed();
      }
    }
    greatest(world_, 0);  // the gates open together
    int calls = gate_.open();
    world_.synchronize();
    return -static_cast<int>(greatest(world_, -calls));
  }

  // After a batch of which a queue held `fit` calls: launches whose copy engines move many pieces
  // take more entries than were reckoned with.
  void enqueue_fewer(int fit) {
    if (rounds_ahead_ == 1 && untimed_rounds_ == 0) {
      throw DeviceError("timing: a stream's queue does not hold a call of each contestant");
    }
    int rounds = fit * 3 / 4 / static_cast<int>(contestants_);
    if (rounds <= untimed_rounds_) untimed_rounds_ = rounds > 1 ? 1 : 0;
    rounds_ahead_ = std::max(rounds - untimed_rounds_, 1);
  }

  const GpuWorld& world_;
  std::size_t contestants_;
  const Sample& sample_;
  GateOfAll gate_;
  int rounds_ahead_ = 1, round_ = 0;
  int untimed_rounds_ = 2;  // of a batch, so that the devices are busy when its first sample begins
  std::vector<RankEvents> begin_, end_;
};

std::vector<std::vector<double>> sample_all(const GpuWorld& world, std::size_t contestants,
                                            const Sample& sample, const RanksTimeOptions& o) {
  warm_up(world, contestants, sample, o.warmup_ms);
  return Sampler(world, contestants, sample, o.calls_per_graph).run(o.samples);
}

// All streams capturing. Destroyed before finish(), it drops what was captured, so that the streams
// can be used again.
class Capture {
 public:
  explicit Capture(const GpuWorld& world) : world_(world) {
    for (int r : world.local_ranks()) world.stream(r).begin_capture();
  }
  ~Capture() {
    for (; next_ < ranks().size(); ++next_) world_.stream(ranks()[next_]).drop_capture();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  std::vector<cuda::GraphExec> finish() {  // [local_ranks()]
    std::vector<cuda::GraphExec> graphs;
    while (next_ < ranks().size()) {
      graphs.push_back(world_.stream(ranks()[next_++]).end_capture());
    }
    return graphs;
  }

 private:
  const std::vector<int>& ranks() const { return world_.local_ranks(); }

  const GpuWorld& world_;
  std::size_t next_ = 0;  // first of ranks() that still captures
};

}  // namespace

std::vector<std::vector<double>> time_ranks(const GpuWorld& world,
                                            const std::vector<RanksCall>& contestants,
                                            const RanksTimeOptions& o) {
  STRETTO_CHECK(!contestants.empty() && o.num_sets > 0 && o.samples > 0, "something to time");
  auto count = static_cast<int>(contestants.size());
  if (o.calls_per_graph == 0) {
    // Calls that follow each other take sets in turn; once round for all, the next one, so that
    // nobody has the same set always.
    int round = std::lcm(count, o.num_sets);
    Sample call = [&, round](std::size_t c, int i) {
      int at = i * count + static_cast<int>(c);
      contestants[c]((at + at / round) % o.num_sets);
    };
    return sample_all(world, contestants.size(), call, o);
  }
  std::vector<std::vector<cuda::GraphExec>> graphs;  // [contestant][local_ranks()]
  for (const RanksCall& call : contestants) {
    call(0);  // loads its kernels, outside the capture
    world.synchronize();
    Capture capture(world);
    for (int i = 0; i < o.calls_per_graph; ++i) call(i % o.num_sets);
    graphs.push_back(capture.finish());
  }
  Sample replay = [&](std::size_t c, int) {
    for (int r : world.local_ranks()) {
      graphs[c][world.local_index(r)].launch(world.stream(r));
    }
  };
  auto ms = sample_all(world, contestants.size(), replay, o);
  for (std::vector<double>& of_one : ms) {
    for (double& sample : of_one) sample /= o.calls_per_graph;
  }
  return ms;
}

std::vector<double> time_in_a_row(const GpuWorld& world, const RanksCall& call,
                                  const RanksTimeOptions& o) {
  constexpr int kFirstCalls = 3, kMostCalls = 5000;
  STRETTO_CHECK(o.num_sets > 0 && o.samples > 0, "something to time");
  int next = 0;
  auto enqueue = [&] { call(next++ % o.num_sets); };
  enqueue();
  world.synchronize();
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < kFirstCalls; ++i) enqueue();
  world.synchronize();
  std::chrono::duration<double, std::milli> spent = Clock::now() - begin;
  double ms = std::max(greatest(world, spent.count()) / kFirstCalls, 1e-3);
  std::vector<RankEvents> marks;
  for (int i = 0; i <= o.samples; ++i) marks.emplace_back(world);
  int ahead = std::clamp(static_cast<int>(o.warmup_ms / ms), kFirstCalls, kMostCalls);
  for (int i = 0; i < ahead; ++i) enqueue();
  marks[0].record(world);
  for (int i = 1; i <= o.samples; ++i) {
    enqueue();
    marks[static_cast<std::size_t>(i)].record(world);
  }
  world.synchronize();
  std::vector<double> samples;
  for (std::size_t i = 1; i < marks.size(); ++i) {
    samples.push_back(marks[i].slowest_ms(marks[i - 1]));
  }
  return greatest(world, std::move(samples));
}

Contest time_against(const GpuWorld& world, const RanksCall& made, const RanksCall& fastest,
                     const RanksTimeOptions& options) {
  std::vector<RanksCall> calls = {made};
  if (fastest) calls.push_back(fastest);
  Contest out;
  // Of some twenty contestants one is faster by the interval of one go by chance.
  for (int i = 0; i < 2 && out.won; ++i) {
    auto ms = time_ranks(world, calls, options);
    if (i == 0) out.ms = median(ms[0]);
    if (!fastest) break;
    out.won = paired_ratio(ms[1], ms[0]).low > 1;
  }
  return out;
}

}  // namespace stretto
