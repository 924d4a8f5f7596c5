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

OnlineSoftmax::OnlineSoftmax(ProgramBuilder& p, const Options& o) : p_(p), options_(o) {
  begin(now_, o.sums_by_product);
  if (o.in_runs) {
    begin(all_, false);
    last_peak_ = p.full(DType::kF32, o.rows, 1, kMaskedScore);
  }
  double size = std::abs(o.scale);
  if (size >= kLeastScale && size <= kMostScale) scale_ = size;
  factor_ = o.scale / scale_;
}

void OnlineSoftmax::begin(Part& part, bool by_product) const {
  const Options& o = options_;
  part.peak = p_.full(DType::kF32, o.rows, 1, kMaskedScore);
  part.sum = p_.zeros(DType::kF32, o.rows, o.head_dim + (by_product ? kSumColumns : 0));
  if (!by_product) part.weight = p_.zeros(DType::kF32, o.rows, 1);
}

Value OnlineSoftmax::scores(const Value& products) const {
  return factor_ == 1 ? products : products * factor_;
}

void OnlineSoftmax::add(const Value& scores, const Slice& values) {
  add(scores, [&] { return p_.load(values); });
}

void OnlineSoftmax::add(const Value& scores, const std::function<Value()>& values, bool computed,
                        const Index& begins_run) {
  // A run that begins has a peak of its own. It is below all scores, so that the sums of the run
  // before, which are read behind the product that made them, are then scaled to zero.
  if (options_.in_runs) {
    last_peak_ = copy(now_.peak);
    p_.when(begins_run, [&] { now_.peak = p_.full(DType::kF32, options_.rows, 1, kMaskedScore); });
  }
  double log2_scale = scale_ * std::numbers::log2e;
  Value highest = row_max(scores);
  Value higher = (highest - now_.peak) * log2_scale > p_.full(DType::kF32, 1, 1, kMostAbovePeak);
  Value new_peak = where(higher, highest, now_.peak);
  Value scaled_peak = new_peak * log2_scale;
  Value shrink = exp2((now_.peak - new_peak) * log2_scale);  // exactly 1 for the same peak
  Value weights = exp2(scores * log2_scale - scaled_peak);
  if (options_.in_runs) {
    p_.when(begins_run, [&] { merge(all_, sum(), weight(), last_peak_); });
  }
  if (!options_.sums_by_product) now_.weight = now_.weight * shrink + row_sum(weights);
  Value rounded, rows;
  if (computed) rounded = cast(weights, options_.dtype);
  rows = values();
  if (!computed) rounded = cast(weights, options_.dtype);
  now_.sum = options_.sums_by_product ? dot_and_row_sums(now_.sum * shrink, rounded, rows)
                                      : dot(now_.sum * shrink, rounded, rows);
  now_.peak = new_peak;
}

void OnlineSoftmax::load(const State& state) {
  now_.sum = p_.load(state.sum);
  now_.weight = p_.load(state.weight);
  now_.peak = p_.load(state.peak);
}

void OnlineSoftmax::merge(const std::vector<State>& states) {
  std::vector<Part> parts;
  for (const State& s : states) {
    parts.push_back({p_.load(s.sum), p_.load(s.weight), p_.load(s.peak)});
  }
  for (const Part& part : parts) merge(now_, part.sum, part.weight, part.peak);
}

void OnlineSoftmax::finish() {
  if (!options_.in_runs) return;
  merge(all_, sum(), weight(), now_.peak);
  now_.sum = all_.sum;
  now_.weight = all_.weight;
  now_.peak = all_.peak;
  options_.sums_by_product = false;
}

// Bits do not depend on whether a part comes from memory or from registers: there is one product
// beside the sum that a compiler may make one operation with it, and differences come before
// products. What had none before has the part's; a part that saw nothing adds nothing.
void OnlineSoftmax::merge(Part& all, const Value& sum, const Value& weight,
                          const Value& peak) const {
  double log2_scale = scale_ * std::numbers::log2e;
  Value new_peak = maximum(all.peak, peak);
  Value shrink = exp2((all.peak - new_peak) * log2_scale);
  Value other = exp2((peak - new_peak) * log2_scale);
  Value counts = other > p_.full(DType::kF32, 1, 1, 0), nothing = p_.full(DType::kF32, 1, 1, 0);
  all.weight = all.weight * shrink + where(counts, weight * other, nothing);
  all.sum = all.sum * shrink + where(counts, sum * other, nothing);
  all.peak = new_peak;
}

void OnlineSoftmax::store(const State& state) const {
  p_.store(state.sum, sum());
  p_.store(state.weight, weight());
  p_.store(state.peak, now_.peak);
}

Value OnlineSoftmax::log2_peak() const { return now_.peak * (scale_ * std::numbers::log2e); }

Value OnlineSoftmax::sum() const {
  return options_.sums_by_product ? columns(now_.sum, 0, options_.head_dim) : now_.sum;
}

Value OnlineSoftmax::weight() const {
  return options_.sums_by_product ? row_max(columns(now_.sum, options_.head_dim, kSumColumns))
                                  : now_.weight;  // all alike
}

Value OnlineSoftmax::mean() const {
  return options_.sums_by_product ? columns(now_.sum / weight(), 0, options_.head_dim)
                                  : now_.sum / now_.weight;
}

Value OnlineSoftmax::lse() const { return now_.peak * scale_ + log(weight()); }

}  // namespace stretto
