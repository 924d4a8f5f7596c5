// A transformer on one CPU rank that takes rows of many sequences in one step, over a cache of
// pages: pieces of prompts beside sequences that go on by one token. In float32 a row's logits are
// the same bits whoever is beside it, and however its sequence was cut into pieces.
//
// Before: engine/scheduler.h decides the pieces. Families and weights are those of transformer.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "stretto/model/transformer/step_plan.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct BatchOptions {
  DType dtype = DType::kF32;    // of activations and cache
  std::int64_t max_rows = 256;  // of a step
  std::int64_t max_tokens = 0;  // of a sequence; 0: the model's positions
  PagedCache cache;
  int expert_groups = 1;  // transformer.h
};

// UserError as model_shape() of transformer.h.
ModelShape batch_shape(const ModelConfig& config, int num_ranks, const BatchOptions& options);

// Rows of one sequence in a step.
struct BatchPiece {
  std::span<const int> tokens;  // at least one
  std::int64_t first = 0;       // position of the first of them; those before are in the cache
  std::span<const int> pages;   // of the sequence, as many as all these tokens need
  // Rows whose logits are wanted: the last ones.
  std::int64_t wanted = 0;
};

class BatchModel {
 public:
  // Collective over the world, as all calls. `checkpoint` is read here only, `config` must outlive
  // the model. Every step is ready afterwards: proved, compiled and allocated.
  BatchModel(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
             const BatchOptions& options);
  ~BatchModel();
  BatchModel(const BatchModel&) = delete;
  BatchModel& operator=(const BatchModel&) = delete;

  // One step: at most max_rows rows of at most cache.sequences sequences, of each sequence one
  // piece. Then visit(piece, row of the piece, its logits [vocab]) for all wanted rows, piece by
  // piece and row by row; the same bits on every rank, valid during the call. A rank that does not
  // look has no visitor.
  using Visit = std::function<void(std::size_t, std::int64_t, std::span<const float>)>;
  void step(std::span<const BatchPiece> pieces, const Visit& visit);

  const ModelShape& shape() const;

 private:
  class Launches;
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
