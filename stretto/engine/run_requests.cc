#include "stretto/engine/run_requests.h"

#include <algorithm>
#include <bit>
#include <span>

namespace stretto {
namespace {

constexpr std::uint64_t kMostSequences = 64;
// Of a step: the first number that all prompts together do not exceed, or else the last. GPUs are
// as long at a few hundred rows as at one.
constexpr int kRows[] = {16, 256}, kGpuRows[] = {16, 256, 2048};

int rows_for(std::int64_t tokens, std::span<const int> choices) {
  auto fits = [&](int rows) { return tokens <= rows; };
  auto found = std::find_if(choices.begin(), choices.end(), fits);
  return found != choices.end() ? *found : choices.back();
}

std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

}  // namespace

RunPlan plan_run(const std::vector<RunLength>& lengths, std::int64_t capacity,
                 const BatchOptions& options, const SizeCache& size_cache) {
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
  const bool on_gpus = options.plan_for == Target::kCuda;
  const int rows = rows_for(prompts, on_gpus ? std::span<const int>(kGpuRows) : kRows);
  run.model.max_rows = rows;
  std::int64_t pages =
      std::min(power_of_two(std::max(wanted, longest)), size_cache(run.model).num_pages);
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
