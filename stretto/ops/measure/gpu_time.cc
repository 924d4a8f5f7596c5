#include "stretto/ops/measure/gpu_time.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

// Timed calls that are enqueued at a time: the driver's queue holds about a thousand entries, and a
// full one would wait for a device that waits for the gate.
constexpr std::size_t kCallsAhead = 128;
// Before each batch, so that the device is busy when the first sample begins.
constexpr int kUntimedRounds = 2;

// Holds a stream back until it is opened, so that what is enqueued meanwhile runs without gaps.
class Gate {
 public:
  Gate(const cuda::Device& device, const cuda::Stream& stream)
      : word_(device, sizeof(std::uint64_t)), stream_(stream) {}
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void close() { stream_.wait_value(word_.address(), ++round_, cuda::WaitUntil::kAtLeast); }
  void open() { *static_cast<volatile std::uint64_t*>(word_.host()) = round_; }

 private:
  cuda::HostMappedMemory word_;
  const cuda::Stream& stream_;
  std::uint64_t round_ = 0;
};

// The contestants as the timing loop sees them: sample i of contestant c.
using Sample = std::function<void(std::size_t contestant, int i)>;

// Runs rounds for `ms` without the gate: kernels are loaded at their first call, which may wait for
// everything that runs.
void warm_up(const cuda::Stream& stream, std::size_t contestants, const Sample& sample, double ms) {
  Clock::time_point begin = Clock::now();
  int round = 0;
  do {
    for (std::size_t c = 0; c < contestants; ++c) sample(c, round);
    if (++round % 8 == 0 || round == 1) stream.synchronize();
  } while (std::chrono::duration<double, std::milli>(Clock::now() - begin).count() < ms);
  stream.synchronize();
}

std::vector<std::vector<double>> take_samples(const cuda::Device& device,
                                              const cuda::Stream& stream, std::size_t contestants,
                                              const Sample& sample, int num_samples) {
  std::vector<std::vector<double>> ms(contestants);
  auto rounds_ahead = static_cast<int>(std::max<std::size_t>(kCallsAhead / contestants, 1));
  std::vector<cuda::Event> events;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(rounds_ahead) * contestants; ++i) {
    events.emplace_back(device, cuda::Event::Timing::kOn);
  }
  Gate gate(device, stream);
  int round = 0;
  for (int done = 0; done < num_samples; done += rounds_ahead) {
    int batch = std::min(rounds_ahead, num_samples - done);
    gate.close();
    for (int i = 0; i < kUntimedRounds; ++i, ++round) {
      for (std::size_t c = 0; c < contestants; ++c) sample(c, round);
    }
    std::size_t next = 0;
    stream.record(events[next++]);
    for (int i = 0; i < batch; ++i, ++round) {
      for (std::size_t c = 0; c < contestants; ++c) {
        sample(c, round);
        stream.record(events[next++]);
      }
    }
    gate.open();
    stream.synchronize();
    for (std::size_t i = 0; i + 1 < next; ++i) {
      ms[i % contestants].push_back(cuda::elapsed_ms(events[i], events[i + 1]));
    }
  }
  return ms;
}

// One call of each between the marks. No gate: a profiler waits for each kernel it looks at.
std::vector<std::vector<double>> profile(const cuda::Device& device, const cuda::Stream& stream,
                                         const std::vector<GpuCall>& contestants) {
  for (const GpuCall& call : contestants) call(0);  // loads its kernels
  stream.synchronize();
  cuda::Event begin(device, cuda::Event::Timing::kOn), end(device, cuda::Event::Timing::kOn);
  std::vector<std::vector<double>> ms;
  cuda::check(cuda::driver().profiler_start(), "cuProfilerStart");
  for (const GpuCall& call : contestants) {
    stream.record(begin);
    call(0);
    stream.record(end);
    stream.synchronize();
    ms.push_back({cuda::elapsed_ms(begin, end)});
  }
  cuda::check(cuda::driver().profiler_stop(), "cuProfilerStop");
  return ms;
}

}  // namespace

int num_buffer_sets(std::size_t bytes_per_set, std::size_t l2_bytes) {
  std::size_t sets = 2 * l2_bytes / std::max<std::size_t>(bytes_per_set, 1) + 1;
  return static_cast<int>(std::clamp<std::size_t>(sets, 3, 255)) | 1;
}

std::vector<std::vector<double>> time_gpu(const cuda::Device& device, const cuda::Stream& stream,
                                          const std::vector<GpuCall>& contestants,
                                          const GpuTimeOptions& options) {
  STRETTO_CHECK(!contestants.empty() && options.num_sets > 0 && options.samples > 0,
                "something to time");
  if (options.profile) return profile(device, stream, contestants);
  std::size_t count = contestants.size();
  if (!options.graph) {
    // Each call takes the next set: none finds what the one before it brought into the cache.
    Sample call = [&](std::size_t c, int i) {
      contestants[c]((i * static_cast<int>(count) + static_cast<int>(c)) % options.num_sets);
    };
    warm_up(stream, count, call, options.warmup_ms);
    return take_samples(device, stream, count, call, options.samples);
  }
  for (const GpuCall& call : contestants) call(0);  // loads its kernels, outside the capture
  stream.synchronize();
  std::vector<cuda::GraphExec> graphs;
  for (const GpuCall& call : contestants) {
    stream.begin_capture();
    for (int set = 0; set < options.num_sets; ++set) call(set);
    graphs.push_back(stream.end_capture());
  }
  Sample replay = [&](std::size_t c, int) { graphs[c].launch(stream); };
  warm_up(stream, count, replay, options.warmup_ms);
  auto ms = take_samples(device, stream, count, replay, options.samples);
  for (std::vector<double>& of_one : ms) {
    for (double& sample : of_one) sample /= options.num_sets;
  }
  return ms;
}

}  // namespace stretto
