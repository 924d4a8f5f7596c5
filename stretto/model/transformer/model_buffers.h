// The buffers that all steps of a model share, by name and size.
//
// Before: model_shape.h. After: step_plan.h, whose launches name them; cpu_batch.h and gpu_model.h
// allocate them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/model/transformer/model_shape.h"

namespace stretto {

// One rank's [rows, cols], dense, the same shape on every rank.
struct PlanBuffer {
  std::string name;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, cols = 0;
  bool symmetric = false;      // other ranks address it
  bool across_groups = false;  // and if so, those of other data groups too
  bool input = false;          // the host writes it before a step
  bool state = false;          // the step's, which keeps what it holds

  std::size_t bytes() const;
};

// Weights and caches, which all steps share: "embedding", "layers.3.qkv", "layers.3.k_cache",
// "layers.3.k_scales" of an fp8 cache. The weights are those of weights.h: for_each_weight(),
// by layer_buffer().
std::vector<PlanBuffer> model_buffers(const ModelShape& shape);
// How many rows a page has, in a layer's cache of keys or values on one rank.
std::int64_t page_rows(const ModelShape& shape);

}  // namespace stretto
