#include "bench/gpu/products/gemm_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {
namespace {

// Random values repeat with this period: a prime, so that no two rows are alike.
constexpr std::size_t kPoolSize = 4000037;

cuda::DeviceMemory random_pool(const GpuWorld& world, DType dtype, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  std::size_t step = size_bytes(dtype);
  std::vector<std::byte> host(kPoolSize * step);
  for (std::size_t i = 0; i < kPoolSize; ++i) {
    store_element(dtype, host.data() + i * step, normal(bits));
  }
  cuda::DeviceMemory pool(world.device(0), host.size());
  world.stream(0).upload(pool.address(), host.data(), host.size());
  world.stream(0).synchronize();
  return pool;
}

// Copies the pool over and over, starting within it at `from`, which moves on.
void fill(const cuda::Stream& stream, const cuda::DeviceMemory& to, const cuda::DeviceMemory& pool,
          std::size_t& from) {
  for (std::size_t done = 0; done < to.bytes();) {
    std::size_t bytes = std::min(to.bytes() - done, pool.bytes() - from);
    stream.copy(to.address() + done, pool.address() + from, bytes);
    done += bytes;
    from = (from + bytes) % pool.bytes();
  }
}

template <typename Load>
std::string first_difference(std::size_t count, std::int64_t n, std::int64_t k, double relative,
                             const Load& load) {
  // Terms are of magnitude 1, partial sums of sqrt(k); the matrix unit truncates where it adds.
  double absolute = 0x1p-12 * std::sqrt(static_cast<double>(k));
  for (std::size_t i = 0; i < count; ++i) {
    float got = load(0, i), want = load(1, i);
    double allowed = absolute + relative * std::fabs(want);
    if (std::fabs(got - want) <= allowed) continue;
    auto row = static_cast<std::int64_t>(i) / n, col = static_cast<std::int64_t>(i) % n;
    return fmt::format("c[{}, {}] is {}, the library has {} (allowed difference {:.3g})", row, col,
                       got, want, allowed);
  }
  return "";
}

}  // namespace

GemmBuffers::GemmBuffers(const GpuWorld& world, const GemmShape& shape, DType dtype,
                         std::uint64_t seed)
    : world_(world), shape_(shape), dtype_(dtype) {
  auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>(rows * cols) * size_bytes(dtype);
  };
  std::size_t a = bytes(shape.m, shape.k), b = bytes(shape.n, shape.k), c = bytes(shape.m, shape.n);
  const cuda::Device& device = world.device(0);
  const cuda::Stream& stream = world.stream(0);
  cuda::DeviceMemory pool = random_pool(world, dtype, seed);
  std::size_t from = 0;
  int count = num_buffer_sets(a + b + c, static_cast<std::size_t>(device.properties().l2_bytes));
  for (int i = 0; i < count; ++i) {
    Set& set = sets_.emplace_back(Set{{device, a}, {device, b}, {device, c}, {device, c}});
    fill(stream, set.a, pool, from);
    fill(stream, set.b, pool, from);
    stream.fill_bytes(set.ours.address(), 0xff, c);
    stream.fill_bytes(set.theirs.address(), 0xff, c);
    theirs_.push_back({set.a.address(), set.b.address(), set.theirs.address()});
  }
  stream.synchronize();
}

Args GemmBuffers::ours(int set, const Program& program) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  Args args{.tensors = std::vector<TensorArg>(program.tensors.size())};
  auto bind = [&](const char* name, const cuda::DeviceMemory& memory) {
    args.tensors[static_cast<std::size_t>(program.find_tensor(name))].on = {memory.address()};
  };
  bind("a", s.a);
  bind("b", s.b);
  bind("c", s.ours);
  return args;
}

void GemmBuffers::poison_ours(int set) const {
  const cuda::DeviceMemory& c = sets_[static_cast<std::size_t>(set)].ours;
  world_.stream(0).fill_bytes(c.address(), 0xff, c.bytes());
}

std::string GemmBuffers::compare(int set) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  std::vector<std::byte> host[2] = {std::vector<std::byte>(s.ours.bytes()),
                                    std::vector<std::byte>(s.theirs.bytes())};
  world_.stream(0).download(host[0].data(), s.ours.address(), s.ours.bytes());
  world_.stream(0).download(host[1].data(), s.theirs.address(), s.theirs.bytes());
  world_.stream(0).synchronize();
  std::size_t step = size_bytes(dtype_), count = s.ours.bytes() / step;
  if (dtype_ == DType::kBF16) {
    return first_difference(count, shape_.n, shape_.k, 0x1p-7, [&](int which, std::size_t i) {
      std::uint16_t word = 0;
      std::memcpy(&word, host[which].data() + i * sizeof(word), sizeof(word));
      return bf16_to_f32(word);
    });
  }
  double relative = dtype_ == DType::kF16 ? 0x1p-10 : 0;
  return first_difference(count, shape_.n, shape_.k, relative, [&](int which, std::size_t i) {
    return static_cast<float>(load_element(dtype_, host[which].data() + i * step));
  });
}

}  // namespace stretto::bench
