#include "stretto/ops/attention/online_softmax.h"

#include <cmath>
#include <numbers>

namespace stretto {

namespace {

// Weights may be as large as 2^8: a new peak that is not higher than that leaves the sums as they
// are, so that they need not be scaled (Zadouri et al., FlashAttention-4: conditional rescaling).
constexpr double kMostAbovePeak = 8;
// 2^100 times these is a number in fp32, far above all logarithms of weights.
constexpr double kLeastScale = 0x1p-80, kMostScale = 0x1p20;

}  // namespace

double score_scale(std::optional<double> scale, std::int64_t head_dim) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
}

OnlineSoftmax::OnlineSoftmax(ProgramBuilder& p, const Options& o)
    : p_(p),
      options_(o),
      peak_(p.full(DType::kF32, o.rows, 1, kMaskedScore)),
      sum_(p.zeros(DType::kF32, o.rows, o.head_dim + (o.sums_by_product ? kSumColumns : 0))) {
  if (!o.sums_by_product) weight_ = p.zeros(DType::kF32, o.rows, 1);
  double size = std::abs(o.scale);
  if (size >= kLeastScale && size <= kMostScale) scale_ = size;
  factor_ = o.scale / scale_;
}

Value OnlineSoftmax::scores(const Value& products) const {
  return factor_ == 1 ? products : products * factor_;
}

void OnlineSoftmax::add(const Value& scores, const Slice& values) {
  add(scores, [&] { return p_.load(values); });
}

void OnlineSoftmax::add(const Value& scores, const std::function<Value()>& values,
                        bool computed) {
  double log2_scale = scale_ * std::numbers::log2e;
  Value highest = row_max(scores);
  Value higher = (highest - peak_) * log2_scale > p_.full(DType::kF32, 1, 1, kMostAbovePeak);
  Value new_peak = where(higher, highest, peak_);
  Value scaled_peak = new_peak * log2_scale;
  Value shrink = exp2((peak_ - new_peak) * log2_scale);  // exactly 1 for the same peak
  Value weights = exp2(scores * log2_scale - scaled_peak);
  if (!options_.sums_by_product) weight_ = weight_ * shrink + row_sum(weights);
  Value rounded, rows;
  if (computed) rounded = cast(weights, options_.dtype);
  rows = values();
  if (!computed) rounded = cast(weights, options_.dtype);
  sum_ = options_.sums_by_product ? dot_and_row_sums(sum_ * shrink, rounded, rows)
                                  : dot(sum_ * shrink, rounded, rows);
  peak_ = new_peak;
}

void OnlineSoftmax::load(const State& state) {
  sum_ = p_.load(state.sum);
  weight_ = p_.load(state.weight);
  peak_ = p_.load(state.peak);
}

void OnlineSoftmax::merge(const std::vector<State>& states) {
  double log2_scale = scale_ * std::numbers::log2e;
  struct Part {
    Value sum, weight, peak;
  };
  std::vector<Part> parts;
  for (const State& s : states) {
    parts.push_back({p_.load(s.sum), p_.load(s.weight), p_.load(s.peak)});
  }
  for (const Part& part : parts) {
    Value new_peak = maximum(peak_, part.peak);
    Value scaled_peak = new_peak * log2_scale;
    Value shrink = exp2(peak_ * log2_scale - scaled_peak);
    Value other = exp2(part.peak * log2_scale - scaled_peak);
    weight_ = weight_ * shrink + part.weight * other;
    sum_ = sum_ * shrink + part.sum * other;
    peak_ = new_peak;
  }
}

void OnlineSoftmax::store(const State& state) const {
  p_.store(state.sum, sum_);
  p_.store(state.weight, weight_);
  p_.store(state.peak, peak_);
}

Value OnlineSoftmax::log2_peak() const { return peak_ * (scale_ * std::numbers::log2e); }

Value OnlineSoftmax::sum() const {
  return options_.sums_by_product ? columns(sum_, 0, options_.head_dim) : sum_;
}

Value OnlineSoftmax::weight() const {
  return options_.sums_by_product ? row_max(columns(sum_, options_.head_dim, kSumColumns))
                                  : weight_;  // all alike
}

Value OnlineSoftmax::mean() const {
  return options_.sums_by_product ? columns(sum_ / weight(), 0, options_.head_dim) : sum_ / weight_;
}

Value OnlineSoftmax::lse() const { return peak_ * scale_ + log(weight()); }

}  // namespace stretto
