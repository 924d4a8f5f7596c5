#include "bench/gpu/collectives/graph_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/runtime/cuda/module.h"

namespace stretto::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2, kChunks = 8;
constexpr std::size_t kChunkBytes = 1 << 20;
constexpr std::uint64_t kTimeoutNs = 300'000'000;
// Words of a rank: its epoch, what the peer announced, what the peer has read, and a counter per
// chunk.
constexpr std::size_t kReady = 1, kDone = 2, kArrived = 8, kNumWords = kArrived + kChunks;

// A gate that meets the peer and writes the words that queues copy into counters, and a kernel that
// waits for the counters.
constexpr const char* kKernels = R"(
using u64 = unsigned long long;
struct Params {
  u64 *mine, *peer, *host_words, *own_words, *peer_words, *stop;
  u64 timeout_ns, rank, fetches;
};
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__device__ u64 load(const u64* p) {
  u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v;
}
__device__ void await(const Params& p, const u64* word, u64 value, u64 what) {
  u64 begin = now();
  while (load(word) < value) {
    if (load(p.stop) != 0) return;
    if (now() - begin < p.timeout_ns) continue;
    if (atomicCAS_system(p.stop, 0ull, 1ull) != 0) return;
    p.stop[1] = p.rank; p.stop[2] = what; p.stop[3] = value; p.stop[4] = load(word);
    __threadfence_system();
  }
}
extern "C" __global__ void gate(Params p) {
  u64 epoch = p.mine[0] + 1;
  p.mine[0] = epoch;
  asm volatile("red.release.sys.global.add.u64 [%0], 1;" :: "l"(p.peer + 1) : "memory");
  await(p, p.mine + 1, epoch, 0);
  for (int i = 0; i < 16; ++i) p.host_words[i] = p.own_words[i] = p.peer_words[i] = epoch;
  __threadfence_system();
}
extern "C" __global__ void consume(Params p, int chunks) {
  if (threadIdx.x != 0) return;
  u64 epoch = p.mine[0];
  for (int i = 0; i < chunks; ++i) await(p, p.mine + 8 + i, epoch, 8 + i);
  if (blockIdx.x == 0 && p.fetches != 0) await(p, p.mine + 2, epoch, 2);
}
)";

struct Params {
  CUdeviceptr mine, peer, host_words, own_words, peer_words, stop;
  std::uint64_t timeout_ns, rank, fetches;
};

// How a queue signals its own rank.
enum class OwnSignal : std::uint8_t { kFromHost, kFromPeer, kFromOwn };

struct Way {
  const char* text;
  bool fetches = true;
  OwnSignal own = OwnSignal::kFromHost;
  bool write_first = false;   // a queue begins with a write of a word nobody reads
  bool joins_each = true;     // the next launch comes after this one's queue
  bool kernel_first = false;  // captured before the queue's copies
  bool thread_per_rank = false;
  bool graph_per_launch = false;
  bool cooperative = true;
  bool fills_gpu = true;  // the kernel leaves no SM to others
  bool captured = true;
};

constexpr Way kWays[] = {
    {.text = "as it was"},
    {.text = "without graphs", .captured = false},
    {.text = "a graph per launch", .graph_per_launch = true},
    {.text = "own signals from the peer's memory", .own = OwnSignal::kFromPeer},
    {.text = "own signals from own memory", .own = OwnSignal::kFromOwn},
    {.text = "queue begins with a write", .write_first = true},
    {.text = "queue begins with a write, own signals from the peer's memory",
     .own = OwnSignal::kFromPeer,
     .write_first = true},
    {.text = "queues joined at the end only", .joins_each = false},
    {.text = "kernel captured before the copies", .kernel_first = true},
    {.text = "a host thread per rank", .thread_per_rank = true},
    {.text = "kernel not cooperative", .cooperative = false},
    {.text = "kernel leaves SMs free", .fills_gpu = false},
    {.text = "sends instead", .fetches = false},
};

class Trial {
 public:
  Trial(GpuWorld& world, const cuda::KernelImage& image)
      : world_(world), stop_(world.device(0), 64) {
    for (int r = 0; r < kRanks; ++r) {
      const cuda::Device& device = world.device(r);
      cuda::Module module(device, image.cubin, "graph_fetch");
      ranks_.push_back({.gate = cuda::Kernel(module, "gate"),
                        .consume = cuda::Kernel(module, "consume"),
                        .queue = cuda::Stream(device),
                        .start = cuda::Event(device),
                        .done = cuda::Event(device),
                        .words = {device, kNumWords * 8},
                        .own_words = {device, 128},
                        .words_of_peer = {device, 128},
                        .scratch = {device, 8},
                        .from = {device, kChunks * kChunkBytes},
                        .to = {device, kChunks * kChunkBytes},
                        .host_words = {device, 128}});
      ranks_.back().consume.set_max_dynamic_shared(shared(device));
    }
  }

  GraphFetchResult run(const Way& way, int launches, int replays) {
    GraphFetchResult result{.way = way.text, .launches = launches};
    std::memset(stop_.host(), 0, stop_.bytes());
    for (int r = 0; r < kRanks; ++r) {
      world_.stream(r).fill_bytes(at(r).words.address(), 0, at(r).words.bytes());
    }
    world_.synchronize();
    std::vector<std::vector<cuda::GraphExec>> graphs(kRanks);
    int graphs_of_replay = way.graph_per_launch ? launches : 1;
    for (int r = 0; way.captured && r < kRanks; ++r) {
      for (int g = 0; g < graphs_of_replay; ++g) {
        world_.stream(r).begin_capture();
        enqueue(way, r, launches / graphs_of_replay);
        graphs[static_cast<std::size_t>(r)].push_back(world_.stream(r).end_capture());
      }
    }
    auto replay = [&](int r) {
      if (!way.captured) return enqueue(way, r, launches);
      for (const cuda::GraphExec& g : graphs[static_cast<std::size_t>(r)]) {
        g.launch(world_.stream(r));
      }
    };
    Clock::time_point begin = Clock::now();
    for (int i = 0; i < replays; ++i) {
      if (way.thread_per_rank) {
        std::vector<std::jthread> threads;
        for (int r = 0; r < kRanks; ++r) threads.emplace_back([&, r] { replay(r); });
        continue;
      }
      for (int r = 0; r < kRanks; ++r) {
        replay(r);
        if (i == 0 && r == 0) result.launch_ms = ms_since(begin);
      }
    }
    world_.synchronize();
    result.replay_us = ms_since(begin) * 1e3 / (replays * launches);
    const auto* stop = static_cast<const volatile std::uint64_t*>(stop_.host());
    if (stop[0] != 0) {
      std::string what = stop[2] == 0       ? "the peer's gate"
                         : stop[2] == kDone ? "the peer's reads"
                                            : fmt::format("chunk {}", stop[2] - kArrived);
      result.error = fmt::format("rank {} waits for {} of launch {}, seen {}", stop[1], what,
                                 stop[3], stop[4]);
    }
    return result;
  }

 private:
  struct Rank {
    cuda::Kernel gate, consume;
    cuda::Stream queue;
    cuda::Event start, done;
    cuda::DeviceMemory words, own_words, words_of_peer, scratch, from, to;
    cuda::HostMappedMemory host_words;
  };

  static std::size_t shared(const cuda::Device& device) {
    return static_cast<std::size_t>(device.properties().shared_per_block_bytes);
  }
  static double ms_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  void enqueue(const Way& way, int r, int launches) const {
    for (int i = 0; i < launches; ++i) enqueue_launch(way, r);
    if (!way.joins_each) world_.stream(r).wait(at(r).done);
  }

  void enqueue_launch(const Way& way, int r) const {
    const Rank &own = at(r), &peer = at(1 - r);
    const cuda::Stream& main = world_.stream(r);
    Params params{.mine = own.words.address(),
                  .peer = peer.words.address(),
                  .host_words = own.host_words.address(),
                  .own_words = own.own_words.address(),
                  .peer_words = peer.words_of_peer.address(),
                  .stop = stop_.address(),
                  .timeout_ns = kTimeoutNs,
                  .rank = static_cast<std::uint64_t>(r),
                  .fetches = way.fetches ? 1u : 0u};
    int chunks = kChunks;
    void* args[] = {&params, &chunks};
    own.gate.launch(main, {.block = {1}}, args);
    main.record(own.start);
    auto kernel = [&] {
      int sms = world_.device(r).properties().num_sms;
      own.consume.launch(main,
                         {.grid = {static_cast<unsigned>(way.fills_gpu ? sms : 8)},
                          .block = {way.fills_gpu ? 1024u : 32u},
                          .dynamic_shared_bytes = way.fills_gpu ? shared(world_.device(r)) : 0,
                          .cooperative = way.cooperative},
                         args);
    };
    if (way.kernel_first) kernel();
    own.queue.wait(own.start);
    copies(way, own, peer);
    own.queue.record(own.done);
    if (!way.kernel_first) kernel();
    if (way.joins_each) main.wait(own.done);
  }

  static void copies(const Way& way, const Rank& own, const Rank& peer) {
    const cuda::Stream& queue = own.queue;
    if (way.write_first) queue.write_value(own.scratch.address(), 1);
    for (std::size_t i = 0; i < kChunks; ++i) {
      const Rank &from = way.fetches ? peer : own, &to = way.fetches ? own : peer;
      queue.copy(to.to.address() + i * kChunkBytes, from.from.address() + i * kChunkBytes,
                 kChunkBytes);
      CUdeviceptr counter = to.words.address() + 8 * (kArrived + i);
      if (!way.fetches) {
        queue.copy(counter, own.own_words.address() + 8 * i, 8);
      } else if (way.own == OwnSignal::kFromHost) {
        queue.upload(counter, static_cast<const std::uint64_t*>(own.host_words.host()) + i, 8);
      } else if (way.own == OwnSignal::kFromPeer) {
        // The own gate wrote there.
        queue.copy(counter, peer.words_of_peer.address() + 8 * i, 8);
      } else {
        queue.copy(counter, own.own_words.address() + 8 * i, 8);
      }
    }
    if (way.fetches) queue.copy(peer.words.address() + 8 * kDone, own.own_words.address(), 8);
  }

  GpuWorld& world_;
  cuda::HostMappedMemory stop_;
  std::vector<Rank> ranks_;
};

struct Operator {
  std::string text;
  Program program;
};

std::vector<Operator> operators() {
  CollectiveDesc gather{.dtype = DType::kBF16, .m = 2048, .n = 2048, .world_size = kRanks};
  CollectiveConfig by_engine = default_config(gather, Target::kCuda);
  by_engine.num_copy_sms = 0;
  by_engine.tile_rows = 256;
  AgGemmDesc product{.world_size = kRanks,
                     .m = 2048,
                     .n = 2048,
                     .k = 2048,
                     .a_dtype = DType::kBF16,
                     .b_dtype = DType::kBF16,
                     .c_dtype = DType::kBF16};
  return {
      {"all_gather by engines", all_gather(gather, by_engine)},
      {"ag_gemm pull", ag_gemm(product, default_config(product, Target::kCuda, Gather::kPull))},
      {"ag_gemm send", ag_gemm(product, default_config(product, Target::kCuda, Gather::kSend))}};
}

GraphFetchResult run_operator(GpuWorld& world, GpuProgram& program, const std::string& text,
                              int launches, int replays) {
  GraphFetchResult result{.way = text, .launches = launches};
  RanksCall call = program.call();
  try {
    call(0);
    program.executable().wait();
    for (int r = 0; r < kRanks; ++r) world.stream(r).begin_capture();
    for (int i = 0; i < launches; ++i) call(0);
    std::vector<cuda::GraphExec> graphs;
    for (int r = 0; r < kRanks; ++r) graphs.push_back(world.stream(r).end_capture());
    Clock::time_point begin = Clock::now();
    for (int i = 0; i < replays; ++i) {
      for (int r = 0; r < kRanks; ++r) graphs[static_cast<std::size_t>(r)].launch(world.stream(r));
    }
    program.executable().wait();
    result.replay_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                       (replays * launches);
  } catch (const Fault& e) {
    result.error = e.what();
    world.synchronize();
    world.clear_fault();
    program.executable().recover();
  } catch (const Error& e) {
    result.error = e.what();
    for (int r = 0; r < kRanks; ++r) {
      if (world.stream(r).capture_id() != 0) world.stream(r).end_capture();
    }
  }
  return result;
}

}  // namespace

std::string GraphFetchResult::to_string() const {
  std::string out = fmt::format("{:66} {} in a graph: ", way, launches);
  if (!error.empty()) return out + "HANGS: " + error;
  return out + fmt::format("{:.1f} us a launch, {:.2f} ms to enqueue", replay_us, launch_ms);
}

Json GraphFetchResult::to_json() const {
  Json out = {
      {"way", way}, {"launches", launches}, {"launch_ms", launch_ms}, {"replay_us", replay_us}};
  if (!error.empty()) out["error"] = error;
  return out;
}

void try_graph_fetch(GpuWorld& world, const GraphFetchOptions& options,
                     const std::function<void(const GraphFetchResult&)>& done) {
  if (world.size() != kRanks) throw UserError("graph-fetch is for two ranks");
  constexpr int kLaunches[] = {1, 2, 4};
  Trial trial(world, cuda::compile_cuda(kKernels, "graph_fetch.cu"));
  for (const Way& way : kWays) {
    if (std::string(way.text).find(options.only) == std::string::npos) continue;
    for (int launches : kLaunches) done(trial.run(way, launches, options.replays));
  }
  RandomFill random(world, 1);
  for (const Operator& op : operators()) {
    if (op.text.find(options.only) == std::string::npos) continue;
    GpuProgram program(world, op.program, 1, random);
    for (int launches : kLaunches) {
      done(run_operator(world, program, op.text, launches, options.replays));
    }
  }
}

}  // namespace stretto::bench
