#include "bench/gpu/collectives/copies.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMega = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kPatience{200};  // with a copy that may wait for an SM

// `host`: released, and how many blocks are there; `here`: released, in the device's memory. One
// thread looks at the host's now and then: blocks that read it often keep copy engines from getting
// on (docs/decisions/0009-waits-leave-host-memory-alone.md). Ends by itself, should nobody release
// it.
constexpr const char* kHold = R"(
using u64 = unsigned long long;
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
extern "C" __global__ void hold(volatile u64* host, volatile u64* here) {
  u64 begin = now();
  if (threadIdx.x == 0) atomicAdd_system((u64*)host + 1, 1ull);
  bool looks = blockIdx.x == 0 && threadIdx.x == 0;
  while (*here == 0 && now() - begin < 2000000000ull) {
    __nanosleep(looks ? 20000 : 500);
    if (looks && host[0] != 0) *here = 1;
  }
}
)";

struct Kind {
  const char* text;
  bool needed;
  std::function<void(const cuda::Stream&)> copy;
};

// A kernel of a block on every SM, which takes all of its shared memory and threads.
class Holder {
 public:
  explicit Holder(GpuWorld& world)
      : world_(world),
        kernel_(cuda::Module(world.device(0), cuda::compile_cuda(kHold, "hold.cu").cubin, "hold"),
                "hold"),
        words_(world.device(0), 64),
        here_(world.device(0), 8) {
    kernel_.set_max_dynamic_shared(shared());
  }

  // Returns when every block is there.
  void hold() {
    word(0) = 0;
    word(1) = 0;
    world_.stream(0).fill_bytes(here_.address(), 0, 8);
    CUdeviceptr host = words_.address(), here = here_.address();
    void* args[] = {&host, &here};
    const auto blocks = static_cast<unsigned>(world_.device(0).properties().num_sms);
    kernel_.launch(world_.stream(0),
                   {.grid = {blocks}, .block = {1024}, .dynamic_shared_bytes = shared()}, args);
    auto end = Clock::now() + std::chrono::seconds(1);
    while (word(1) < blocks) {
      if (Clock::now() > end) throw DeviceError("a kernel that holds every SM does not start");
    }
  }
  void release() {
    word(0) = 1;
    world_.synchronize();
  }

 private:
  std::size_t shared() const {
    return static_cast<std::size_t>(world_.device(0).properties().shared_per_block_bytes);
  }
  volatile std::uint64_t& word(int i) {
    return static_cast<volatile std::uint64_t*>(words_.host())[i];
  }

  GpuWorld& world_;
  cuda::Kernel kernel_;
  cuda::HostMappedMemory words_;
  cuda::DeviceMemory here_;
};

// Streams of the other GPU that wait, more than it has hardware queues by default.
class Waiters {
 public:
  explicit Waiters(const GpuWorld& world) : word_(world.device(1), 64) {
    for (int i = 0; i < kStreams; ++i) streams_.emplace_back(world.device(1));
  }

  void wait() {
    word() = 0;
    for (const cuda::Stream& s : streams_) {
      s.wait_value(word_.address(), 1, cuda::WaitUntil::kEqual);
    }
  }
  void release() {
    word() = 1;
    for (const cuda::Stream& s : streams_) s.synchronize();
  }

 private:
  static constexpr int kStreams = 16;
  volatile std::uint64_t& word() { return *static_cast<volatile std::uint64_t*>(word_.host()); }

  cuda::HostMappedMemory word_;
  std::vector<cuda::Stream> streams_;
};

// One copy's time, negative where it had not ended after kPatience.
double timed(const GpuWorld& world, const cuda::Stream& queue, const Kind& kind) {
  cuda::Event start(world.device(0), cuda::Event::Timing::kOn);
  cuda::Event end(world.device(0), cuda::Event::Timing::kOn);
  queue.record(start);
  kind.copy(queue);
  queue.record(end);
  auto patience = Clock::now() + kPatience;
  while (!end.ready()) {
    if (Clock::now() > patience) return -1;
  }
  return 1e3 * elapsed_ms(start, end);
}

// Of `samples` copies; none where one of them had not ended after kPatience.
std::vector<double> all_timed(const GpuWorld& world, const cuda::Stream& queue, const Kind& kind,
                              int samples) {
  std::vector<double> out;
  for (int i = 0; i < samples; ++i) {
    double us = timed(world, queue, kind);
    if (us < 0) return {};
    out.push_back(us);
  }
  return out;
}

CopiesResult measure(const GpuWorld& world, Holder& holder, Waiters& waiters, const Kind& kind,
                     int samples) {
  CopiesResult result{.copy = kind.text, .needed = kind.needed};
  cuda::Stream queue(world.device(0));
  timed(world, queue, kind);  // the driver's first call of a kind may allocate
  result.idle_us = all_timed(world, queue, kind, samples);
  holder.hold();
  result.held_us = all_timed(world, queue, kind, samples);
  holder.release();
  queue.synchronize();
  waiters.wait();
  result.beside_waits_us = all_timed(world, queue, kind, samples);
  waiters.release();
  queue.synchronize();
  if (kind.needed && result.held_us.empty()) result.error = "waits for an SM";
  return result;
}

}  // namespace

std::string CopiesResult::to_string() const {
  auto time = [](const std::vector<double>& us) {
    return us.empty() ? "waits" : fmt::format("{:.1f} us", median(us));
  };
  return fmt::format("{:28} {}, every SM held: {}{}, streams of the peer waiting: {}", copy,
                     time(idle_us), time(held_us), needed ? "" : " (not relied upon)",
                     time(beside_waits_us));
}

Json CopiesResult::to_json() const {
  Json out = {{"copy", copy},
              {"needed", needed},
              {"idle_us", idle_us},
              {"held_us", held_us},
              {"beside_waits_us", beside_waits_us}};
  if (!error.empty()) out["error"] = error;
  return out;
}

void measure_copies(GpuWorld& world, const CopiesOptions& options,
                    const std::function<void(const CopiesResult&)>& done) {
  if (world.size() < 2) throw UserError("copies are measured between two GPUs");
  SymmetricGpuMemory a = world.allocate(kMega), b = world.allocate(kMega);
  cuda::HostMappedMemory host(world.device(0), 64);
  CUdeviceptr here = a.addresses()[0], beside = b.addresses()[0], far = a.addresses()[1];
  const cuda::RowsCopy rows{.to = here,
                            .from = far,
                            .to_pitch = 4096,
                            .from_pitch = 4096,
                            .row_bytes = 1024,
                            .rows = 256};
  const Kind kinds[] = {
      {"8 bytes from the host", true, [&](const auto& q) { q.upload(here, host.host(), 8); }},
      {"8 bytes to a peer", true, [&](const auto& q) { q.copy(far, here, 8); }},
      {"8 bytes from a peer", true, [&](const auto& q) { q.copy(here, far, 8); }},
      {"1 MiB to a peer", true, [&](const auto& q) { q.copy(far, here, kMega); }},
      {"1 MiB from a peer", true, [&](const auto& q) { q.copy(here, far, kMega); }},
      {"256 rows from a peer", true, [&](const auto& q) { q.copy_rows(rows); }},
      {"8 bytes within the device", false, [&](const auto& q) { q.copy(beside, here, 8); }},
      {"1 MiB within the device", false, [&](const auto& q) { q.copy(beside, here, kMega); }}};
  Holder holder(world);
  Waiters waiters(world);
  for (const Kind& kind : kinds) {
    if (std::string(kind.text).find(options.only) == std::string::npos) continue;
    done(measure(world, holder, waiters, kind, options.samples));
  }
}

}  // namespace stretto::bench
