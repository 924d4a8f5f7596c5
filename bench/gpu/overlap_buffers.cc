#include "bench/gpu/overlap_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "stretto/base/dtype.h"

namespace stretto::bench {
namespace {

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
