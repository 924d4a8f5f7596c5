#include "stretto/server/stats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace stretto {
namespace {

constexpr std::size_t kMostTold = 256;

}  // namespace

Json stats_json(const ServingEngine& engine, const Metrics::Totals& totals,
                const std::vector<std::shared_ptr<Completion>>& open) {
  std::vector<Completion::Progress> all;
  for (const auto& completion : open) {
    for (const Completion::Progress& one : completion->progress()) all.push_back(one);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.has_started != b.has_started ? a.has_started : a.seconds > b.seconds;
  });
  if (all.size() > kMostTold) all.resize(kMostTold);
  Json requests = Json::array();
  for (const Completion::Progress& one : all) {
    requests.push_back({{"state", one.has_started ? "running" : "waiting"},
                        {"prompt_tokens", one.prompt_tokens},
                        {"tokens", one.tokens},
                        {"max_tokens", one.max_tokens},
                        {"seconds", std::round(one.seconds * 1000) / 1000}});
  }
  const ServingEngine::State state = engine.state();
  return {{"max_model_len", engine.max_model_len()},
          {"running", state.running},
          {"waiting", state.waiting},
          {"preemptions", state.preemptions},
          {"cache",
           {{"use", state.cache_use},
            {"tokens", engine.cache_tokens()},
            {"bytes", engine.cache_bytes()},
            {"dtype", engine.cache_dtype()}}},
          {"prefix", {{"queries", state.prefix_queries}, {"hits", state.prefix_hits}}},
          {"prompt_tokens", totals.prompt},
          {"generated_tokens", totals.generated},
          {"requests", std::move(requests)}};
}

}  // namespace stretto
