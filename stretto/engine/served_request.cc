#include "stretto/engine/served_request.h"

#include <algorithm>
#include <cmath>

namespace stretto {
namespace {

// The `count` best ones.
std::vector<std::pair<int, double>> best_tokens(std::span<const double> logprobs, int count) {
  std::vector<int> ids(logprobs.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
  auto kept = std::min(ids.size(), static_cast<std::size_t>(count));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
                    [&](int a, int b) {
                      double x = logprobs[static_cast<std::size_t>(a)];
                      double y = logprobs[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::vector<std::pair<int, double>> out;
  for (std::size_t i = 0; i < kept; ++i) {
    out.emplace_back(ids[i], logprobs[static_cast<std::size_t>(ids[i])]);
  }
  return out;
}

}  // namespace

TokenLogprob logprob_of(int token, std::span<const float> logits, int num_top,
                        std::vector<double>& scratch) {
  scratch.resize(logits.size());
  log_softmax(logits, scratch);
  const double own = scratch[static_cast<std::size_t>(token)];
  auto better = std::count_if(scratch.begin(), scratch.end(), [&](double x) { return x > own; });
  return {.token = token, .logprob = own, .rank = 1 + better, .top = best_tokens(scratch, num_top)};
}

void ServedRequest::tell_end(End end, const std::string& what) {
  if (!has_ended.exchange(true) && on_end) on_end(end, what);
}

TokenLogprob logprob_of(const ChoiceResult& result) {
  const double log_total = std::log(static_cast<double>(result.total) / kChoiceOne);
  auto of = [&](float logit) { return static_cast<double>(logit) - result.best - log_total; };
  TokenLogprob out{
      .token = static_cast<int>(result.token), .logprob = of(result.logit), .rank = result.rank};
  for (unsigned i = 0; i < result.num_top; ++i) {
    out.top.emplace_back(static_cast<int>(result.top[i].token), of(result.top[i].logit));
  }
  return out;
}

}  // namespace stretto
