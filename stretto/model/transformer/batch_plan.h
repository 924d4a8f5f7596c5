// A step over a cache of pages (paged_plan.h) as a step plan, which what runs and reads it takes:
// sections "body", from tokens to the last normalised rows, and "head", from the rows that are
// asked for to their logits, once for each so many of them.
//
// Before: step_plan.h. After: cpu_batch.h on CPU ranks, model/gpu/gpu_batch.h on GPUs; the command
// predicts and prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "stretto/model/transformer/step_plan.h"
#include "stretto/step/plan.h"

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
// it. On GPUs these are powers of two, each with four numbers of rows between the one below and
// itself, so that in a step of many rows at most some fifth are nobody's.
std::vector<BatchBounds> batch_bounds(const ModelShape& shape, std::int64_t max_rows);

inline constexpr const char* kBodySection = "body";
inline constexpr const char* kHeadSection = "head";

// `plan` is plan_step(shape, ...). Its constants and states are model_buffers(shape).
step::Plan batch_plan(const ModelShape& shape, StepPlan plan);

// By program: the inputs that every launch of it finds in constants of the plan.
std::vector<std::set<std::string>> constant_inputs(const step::Plan& plan);

// Bytes of a rank that all those steps take on CPU ranks, and would take if none shared memory.
struct BatchMemory {
  std::size_t bytes = 0, unshared = 0;
};
BatchMemory batch_memory(const ModelShape& shape, std::int64_t max_rows);

// The values of its extents, for a step and for a launch of the head with `wanted` rows. Where
// steps are filled up, prompts have all rows, or none where there are only decodes.
std::vector<std::int64_t> batch_extents(const ModelShape& shape, const StepRows& rows,
                                        std::int64_t wanted);

}  // namespace stretto
