#include "stretto/engine/run_requests.h"

#include <algorithm>
#include <bit>

#include "stretto/engine/host_memory.h"

namespace stretto {
namespace {

constexpr std::uint64_t kMostSequences = 64;
// Of a step; the smaller number where all prompts together have no more.
constexpr int kFewRows = 16, kMostRows = 256;

std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

}  // namespace

RunPlan plan_run(const ModelConfig& config, int num_ranks, const BatchOptions& options,
                 const std::vector<RunLength>& lengths, std::int64_t capacity) {
  RunPlan run{.model = options, .limits = {}};
  auto sequences = std::bit_ceil(std::clamp<std::uint64_t>(lengths.size(), 1, kMostSequences));
  run.model.max_tokens = capacity;
  run.model.cache = {.page = kPageTokens,
                     .sequences = static_cast<std::int64_t>(sequences),
                     .fp8 = options.cache.fp8,
                     .attention = options.cache.attention};
  std::int64_t longest = 1, wanted = 0;  // pages
  std::int64_t prompts = 0;              // tokens
  for (const RunLength& length : lengths) {
    std::int64_t pages = ceil_div(length.all, std::int64_t{kPageTokens});
    longest = std::max(longest, pages);
    wanted += pages;
    prompts += length.prompt;
  }
  const int rows = prompts <= kFewRows ? kFewRows : kMostRows;
  run.model.max_rows = rows;
  CacheSize size = size_of_cache(batch_shape(config, num_ranks, run.model), 0);
  std::int64_t pages = std::min(power_of_two(std::max(wanted, longest)), size.num_pages);
  run.model.cache.num_pages = std::max(pages, longest);
  run.limits = {.max_running = static_cast<int>(sequences),
                .max_rows = rows,
                .num_blocks = static_cast<int>(run.model.cache.num_pages),
                .block_tokens = kPageTokens};
  return run;
}

void run_requests(BatchModel& model, const SchedulerLimits& limits,
                  const std::vector<std::shared_ptr<ServedRequest>>& requests) {
  BatchLoop loop(limits, model.shape().config->vocab_size);
  std::size_t next = 0;
  while (next < requests.size() || !loop.is_idle()) {
    while (next < requests.size() && loop.room() > 0) loop.add(requests[next++]);
    BatchOrder order = loop.decide();
    if (order.parts.empty()) continue;
    model.step(order.pieces(), loop);
    loop.complete();
  }
}

}  // namespace stretto
