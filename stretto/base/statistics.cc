#include "stretto/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

double of_sorted(const std::vector<double>& sorted, double at) {
  const double position = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = position - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

std::vector<double> sorted(std::vector<double> samples) {
  STRETTO_CHECK(!samples.empty(), "samples to summarize");
  std::sort(samples.begin(), samples.end());
  return samples;
}

}  // namespace

double quantile(std::vector<double> samples, double at) {
  STRETTO_CHECK(at >= 0 && at <= 1, "a part of the samples");
  return of_sorted(sorted(std::move(samples)), at);
}

double median(std::vector<double> samples) { return quantile(std::move(samples), 0.5); }

std::size_t interval_rank(std::size_t count) {
  const auto n = static_cast<double>(count);
  double below = 0;  // P(fewer than `rank` of the samples lie below the median)
  std::size_t rank = 0;
  for (; rank < (count + 1) / 2; ++rank) {
    const auto i = static_cast<double>(rank);
    const double log_ways = std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1);
    below += std::exp(log_ways - n * std::numbers::ln2);
    if (2 * below > 0.05) break;
  }
  return std::max<std::size_t>(rank, 1);
}

MedianInterval median_interval(std::vector<double> samples) {
  samples = sorted(std::move(samples));
  const std::size_t rank = interval_rank(samples.size());
  return {of_sorted(samples, 0.5), samples[rank - 1], samples[samples.size() - rank]};
}

MedianInterval paired_ratio(const std::vector<double>& theirs, const std::vector<double>& ours) {
  STRETTO_CHECK(theirs.size() == ours.size(), "samples in pairs");
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] / ours[i]);
  return median_interval(std::move(ratios));
}

}  // namespace stretto
