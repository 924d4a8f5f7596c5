#include "stretto/model/choice/token_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

class Chooser {
 public:
  Chooser(std::span<float> logits, const ChoiceWish& wish, ChoiceScratch& scratch)
      : logits_(logits), wish_(wish), row_(wish.row), orders_(scratch.orders) {}

  Choice run() {
    for (float l : logits_) {
      if (!(l < kInfinity)) return {.status = ChoiceStatus::kNotNumbers};
    }
    change();
    best_ = -kInfinity;
    int token = 0;
    for (std::size_t t = 0; t < logits_.size(); ++t) {
      if (logits_[t] > best_) best_ = logits_[t], token = static_cast<int>(t);
    }
    if (best_ == -kInfinity) return {.status = ChoiceStatus::kNothing};
    if (row_.inverse_temperature == 0) return {.token = token};
    cut();
    return {.token = draw()};
  }

 private:
  std::uint64_t order_of(std::size_t token) const {
    return choice_order(logits_[token], static_cast<unsigned>(token));
  }
  std::uint64_t weight_of(float logit) const {
    return choice_weight(choice_scaled(logit, best_, row_.inverse_temperature));
  }
  std::uint64_t weight_at(std::uint64_t order) const {
    return weight_of(choice_logit(static_cast<unsigned>(order >> 32)));
  }

  void change() {
    for (const ChoiceEdit& e : wish_.edits) {
      STRETTO_CHECK(e.token < logits_.size(), "an edit of a token outside the vocabulary");
      logits_[e.token] = choice_edited(logits_[e.token], e, row_.repetition_penalty);
    }
    if (wish_.allowed.empty()) return;
    STRETTO_CHECK(wish_.allowed.size() == (logits_.size() + 31) / 32, "a mask of other tokens");
    for (std::size_t t = 0; t < logits_.size(); ++t) {
      if ((wish_.allowed[t / 32] >> t % 32 & 1) == 0) logits_[t] = -kInfinity;
    }
  }

  // Leaves scaled logits, -inf of those that are dropped.
  void cut() {
    const std::uint64_t last = last_order();
    for (std::size_t t = 0; t < logits_.size(); ++t) {
      float& l = logits_[t];
      if (l == -kInfinity) continue;
      const bool kept = (last == 0 || order_of(t) >= last) &&
                        (row_.min_weight == 0 || weight_of(l) >= row_.min_weight);
      l = kept ? choice_scaled(l, best_, row_.inverse_temperature) : -kInfinity;
    }
  }

  // Of the tokens that top-k and top-p leave.
  std::uint64_t last_order() {
    const bool cuts_k = row_.top_k > 0 && row_.top_k < logits_.size();
    const bool cuts_p = row_.top_p != kNoTopP;
    if (!cuts_k && !cuts_p) return 0;
    orders_.clear();
    for (std::size_t t = 0; t < logits_.size(); ++t) {
      if (logits_[t] != -kInfinity) orders_.push_back(order_of(t));
    }
    std::uint64_t last = 0;
    if (cuts_k && row_.top_k < orders_.size()) {
      auto kth = orders_.begin() + static_cast<std::ptrdiff_t>(row_.top_k) - 1;
      std::nth_element(orders_.begin(), kth, orders_.end(), std::greater<>());
      last = *kth >> 32 << 32;  // whatever ties with it
      std::erase_if(orders_, [&](std::uint64_t o) { return o < last; });
    }
    return cuts_p ? last_of_top_p() : last;
  }

  // A heap, because the nucleus is usually a small part of the vocabulary.
  std::uint64_t last_of_top_p() {
    std::uint64_t total = 0;
    for (std::uint64_t order : orders_) total += weight_at(order);
    const std::uint64_t enough = high_product(total, row_.top_p) + 1;
    std::make_heap(orders_.begin(), orders_.end());
    for (std::uint64_t sum = 0;;) {
      const std::uint64_t order = orders_.front();
      sum += weight_at(order);
      if (sum >= enough || orders_.size() == 1) return order;
      std::pop_heap(orders_.begin(), orders_.end());
      orders_.pop_back();
    }
  }

  int draw() const {
    std::uint64_t total = 0;
    for (float x : logits_) total += choice_weight(x);
    const std::uint64_t target = high_product(row_.random, total);
    std::uint64_t sum = 0;
    for (std::size_t t = 0; t < logits_.size(); ++t) {
      sum += choice_weight(logits_[t]);
      if (sum > target) return static_cast<int>(t);
    }
    throw InternalError("a draw beyond all tokens");
  }

  std::span<float> logits_;
  const ChoiceWish& wish_;
  const ChoiceRow& row_;
  std::vector<std::uint64_t>& orders_;
  float best_ = 0;
};

}  // namespace

std::uint64_t choice_top_p(double p) {
  if (!(p < 1)) return kNoTopP;
  return static_cast<std::uint64_t>(std::ldexp(std::max(p, 0.0), 64));
}

std::uint64_t choice_min_weight(double min_p) {
  return static_cast<std::uint64_t>(std::ceil(min_p * static_cast<double>(kChoiceOne)));
}

float choice_inverse_temperature(double temperature) {
  // A finite one: the best token's scaled logit is 0, not NaN.
  constexpr double kMost = std::numeric_limits<float>::max();
  return temperature == 0 ? 0 : static_cast<float>(std::min(1 / temperature, kMost));
}

Choice choose_token(std::span<float> logits, const ChoiceWish& wish, ChoiceScratch& scratch) {
  STRETTO_CHECK(!logits.empty(), "no logits to choose from");
  return Chooser(logits, wish, scratch).run();
}

void tell_choice(std::span<const float> logits, int num_top, ChoiceResult& result,
                 ChoiceScratch& scratch) {
  const auto count = static_cast<std::size_t>(std::clamp(num_top, 0, kMostChoiceTop));
  STRETTO_CHECK(result.token < logits.size(), "a token outside the vocabulary");
  result.logit = logits[result.token];
  result.best = *std::max_element(logits.begin(), logits.end());
  result.total = 0;
  result.rank = 1;
  scratch.orders.clear();
  for (std::size_t t = 0; t < logits.size(); ++t) {
    result.total += choice_weight(logits[t] - result.best);
    result.rank += logits[t] > result.logit ? 1 : 0;
    scratch.orders.push_back(choice_order(logits[t], static_cast<unsigned>(t)));
  }
  result.num_top = static_cast<unsigned>(std::min(count, logits.size()));
  auto end = scratch.orders.begin() + static_cast<std::ptrdiff_t>(result.num_top);
  std::partial_sort(scratch.orders.begin(), end, scratch.orders.end(), std::greater<>());
  for (std::size_t i = 0; i < result.num_top; ++i) {
    const unsigned token = choice_token(scratch.orders[i]);
    result.top[i] = {.token = token, .logit = logits[token]};
  }
}

}  // namespace stretto
