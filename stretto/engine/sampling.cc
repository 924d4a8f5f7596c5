#include "stretto/engine/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

Sampler::Sampler(const SamplingParams& params) : params_(params) {
  params_.validate();
  start_over(0);
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
                    std::size_t num_generated, std::span<const std::uint32_t> allowed) {
  auto is_there = [&](std::size_t token) { return logits[token] != kDropped; };
  const ChoiceWish asked = wish(logits.size(), history, num_generated, allowed, is_there);
  const Choice choice = choose_token(logits, asked, scratch_);
  if (choice.status != ChoiceStatus::kChosen) argmax(logits);  // says what is wrong
  count_draw();
  return choice.token;
}

ChoiceWish Sampler::wish(std::size_t vocab, std::span<const int> history, std::size_t num_generated,
                         std::span<const std::uint32_t> allowed) {
  return wish(vocab, history, num_generated, allowed, [](std::size_t) { return true; });
}

ChoiceWish Sampler::wish(std::size_t vocab, std::span<const int> history, std::size_t num_generated,
                         std::span<const std::uint32_t> allowed, const IsThere& is_there) {
  STRETTO_CHECK(num_generated <= history.size(), "more tokens were generated than there are");
  count(history, history.size() - num_generated);
  ChoiceWish out;
  out.allowed = mask_of(vocab, allowed, is_there);
  const bool too_early = static_cast<std::int64_t>(num_generated) < params_.min_tokens;
  drop_ends(vocab, out.allowed, too_early, is_there);
  for (const ChoiceEdit& e : edits_) {
    STRETTO_CHECK(e.token < vocab, fmt::format("token {} is outside the vocabulary", e.token));
  }
  out.edits = edits_;
  out.row = {
      .random = philox_word(params_.seed, num_draws_, params_.choice),
      .top_p = choice_top_p(params_.top_p),
      .min_weight = choice_min_weight(params_.min_p),
      .inverse_temperature = choice_inverse_temperature(params_.temperature),
      .repetition_penalty = static_cast<float>(params_.repetition_penalty),
      .top_k = static_cast<unsigned>(std::min(params_.top_k, static_cast<std::int64_t>(vocab)))};
  return out;
}

void Sampler::start_over(std::size_t prompt) {
  edits_.clear();
  edit_at_.clear();
  times_.clear();
  counted_.clear();
  prompt_ = prompt;
  for (const auto& [token, bias] : params_.logit_bias) edit_of(token).bias += bias;
}

ChoiceEdit& Sampler::edit_of(int token) {
  auto [at, is_new] = edit_at_.try_emplace(token, edits_.size());
  if (is_new) {
    edits_.push_back({.token = static_cast<unsigned>(token)});
    times_.push_back(0);
  }
  return edits_[at->second];
}

// Goes on from the last call, whose history this one usually begins with.
void Sampler::count(std::span<const int> history, std::size_t prompt) {
  const bool repeats = params_.repetition_penalty != 1;
  const bool counts = params_.presence_penalty != 0 || params_.frequency_penalty != 0;
  if (!repeats && !counts) return;
  const bool goes_on = prompt == prompt_ && counted_.size() <= history.size() &&
                       std::equal(counted_.begin(), counted_.end(), history.begin());
  if (!goes_on) start_over(prompt);
  for (std::size_t i = counted_.size(); i < history.size(); ++i) {
    counted_.push_back(history[i]);
    if (!repeats && i < prompt) continue;
    ChoiceEdit& e = edit_of(history[i]);
    if (repeats) e.kinds |= kChoiceRepeated;
    if (!counts || i < prompt) continue;
    const int times = ++times_[edit_at_.at(history[i])];
    e.minus = static_cast<float>(params_.presence_penalty + times * params_.frequency_penalty);
  }
}

// Of allowed_tokens and `allowed`. Where none of the former is there, the latter alone.
std::span<const std::uint32_t> Sampler::mask_of(std::size_t vocab,
                                                std::span<const std::uint32_t> allowed,
                                                const IsThere& is_there) {
  if (params_.allowed_tokens.empty()) return allowed;
  mask_.assign((vocab + 31) / 32, 0);
  bool any = false;
  for (int id : params_.allowed_tokens) {
    const auto token = static_cast<std::size_t>(id);
    STRETTO_CHECK(id >= 0 && token < vocab, fmt::format("token {} is outside the vocabulary", id));
    const std::uint32_t bit = std::uint32_t{1} << token % 32;
    if (!allowed.empty() && (allowed[token / 32] & bit) == 0) continue;
    mask_[token / 32] |= bit;
    any = any || is_there(token);
  }
  return any ? std::span<const std::uint32_t>(mask_) : allowed;
}

// Where nothing else would be left, ends stay: a text that must not end yet, and can do nothing
// else.
void Sampler::drop_ends(std::size_t vocab, std::span<const std::uint32_t> mask, bool too_early,
                        const IsThere& is_there) {
  if (params_.min_tokens == 0) return;
  std::vector<int> ends = params_.ends;
  std::sort(ends.begin(), ends.end());
  bool others = false;
  for (std::size_t t = 0; too_early && !others && t < vocab; ++t) {
    others = (mask.empty() || (mask[t / 32] >> t % 32 & 1) != 0) && is_there(t) &&
             !std::binary_search(ends.begin(), ends.end(), static_cast<int>(t));
  }
  for (int id : ends) {
    unsigned& kinds = edit_of(id).kinds;
    kinds = too_early && others ? kinds | kChoiceDropped : kinds & ~kChoiceDropped;
  }
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
