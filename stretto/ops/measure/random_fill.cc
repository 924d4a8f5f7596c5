#include "stretto/ops/measure/random_fill.h"

#include <algorithm>
#include <random>
#include <vector>

namespace stretto {
namespace {

// The period of the values: a prime, so that no two rows are alike.
constexpr std::size_t kPoolSize = 4000037;
constexpr std::uint8_t kNanByte = 0xff;

}  // namespace

RandomFill::RandomFill(const GpuWorld& world, std::uint64_t seed, DType dtype)
    : world_(world), pool_(world.allocate(kPoolSize * size_bytes(dtype))) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  std::vector<std::byte> host(kPoolSize * size_bytes(dtype));
  for (std::size_t i = 0; i < kPoolSize; ++i) {
    store_element(dtype, host.data() + i * size_bytes(dtype), normal(bits));
  }
  for (int r : world.local_ranks()) {
    CUdeviceptr to = pool_.on[static_cast<std::size_t>(r)].address();
    world.stream(r).upload(to, host.data(), host.size());
  }
  world.synchronize();
}

SymmetricGpuMemory RandomFill::allocate(std::size_t bytes) {
  SymmetricGpuMemory out = world_.allocate(bytes);
  for (int r = 0; r < world_.size(); ++r) {
    bool is_local = std::ranges::binary_search(world_.local_ranks(), r);
    const cuda::DeviceMemory& to = out.on[static_cast<std::size_t>(r)];
    const cuda::DeviceMemory& pool = pool_.on[static_cast<std::size_t>(r)];
    for (std::size_t done = 0; done < bytes;) {
      std::size_t some = std::min(bytes - done, pool.bytes() - from_);
      if (is_local) world_.stream(r).copy(to.address() + done, pool.address() + from_, some);
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
  for (int r : world.local_ranks()) {
    const cuda::DeviceMemory& on = memory.on[static_cast<std::size_t>(r)];
    world.stream(r).fill_bytes(on.address(), kNanByte, on.bytes());
  }
}

}  // namespace stretto
