#include "stretto/engine/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "stretto/base/errors.h"
#include "stretto/engine/philox.h"

namespace stretto {
namespace {

constexpr float kDropped = -std::numeric_limits<float>::infinity();

void check_range(const char* parameter, double value, double min, double max) {
  if (!(value >= min && value <= max)) {  // also refuses NaN
    throw UserError(
        fmt::format("{}: need a number from {} to {}, got {}", parameter, min, max, value));
  }
}

// Relative probability of a logit; 1 for the best one. The exponent is at most 0.
double weight(float logit, float best) {
  if (logit == kDropped) return 0;  // the usual case after a cut
  return std::exp(static_cast<double>(logit) - static_cast<double>(best));
}

double total_weight(std::span<const float> logits, float best) {
  double total = 0;
  for (float logit : logits) total += weight(logit, best);
  return total;
}

}  // namespace

void SamplingParams::validate() const {
  check_range("temperature", temperature, 0, 1000);
  if (top_k < 0) throw UserError(fmt::format("top_k: need 0 (off) or more, got {}", top_k));
  check_range("top_p", top_p, 0, 1);
  check_range("min_p", min_p, 0, 1);
  check_range("repetition_penalty", repetition_penalty, 1e-3, 1e3);
  check_range("presence_penalty", presence_penalty, -2, 2);
  check_range("frequency_penalty", frequency_penalty, -2, 2);
  for (const auto& [token, bias] : logit_bias) check_range("logit_bias", bias, -100, 100);
  if (min_tokens < 0)
    throw UserError(fmt::format("min_tokens: need 0 or more, got {}", min_tokens));
}

Sampler::Sampler(const SamplingParams& params) : params_(params) { params_.validate(); }

void keep_allowed(std::span<float> logits, std::span<const std::uint32_t> bits) {
  STRETTO_CHECK(bits.size() == (logits.size() + 31) / 32, "a mask of another vocabulary");
  for (std::size_t i = 0; i < logits.size(); i += 32) {
    const std::uint32_t word = bits[i / 32];
    const std::size_t count = std::min<std::size_t>(32, logits.size() - i);
    for (std::size_t j = 0; j < count; ++j) {
      if ((word >> j & 1) == 0) logits[i + j] = kDropped;
    }
  }
}

int argmax(std::span<const float> logits) {
  STRETTO_CHECK(!logits.empty(), "no logits to choose from");
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      throw UserError(
          fmt::format("the model computed a logit of {} for token {}: its weights are broken or "
                      "overflow this dtype",
                      logits[i], i));
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits[best] == kDropped) {
    throw UserError(
        "the model computed -inf for every token: its weights are broken or overflow this dtype");
  }
  return static_cast<int>(best);
}

int Sampler::sample(std::span<float> logits, std::span<const int> history,
                    std::size_t num_generated) {
  STRETTO_CHECK(num_generated <= history.size(), "more tokens were generated than there are");
  argmax(logits);  // refuses what is not a distribution before anything is changed
  restrict_to_allowed(logits, num_generated);
  penalize(logits, history);
  penalize_generated(logits, history.last(num_generated));
  int greedy = argmax(logits);
  if (params_.temperature == 0) return greedy;
  float best = logits[static_cast<std::size_t>(greedy)];
  // Relative to the best logit, because a small temperature would overflow the quotient.
  for (float& logit : logits) {
    logit = static_cast<float>((static_cast<double>(logit) - best) / params_.temperature);
  }
  keep_top_k(logits);
  keep_top_p(logits);
  if (params_.min_p > 0) {
    for (float& logit : logits) {
      if (weight(logit, 0.0f) < params_.min_p) logit = kDropped;
    }
  }
  return draw(logits);
}

// Where nothing would be left, ends stay: a text that must not end yet, and can do nothing else.
void Sampler::restrict_to_allowed(std::span<float> logits, std::size_t num_generated) {
  auto at = [&](int id) -> float& {
    STRETTO_CHECK(id >= 0 && static_cast<std::size_t>(id) < logits.size(),
                  fmt::format("token {} is outside the vocabulary", id));
    return logits[static_cast<std::size_t>(id)];
  };
  if (!params_.allowed_tokens.empty()) {
    seen_.resize(logits.size());
    for (int id : params_.allowed_tokens) {
      at(id);  // which checks it
      seen_[static_cast<std::size_t>(id)] = true;
    }
    bool any = false;
    for (std::size_t i = 0; i < logits.size(); ++i) any |= seen_[i] && logits[i] != kDropped;
    for (std::size_t i = 0; any && i < logits.size(); ++i) {
      if (!seen_[i]) logits[i] = kDropped;
    }
    for (int id : params_.allowed_tokens) seen_[static_cast<std::size_t>(id)] = false;
  }
  for (const auto& [id, bias] : params_.logit_bias) at(id) += bias;
  if (static_cast<std::int64_t>(num_generated) >= params_.min_tokens) return;
  std::vector<std::pair<int, float>> dropped;
  for (int id : params_.ends) {
    dropped.emplace_back(id, at(id));
    at(id) = kDropped;
  }
  bool any = std::any_of(logits.begin(), logits.end(), [](float x) { return x != kDropped; });
  for (auto it = dropped.rbegin(); !any && it != dropped.rend(); ++it) at(it->first) = it->second;
}

void Sampler::penalize_generated(std::span<float> logits, std::span<const int> generated) const {
  if (params_.presence_penalty == 0 && params_.frequency_penalty == 0) return;
  std::map<int, int> counts;
  for (int id : generated) ++counts[id];
  for (const auto& [id, count] : counts) {
    logits[static_cast<std::size_t>(id)] -=
        static_cast<float>(params_.presence_penalty + count * params_.frequency_penalty);
  }
}

void Sampler::penalize(std::span<float> logits, std::span<const int> history) {
  if (params_.repetition_penalty == 1.0) return;
  seen_.resize(logits.size());
  auto penalty = static_cast<float>(params_.repetition_penalty);
  for (int id : history) {
    auto at = static_cast<std::size_t>(id);
    STRETTO_CHECK(id >= 0 && at < logits.size(),
                  fmt::format("token {} is outside the vocabulary", id));
    if (seen_[at]) continue;
    seen_[at] = true;
    // Finite stays finite: a penalty that overflows must not turn into a NaN later.
    float changed = logits[at] < 0 ? logits[at] * penalty : logits[at] / penalty;
    bool was_finite = std::isfinite(logits[at]);
    constexpr float kMax = std::numeric_limits<float>::max();
    logits[at] = was_finite ? std::clamp(changed, -kMax, kMax) : logits[at];
  }
  for (int id : history) seen_[static_cast<std::size_t>(id)] = false;
}

void Sampler::keep_top_k(std::span<float> logits) {
  auto k = static_cast<std::size_t>(params_.top_k);
  if (k == 0 || k >= logits.size()) return;
  values_.assign(logits.begin(), logits.end());
  auto kth = values_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(values_.begin(), kth, values_.end(), std::greater<>());
  for (float& logit : logits) {
    if (logit < *kth) logit = kDropped;
  }
}

// A token stays when the tokens before it (by logit, ties by id) have less than top_p together; the
// first one always does. A heap, because the nucleus is usually a small part of the vocabulary.
void Sampler::keep_top_p(std::span<float> logits) {
  if (params_.top_p >= 1.0) return;
  double enough = params_.top_p * total_weight(logits, 0.0f);
  auto after = [&](int a, int b) {
    float x = logits[static_cast<std::size_t>(a)];
    float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x < y : a > b;
  };
  ids_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != kDropped) ids_.push_back(static_cast<int>(i));
  }
  std::make_heap(ids_.begin(), ids_.end(), after);
  int last = ids_.front();
  double mass = 0;
  do {
    last = ids_.front();
    mass += weight(logits[static_cast<std::size_t>(last)], 0.0f);
    std::pop_heap(ids_.begin(), ids_.end(), after);
    ids_.pop_back();
  } while (!ids_.empty() && mass < enough);
  for (int id : ids_) logits[static_cast<std::size_t>(id)] = kDropped;
}

// Inverts the cumulative distribution in order of id.
int Sampler::draw(std::span<const float> logits) {
  double target =
      philox_uniform(params_.seed, num_draws_++, params_.choice) * total_weight(logits, 0.0f);
  double mass = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double step = weight(logits[i], 0.0f);
    if (step == 0) continue;
    mass += step;
    last = i;
    if (mass > target) break;
  }
  return static_cast<int>(last);
}

void log_softmax(std::span<const float> logits, std::span<double> out) {
  STRETTO_CHECK(out.size() == logits.size(), "log_softmax needs an output of the input's size");
  auto best = static_cast<double>(logits[static_cast<std::size_t>(argmax(logits))]);
  double log_total = std::log(total_weight(logits, static_cast<float>(best)));
  // Subtracting `best` first keeps the precision of large logits.
  for (std::size_t i = 0; i < logits.size(); ++i) out[i] = logits[i] - best - log_total;
}

double log_probability(std::span<const float> logits, int token_id) {
  auto at = static_cast<std::size_t>(token_id);
  STRETTO_CHECK(token_id >= 0 && at < logits.size(), "token outside the vocabulary");
  auto best = static_cast<double>(logits[static_cast<std::size_t>(argmax(logits))]);
  return logits[at] - best - std::log(total_weight(logits, static_cast<float>(best)));
}

}  // namespace stretto
