// Requests that are all there from the beginning, answered in steps of many: what generate and
// score do. Every rank, or process of GPUs, runs the same loop (batch_loop.h) over requests of its
// own, so that all make the same decisions and draw the same tokens, and none has to tell another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stretto/engine/batch_loop.h"
#include "stretto/engine/host_memory.h"
#include "stretto/engine/scheduler.h"
#include "stretto/engine/served_request.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto {

inline constexpr int kPageTokens = 64;  // of the cache

// How such requests run.
struct RunSettings {
  BatchOptions model;
  SchedulerLimits limits;
};

// Tokens of a request: of its prompt, and with those that may be chosen.
struct RunLength {
  std::int64_t prompt = 1, all = 1;
};

// How large the cache of such a model may be.
using SizeCache = std::function<CacheSize(const BatchOptions&)>;

// For such requests, dealt out in turn over the data groups of so many ranks in all, whose plans
// are the same; none is longer than `capacity`. Sizes are a few or powers of two, which keeps the
// number of different programs small, each of which is proved once. Of many requests some wait
// where all of them would need a larger cache than there may be; the longest one always fits.
RunSettings plan_run(const std::vector<RunLength>& lengths, std::int64_t capacity,
                 const BatchOptions& options, int num_ranks, const SizeCache& size_cache);

// Those of the own data group. Collective. Every request ends (ServedRequest::on_end) before it
// returns.
void run_requests(BatchModel& model, const SchedulerLimits& limits,
                  const std::vector<std::shared_ptr<ServedRequest>>& requests);

}  // namespace stretto
