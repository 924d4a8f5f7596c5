// How large the cache of pages may be on GPUs, asked before anything is loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/engine/host_memory.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/model/transformer/model_shape.h"

namespace stretto {

// Pages of a cache on the GPUs of a world in `bytes`, on all of them together; 0: in what weights
// and steps of at most `max_rows` rows leave of the GPU with the least free memory. No more than
// the largest step's sequences at full length use, and then with_few_digits. UserError where
// weights and steps alone do not fit, or do not with `bytes`.
CacheSize size_of_gpu_cache(const GpuWorld& world, const ModelShape& shape, std::int64_t max_rows,
                            std::size_t bytes);

}  // namespace stretto
