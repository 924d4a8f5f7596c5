#include "stretto/engine/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "stretto/base/errors.h"
#include "stretto/model/gpu/gpu_model.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/model_buffers.h"

namespace stretto {
namespace {

double gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

CacheSize size_of_gpu_cache(const GpuWorld& world, const ModelShape& shape, std::int64_t max_rows,
                            std::size_t bytes) {
  ModelShape without = shape;
  without.paged.num_pages = 1;
  CacheSize size{.page_bytes = page_bytes(shape), .kept_bytes = gpu_reserve_bytes(shape)};
  const std::size_t of_rank = size.page_bytes / static_cast<std::size_t>(shape.world_size);
  for (const step::Buffer& b : model_buffers(without)) size.weight_bytes += step::num_bytes(b);
  size.weight_bytes -= of_rank;
  const BatchMemory work = batch_memory(without, max_rows);
  size.work_bytes = work.bytes;
  size.unshared_bytes = work.unshared;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (int r : world.local_ranks()) {
    least = std::min(least, world.device(r).memory().free_bytes);
  }
  // A page is that of rows of nobody.
  std::size_t needed = size.weight_bytes + size.work_bytes + size.kept_bytes + of_rank;
  std::size_t ranks = static_cast<std::size_t>(shape.world_size);
  std::size_t room = least - std::min(least, needed);
  size.allowed = bytes > 0 ? bytes : room * ranks;
  if (needed > least || size.allowed / ranks > room) {
    throw UserError(fmt::format(
        "{}: {:.1f} GiB of weights on each of {} GPUs, {:.1f} GiB for steps of {} rows, {:.1f} GiB "
        "kept free and a cache of {:.1f} GiB do not fit: {:.1f} GiB are free; more ranks, fewer "
        "rows or a smaller --kv-memory would need less",
        shape.config->where, gib(size.weight_bytes), shape.world_size, gib(size.work_bytes),
        max_rows, gib(size.kept_bytes), gib(size.allowed / ranks), gib(least)));
  }
  size.num_pages = static_cast<std::int64_t>(size.allowed / size.page_bytes);
  if (bytes == 0) size.num_pages = with_few_digits(size.num_pages);
  size.num_pages = std::min(size.num_pages, most_pages(shape));
  return size;
}

}  // namespace stretto
