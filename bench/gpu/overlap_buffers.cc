#include "bench/gpu/overlap_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "stretto/base/dtype.h"

namespace stretto::bench {
namespace {

// The period of the values: a prime, so that no two rows are alike.
constexpr std::size_t kPoolSize = 4000037;
constexpr std::uint8_t kNanByte = 0xff;
constexpr std::size_t kPieces = 8;  // of a rank's matrix, compared at the same time

struct Difference {
  std::size_t at = 0;
  float got = 0, want = 0;
  bool found = false;
};

Difference first_difference(const std::vector<std::uint16_t>& got,
                            const std::vector<std::uint16_t>& want, std::size_t begin,
                            std::size_t end, Tolerance t) {
  for (std::size_t i = begin; i < end; ++i) {
    float g = bf16_to_f32(got[i]), w = bf16_to_f32(want[i]);
    if (std::fabs(g - w) <= t.relative * std::fabs(w) + t.absolute) continue;
    return {.at = i, .got = g, .want = w, .found = true};
  }
  return {};
}

Difference first_difference(const std::vector<std::uint16_t>& got,
                            const std::vector<std::uint16_t>& want, Tolerance t) {
  std::vector<Difference> found(kPieces);
  std::vector<std::jthread> threads;
  for (std::size_t p = 0; p < kPieces; ++p) {
    threads.emplace_back([&, p] {
      std::size_t n = got.size();
      found[p] = first_difference(got, want, n * p / kPieces, n * (p + 1) / kPieces, t);
    });
  }
  threads.clear();  // joins
  auto first = std::find_if(found.begin(), found.end(), [](const auto& d) { return d.found; });
  return first == found.end() ? Difference{} : *first;
}

std::vector<std::uint16_t> download(const GpuWorld& world, const SymmetricGpuMemory& memory,
                                    int rank) {
  const cuda::DeviceMemory& on = memory.on[static_cast<std::size_t>(rank)];
  std::vector<std::uint16_t> host(on.bytes() / sizeof(std::uint16_t));
  world.stream(rank).download(host.data(), on.address(), on.bytes());
  world.stream(rank).synchronize();
  return host;
}

}  // namespace

RandomFill::RandomFill(const GpuWorld& world, std::uint64_t seed)
    : world_(world), pool_(world.allocate(kPoolSize * sizeof(std::uint16_t))) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  std::vector<std::byte> host(kPoolSize * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < kPoolSize; ++i) {
    store_element(DType::kBF16, host.data() + i * sizeof(std::uint16_t), normal(bits));
  }
  for (int r = 0; r < world.size(); ++r) {
    CUdeviceptr to = pool_.on[static_cast<std::size_t>(r)].address();
    world.stream(r).upload(to, host.data(), host.size());
  }
  world.synchronize();
}

SymmetricGpuMemory RandomFill::allocate(std::size_t bytes) {
  SymmetricGpuMemory out = world_.allocate(bytes);
  for (int r = 0; r < world_.size(); ++r) {
    const cuda::DeviceMemory& to = out.on[static_cast<std::size_t>(r)];
    const cuda::DeviceMemory& pool = pool_.on[static_cast<std::size_t>(r)];
    for (std::size_t done = 0; done < bytes;) {
      std::size_t some = std::min(bytes - done, pool.bytes() - from_);
      world_.stream(r).copy(to.address() + done, pool.address() + from_, some);
      done += some;
      from_ = (from_ + some) % pool.bytes();
    }
  }
  return out;
}

SymmetricGpuMemory allocate_poisoned(const GpuWorld& world, std::size_t bytes) {
  SymmetricGpuMemory out = world.allocate(bytes);
  poison(world, out);
  return out;
}

void poison(const GpuWorld& world, const SymmetricGpuMemory& memory) {
  for (int r = 0; r < world.size(); ++r) {
    const cuda::DeviceMemory& on = memory.on[static_cast<std::size_t>(r)];
    world.stream(r).fill_bytes(on.address(), kNanByte, on.bytes());
  }
}

std::string compare_bf16(const GpuWorld& world, const SymmetricGpuMemory& got,
                         const SymmetricGpuMemory& want, std::int64_t n, Tolerance tolerance) {
  for (int r = 0; r < world.size(); ++r) {
    Difference d = first_difference(download(world, got, r), download(world, want, r), tolerance);
    if (!d.found) continue;
    auto at = static_cast<std::int64_t>(d.at);
    return fmt::format(
        "rank {}: [{}, {}] is {}, the libraries have {} (allowed {:.3g} + {:.3g} of "
        "it)",
        r, at / n, at % n, d.got, d.want, tolerance.absolute, tolerance.relative);
  }
  return "";
}

}  // namespace stretto::bench
