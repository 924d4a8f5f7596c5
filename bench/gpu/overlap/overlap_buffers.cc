#include "bench/gpu/overlap/overlap_buffers.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::bench {
namespace {

// On the device: a matrix may be gigabytes. The first element that differs by more than allowed.
constexpr const char* kFirstDifference = R"(
__device__ float wide(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }
struct Terms {
  const unsigned short* of_rank[8];
  int count;
  float part;
};
extern "C" __global__ void first_difference(
    const unsigned short* got, const unsigned short* want, unsigned long long count,
    float relative, float absolute, Terms terms, unsigned long long* first) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (auto i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count; i += step) {
    float g = wide(got[i]), w = wide(want[i]), added = 0;
    for (int r = 0; r < terms.count; ++r) added += fabsf(wide(terms.of_rank[r][i]));
    if (!(fabsf(g - w) <= relative * fabsf(w) + absolute + terms.part * added)) atomicMin(first, i);
  }
}
)";
struct Terms {  // as in the kernel
  CUdeviceptr of_rank[8] = {};
  int count = 0;
  float part = 0;
};
constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

std::uint64_t first_difference(const GpuWorld& world, const cuda::KernelImage& image, int rank,
                               const cuda::DeviceMemory& got, const cuda::DeviceMemory& want,
                               Tolerance tolerance) {
  const cuda::Device& device = world.device(rank);
  const cuda::Stream& stream = world.stream(rank);
  cuda::Kernel kernel(cuda::Module(device, image.cubin, "compare"), "first_difference");
  cuda::DeviceMemory first(device, sizeof(std::uint64_t));
  stream.fill_bytes(first.address(), 0xff, first.bytes());
  CUdeviceptr a = got.address(), b = want.address(), out = first.address();
  std::uint64_t count = got.bytes() / sizeof(std::uint16_t), found = kNone;
  auto relative = static_cast<float>(tolerance.relative);
  auto absolute = static_cast<float>(tolerance.absolute);
  Terms terms;
  if (tolerance.terms != nullptr) {
    terms.part = static_cast<float>(tolerance.of_terms);
    for (CUdeviceptr of_rank : tolerance.terms->addresses()) {
      terms.of_rank[terms.count++] = of_rank + static_cast<CUdeviceptr>(rank) * got.bytes();
    }
  }
  void* args[] = {&a, &b, &count, &relative, &absolute, &terms, &out};
  kernel.launch(stream, {.grid = {1024}, .block = {256}}, args);
  stream.download(&found, out, sizeof(found));
  stream.synchronize();
  return found;
}

float element(const GpuWorld& world, int rank, const cuda::DeviceMemory& memory, std::uint64_t i) {
  std::uint16_t bits = 0;
  world.stream(rank).download(&bits, memory.address() + 2 * i, sizeof(bits));
  world.stream(rank).synchronize();
  return bf16_to_f32(bits);
}

}  // namespace

std::string compare_bf16(const GpuWorld& world, const SymmetricGpuMemory& got,
                         const SymmetricGpuMemory& want, std::int64_t n, Tolerance tolerance) {
  cuda::KernelImage image = cuda::compile_cuda(kFirstDifference, "compare.cu");
  for (int r = 0; r < world.size(); ++r) {
    const cuda::DeviceMemory& ours = got.on[static_cast<std::size_t>(r)];
    const cuda::DeviceMemory& theirs = want.on[static_cast<std::size_t>(r)];
    std::uint64_t found = first_difference(world, image, r, ours, theirs, tolerance);
    if (found == kNone) continue;
    auto at = static_cast<std::int64_t>(found);
    return fmt::format(
        "rank {}: [{}, {}] is {}, the libraries have {} (allowed {:.3g} + {:.3g} of "
        "it)",
        r, at / n, at % n, element(world, r, ours, found), element(world, r, theirs, found),
        tolerance.absolute, tolerance.relative);
  }
  return "";
}

}  // namespace stretto::bench
