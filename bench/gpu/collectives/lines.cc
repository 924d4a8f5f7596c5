#include "bench/gpu/collectives/lines.h"

#include <fmt/format.h>

#include <vector>

#include "stretto/base/errors.h"
#include "stretto/device/device_sources.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::bench {
namespace {

constexpr unsigned kBlocks = 32, kThreads = 256;  // of those that store, and of those that load
constexpr std::size_t kLineBytes = std::size_t{16} * kBlocks * kThreads;

// Every thread has 16 bytes of a line, and writes the round into both words. Loads go on until the
// last round is there, or too long.
constexpr const char* kKernel = R"(
#include "stretto/device/ptx/memory.h"
extern "C" __global__ void lines(u64* to, const u64* own, u64* counts, u64 rounds) {
  const u32 half = gridDim.x / 2;
  const bool stores = blockIdx.x < half;
  const u64 at = (u64(blockIdx.x % half) * blockDim.x + threadIdx.x) * 2;
  if (stores) {
    for (u64 round = 1; round <= rounds; ++round) {
      const u64 words[2] = {round, round};
      __syncwarp();
      store_line(to + at, words);
    }
    return;
  }
  const u64 begin = global_timer_ns();
  u64 loads = 0, renewed = 0, mixed = 0, stale = 0, before = 0;
  for (bool more = true; more;) {
    u64 words[2];
    __syncwarp();
    load_line(words, own + at);
    const u64 last = __shfl_sync(0xffffffffu, words[1], int(threadIdx.x % 32 | 7));
    const bool differs = words[0] != last || words[1] != last;
    const bool old = words[0] < last || words[1] < last;
    const u32 mine = 0xffu << (threadIdx.x % 32 & 24);
    const bool any_differs = (__ballot_sync(0xffffffffu, differs) & mine) != 0;
    const bool any_old = (__ballot_sync(0xffffffffu, old) & mine) != 0;
    loads += 1;
    renewed += last != before;
    mixed += any_differs;
    stale += any_old;
    before = last;
    const bool waits = last < rounds && global_timer_ns() - begin < 5'000'000'000;
    more = __any_sync(0xffffffffu, waits);
  }
  if (threadIdx.x % 8 != 7) return;
  count_relaxed_gpu(counts, loads);
  count_relaxed_gpu(counts + 1, renewed);
  count_relaxed_gpu(counts + 2, mixed);
  count_relaxed_gpu(counts + 3, stale);
  count_relaxed_gpu(counts + 4, before == rounds);
}
)";

}  // namespace

std::string LinesResult::to_string() const {
  return fmt::format(
      "rank {}: {} loads of lines, {} of another round than before, {} mixed, {} stale", rank,
      loads, renewed, mixed, stale);
}

Json LinesResult::to_json() const {
  Json out = {
      {"rank", rank}, {"loads", loads}, {"renewed", renewed}, {"mixed", mixed}, {"stale", stale}};
  if (!error.empty()) out["error"] = error;
  return out;
}

void measure_lines(GpuWorld& world, const LinesOptions& options,
                   const std::function<void(const LinesResult&)>& done) {
  if (world.size() < 2) throw UserError("lines are stored from one GPU to another");
  constexpr std::size_t kCounts = 5;
  SymmetricGpuMemory memory = world.allocate(kLineBytes), counts = world.allocate(kCounts * 8);
  cuda::KernelImage image = cuda::compile_cuda(expand_includes(kKernel), "lines.cu");
  for (int r = 0; r < world.size(); ++r) {
    world.stream(r).fill_bytes(memory.addresses()[static_cast<std::size_t>(r)], 0, kLineBytes);
    world.stream(r).fill_bytes(counts.addresses()[static_cast<std::size_t>(r)], 0, kCounts * 8);
  }
  std::vector<cuda::Kernel> kernels;  // all loaded before one begins
  for (int r = 0; r < world.size(); ++r) {
    kernels.emplace_back(cuda::Module(world.device(r), image.cubin, "lines"), "lines");
  }
  world.synchronize();
  for (int r = 0; r < world.size(); ++r) {
    auto of = [&](const SymmetricGpuMemory& m, int rank) {
      return m.addresses()[static_cast<std::size_t>(rank)];
    };
    CUdeviceptr to = of(memory, (r + 1) % world.size()), own = of(memory, r), into = of(counts, r);
    auto rounds = static_cast<std::uint64_t>(options.rounds);
    void* args[] = {&to, &own, &into, &rounds};
    kernels[static_cast<std::size_t>(r)].launch(world.stream(r),
                                                {.grid = {2 * kBlocks}, .block = {kThreads}}, args);
  }
  world.synchronize();
  for (int r = 0; r < world.size(); ++r) {
    std::vector<std::int64_t> n(kCounts);
    world.stream(r).download(n.data(), counts.addresses()[static_cast<std::size_t>(r)],
                             kCounts * 8);
    world.stream(r).synchronize();
    LinesResult result{.rank = r, .loads = n[0], .renewed = n[1], .mixed = n[2], .stale = n[3]};
    if (result.mixed > 0) result.error = "lines come in parts";
    if (result.renewed < result.loads / 1000) result.error = "lines were hardly stored meanwhile";
    if (n[4] * 128 != static_cast<std::int64_t>(kLineBytes)) result.error = "lines do not come";
    done(result);
  }
}

}  // namespace stretto::bench
