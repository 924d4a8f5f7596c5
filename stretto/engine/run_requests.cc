#include "stretto/engine/run_requests.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "stretto/base/ceil_div.h"
#include "stretto/engine/step_driver.h"

namespace stretto {
namespace {

constexpr std::uint64_t kMostSequences = 64;
// Of a step: the first number that all prompts together do not exceed, or else the last. GPUs are
// as long at a few hundred rows as at one.
constexpr int kRows[] = {16, 256}, kGpuRows[] = {16, 256, 2048};
// One rank's largest steps that a step of many ranks may hold where rows are spread over them.
// Proofs take longer the more rows and ranks there are: GEMM + reduce-scatter of 8192 rows on four
// GPUs minutes, once.
constexpr int kMostShares = 4;

int rows_for(std::int64_t tokens, const BatchOptions& options, int num_ranks) {
  std::vector<int> choices(std::begin(kRows), std::end(kRows));
  if (options.plan_for == Target::kCuda) choices.assign(std::begin(kGpuRows), std::end(kGpuRows));
  const int ranks = num_ranks / options.data_groups;
  if (options.ulysses) choices.push_back(choices.back() * std::min(ranks, kMostShares));
  auto fits = [&](int rows) { return tokens <= rows; };
  auto found = std::find_if(choices.begin(), choices.end(), fits);
  return found != choices.end() ? *found : choices.back();
}

std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

}  // namespace

RunSettings plan_run(const std::vector<RunLength>& lengths, std::int64_t capacity,
                     const BatchOptions& options, int num_ranks, const SizeCache& size_cache) {
  RunSettings run{.model = options, .limits = {}};
  const auto groups = static_cast<std::size_t>(options.data_groups);
  // Spread rows add up in an order that their places in a step decide, so that each such request
  // has the steps to itself, and finds nothing in the cache that others left.
  const std::uint64_t most = options.ulysses ? 1 : kMostSequences;
  auto sequences =
      std::bit_ceil(std::clamp<std::uint64_t>(ceil_div(lengths.size(), groups), 1, most));
  run.model.max_tokens = capacity;
  run.model.cache = {.page = kPageTokens,
                     .sequences = static_cast<std::int64_t>(sequences),
                     .prompts = options.plan_for == Target::kCuda ? PagedCache::kPromptsOnGpus : 0,
                     .fp8 = options.cache.fp8,
                     .attention = options.cache.attention};
  std::int64_t longest = 1;                                   // pages
  std::vector<std::int64_t> wanted(groups), prompts(groups);  // pages, tokens, of each group
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::int64_t pages = ceil_div(lengths[i].all, std::int64_t{kPageTokens});
    longest = std::max(longest, pages);
    wanted[i % groups] += pages;
    prompts[i % groups] += lengths[i].prompt;
  }
  const int rows = rows_for(*std::max_element(prompts.begin(), prompts.end()), options, num_ranks);
  run.model.max_rows = rows;
  const std::int64_t all = std::max(*std::max_element(wanted.begin(), wanted.end()), longest);
  std::int64_t pages = std::min(power_of_two(all), size_cache(run.model).num_pages);
  run.model.cache.num_pages = std::max(pages, longest);
  run.limits = {.max_running = static_cast<int>(sequences),
                .max_rows = rows,
                .max_prompts = static_cast<int>(run.model.cache.prompts),
                .num_blocks = static_cast<int>(run.model.cache.num_pages),
                .block_tokens = kPageTokens,
                .prefix_caching = !options.ulysses};
  return run;
}

void run_requests(BatchModel& model, const SchedulerLimits& limits,
                  const std::vector<std::shared_ptr<ServedRequest>>& requests) {
  BatchLoop loop(limits, model.shape().config->vocab_size);
  StepDriver driver(model, loop, model.shape().chosen > 0);
  std::size_t next = 0;
  while (next < requests.size() || !loop.is_idle()) {
    driver.wait_for_turn();
    while (next < requests.size() && loop.room() > 0) loop.add(requests[next++]);
    driver.round();
  }
  while (model.step_with_others()) continue;
}

}  // namespace stretto
