// Requests that are all there from the beginning, answered in steps of many: what generate and
// score do on CPU ranks. Every rank runs the same loop (batch_loop.h) over requests of its own, so
// that all make the same decisions and draw the same tokens, and no rank has to tell another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/engine/batch_loop.h"
#include "stretto/engine/scheduler.h"
#include "stretto/engine/served_request.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto {

inline constexpr int kPageTokens = 64;  // of the cache

// How such requests run.
struct RunPlan {
  BatchOptions model;
  SchedulerLimits limits;
};

// Tokens of a request: of its prompt, and with those that may be chosen.
struct RunLength {
  std::int64_t prompt = 1, all = 1;
};

// For such requests, none longer than `capacity`, in a world of so many ranks. Sizes are a few or
// powers of two, which keeps the number of different programs small, each of which is proved once.
// Of many requests some wait where the cache would take more memory than host_memory.h gives it;
// the longest one always fits.
RunPlan plan_run(const ModelConfig& config, int num_ranks, const BatchOptions& options,
                 const std::vector<RunLength>& lengths, std::int64_t capacity);

// Collective. Every request ends (ServedRequest::on_end) before it returns.
void run_requests(BatchModel& model, const SchedulerLimits& limits,
                  const std::vector<std::shared_ptr<ServedRequest>>& requests);

}  // namespace stretto
