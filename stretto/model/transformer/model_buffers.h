// The buffers that all steps of a model share, by name and size.
//
// Before: model_shape.h. After: step_builder.h, whose launches name them; cpu_batch.h and
// gpu_model.h allocate them.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/model/transformer/model_shape.h"
#include "stretto/step/plan.h"

namespace stretto {

// Of tokens that a step chose (ModelShape::chosen): rows of one i32.
inline constexpr const char* kChosenBuffer = "chosen_tokens";

// Weights, caches and chosen tokens, which all steps share: "embedding", "layers.3.qkv",
// "layers.3.k_cache", "layers.3.k_scales" of an fp8 cache. The weights are those of weights.h:
// for_each_weight(), by layer_buffer(). Weights are constants, the others states, and all of them
// have [rows, cols] without extents.
std::vector<step::Buffer> model_buffers(const ModelShape& shape);
// How many rows a page has, in a layer's cache of keys or values on one rank.
std::int64_t page_rows(const ModelShape& shape);

}  // namespace stretto
