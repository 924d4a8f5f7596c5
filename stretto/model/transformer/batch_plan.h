// The steps that a model is made with, by the most rows that each holds, and their memory.
//
// Before: step_plan.h, which plans each of them. After: batch_runner.h, batch_model.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/model/transformer/step_plan.h"

namespace stretto {

// The most that a step holds.
struct BatchBounds {
  std::int64_t rows = 0, sequences = 0;
  // Ascending, `rows` last: the numbers of rows that it may have where steps are filled up
  // (ModelShape::fills_steps); else empty, and it may have any.
  std::vector<std::int64_t> counts = {};

  // The smallest count that holds so many rows, which are at most `rows`.
  std::int64_t filled(std::int64_t num_rows) const;
};
// The bounds of steps that a model is made with, ascending: a step runs in the smallest that holds
// it. On GPUs these are powers of two, those above 128 each with four numbers of rows between the
// one below and itself, so that in a step of many rows at most some fifth are nobody's.
std::vector<BatchBounds> batch_bounds(const ModelShape& shape, std::int64_t max_rows);

// Bytes of a rank that all those steps take beside weights and cache, and would take if none of
// their buffers shared memory.
struct BatchMemory {
  std::size_t bytes = 0, unshared = 0;
};
BatchMemory batch_memory(const ModelShape& shape, std::int64_t max_rows);

// What the programs of such a step's plan are proved for on GPUs, in their order: launches with
// each number of rows that `bounds` counts.
std::vector<ProveOptions> step_proofs(const ModelShape& shape, const step::Plan& plan,
                                      const BatchBounds& bounds, const GpuTarget& gpu = {});

}  // namespace stretto
