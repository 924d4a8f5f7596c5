// What a step of many requests would take on GPUs, without a GPU and without weights: the plan of
// the step that a server would run (batch_plan.h), predicted (step/predict.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "stretto/model/transformer/step_plan.h"
#include "stretto/predict/machine.h"
#include "stretto/step/predict.h"

namespace stretto {

// A step: `batch` sequences that go on by one token each, beside the last `prompt` tokens of one
// more. All have `context` tokens when it is made, theirs of this step included, or as many as the
// step gives them where that is more.
struct BatchQuestion {
  std::int64_t batch = 1, context = 1024, prompt = 0;
  int ranks = 1, expert_groups = 1;
  DType dtype = DType::kBF16;  // of weights, activations and, unless fp8_cache, the cache
  bool fp8_cache = false;      // model_shape.h: PagedCache
  bool ulysses = false;        // model_shape.h
  FusedExperts fused_experts = FusedExperts::kAuto;
};

struct BatchPrediction {
  double time_ms = 0;
  double tokens_per_second = 0;  // rows of the step over its time
  std::size_t memory_bytes = 0;  // of a rank: weights, a cache for these sequences, the step's own
  std::string bound_by;          // step::name(Bound)

  step::Plan plan;
  step::StepPrediction step;
  step::StepBytes bytes;
};

// UserError where the question makes no sense, the model has fewer positions than the context, or
// as batch_shape() of batch_model.h and predict::predict().
BatchPrediction predict_batch(const ModelConfig& config, const predict::Machine& machine,
                              const BatchQuestion& question);

}  // namespace stretto
