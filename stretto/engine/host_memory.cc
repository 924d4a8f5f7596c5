#include "stretto/engine/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <string>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/model_buffers.h"

namespace stretto {

std::size_t available_host_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

void check_host_memory(const ModelShape& shape) {
  std::size_t needed = 0;
  for (const step::Buffer& b : model_buffers(shape)) needed += step::num_bytes(b);
  needed *= static_cast<std::size_t>(shape.all_ranks());
  std::size_t available = available_host_memory();
  if (needed <= available) return;
  auto gib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  const std::int64_t tokens = shape.paged.num_pages * shape.paged.page;
  throw UserError(fmt::format(
      "{}: the weights and the cache of {} tokens on {} ranks take {:.1f} GiB of memory, {:.1f} "
      "are available",
      shape.config->where, tokens, shape.all_ranks(), gib(needed), gib(available)));
}

std::int64_t with_few_digits(std::int64_t pages) {
  constexpr int kDigits = 5;
  int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(pages)));
  int shift = std::max(0, width - kDigits);
  return pages >> shift << shift;
}

std::size_t page_bytes(const ModelShape& shape) {
  const ModelConfig& c = *shape.config;
  auto rows = static_cast<std::size_t>(c.num_layers() * 2 * page_rows(shape) * shape.world_size);
  auto head = static_cast<std::size_t>(c.head_dim);
  std::size_t row_bytes = shape.paged.fp8
                              ? head * size_bytes(DType::kF8E4M3) + size_bytes(DType::kF32)
                              : head * size_bytes(shape.dtype);
  return rows * row_bytes;
}

std::int64_t most_pages(const ModelShape& shape) {
  return shape.paged.sequences * ceil_div(shape.max_tokens, shape.paged.page);
}

CacheSize size_of_cache(const ModelShape& shape, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{4} << 30;
  CacheSize size{.page_bytes = page_bytes(shape),
                 .allowed = bytes > 0 ? bytes : std::min(kMost, available_host_memory() / 4)};
  size.allowed /= static_cast<std::size_t>(shape.data_groups);  // which have a cache each
  auto pages = static_cast<std::int64_t>(size.allowed / size.page_bytes);
  size.num_pages = std::min(most_pages(shape), bytes > 0 ? pages : with_few_digits(pages));
  return size;
}

}  // namespace stretto
