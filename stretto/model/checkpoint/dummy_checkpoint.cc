#include "stretto/model/checkpoint/dummy_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <random>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr double kDeviation = 0.02;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSlack = std::size_t{1} << 20;  // so that the largest tensors differ, too

bool is_norm(const std::string& name) { return name.ends_with("norm.weight"); }

// Draws out of a table, five at a time.
template <typename Word>
void fill_random(std::byte* to, std::size_t count, DType dtype, std::uint64_t seed) {
  constexpr int kBits = 12, kDraws = 5;
  std::array<Word, std::size_t{1} << kBits> table;
  double width = kDeviation * std::sqrt(12.0);
  for (std::size_t i = 0; i < table.size(); ++i) {
    double at = (static_cast<double>(i) + 0.5) / static_cast<double>(table.size()) - 0.5;
    store_element(dtype, reinterpret_cast<std::byte*>(&table[i]), static_cast<float>(at * width));
  }
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count;) {
    std::uint64_t bits = random();
    for (int draw = 0; draw < kDraws && i < count; ++draw, ++i, bits >>= kBits) {
      std::memcpy(to + i * sizeof(Word), &table[bits % table.size()], sizeof(Word));
    }
  }
}

struct Sizes {
  std::size_t largest = 0, largest_norm = 0;  // elements
};

Sizes sizes_of(const ModelConfig& config) {
  constexpr std::size_t kMost = std::size_t{1} << 40;
  Sizes sizes;
  config.for_each_weight([&](const std::string& name, const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    for (std::int64_t extent : shape) {
      auto factor = static_cast<std::size_t>(extent);
      if (factor != 0 && count > kMost / factor) {
        throw UserError(fmt::format("{}: tensor '{}' of shape {} is too large", config.where, name,
                                    to_string(shape)));
      }
      count *= factor;
    }
    std::size_t& most = is_norm(name) ? sizes.largest_norm : sizes.largest;
    most = std::max(most, count);
  });
  return sizes;
}

}  // namespace

Checkpoint dummy_checkpoint(const ModelConfig& config, std::uint64_t seed) {
  DType dtype = config.dtype.value_or(DType::kF32);
  std::size_t size = size_bytes(dtype);
  Sizes sizes = sizes_of(config);
  std::size_t pool_bytes = (sizes.largest * size + kSlack) / kAlignment * kAlignment;
  std::size_t bytes = pool_bytes + sizes.largest_norm * size;
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
  if (!memory) {
    throw UserError(
        fmt::format("{}: no memory for random weights of {} bytes", config.where, bytes));
  }
  size == 2 ? fill_random<std::uint16_t>(memory.get(), pool_bytes / 2, dtype, seed)
            : fill_random<std::uint32_t>(memory.get(), pool_bytes / 4, dtype, seed);
  std::byte* ones = memory.get() + pool_bytes;
  for (std::size_t i = 0; i < sizes.largest_norm; ++i) store_element(dtype, ones + i * size, 1.0f);

  TensorMap views;
  std::mt19937_64 random(seed + 1);
  config.for_each_weight([&](const std::string& name, const std::vector<std::int64_t>& shape) {
    TensorView view{.dtype = dtype, .shape = shape, .data = ones, .size_bytes = size};
    for (std::int64_t extent : shape) view.size_bytes *= static_cast<std::size_t>(extent);
    if (!is_norm(name)) {
      std::size_t room = (pool_bytes - view.size_bytes) / kAlignment + 1;
      view.data = memory.get() + random() % room * kAlignment;
    }
    views.emplace(name, view);
  });
  return Checkpoint(config.where, std::move(memory), views);
}

}  // namespace stretto
