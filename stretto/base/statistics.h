// What repeated measurements say: a median, its interval, quantiles. bench/gpu/results.py says the
// same of result files.
#pragma once

#include <cstddef>
#include <vector>

namespace stretto {

// The value that a part `at` of the samples does not exceed, 0 <= at <= 1, linear between two
// neighbours (Hyndman and Fan 1996, type 7). Of no samples: an internal error, as for all of these.
double quantile(std::vector<double> samples, double at);
// The middle one, of an even number the mean of the middle two.
double median(std::vector<double> samples);

// Which of `count` sorted samples, from 1 on, begins the interval of their distribution's median;
// the one as far from the end ends it. The narrowest that holds the median in 95 % and more of all
// cases, whatever the distribution (binomial, p = 1/2; Conover, Practical Nonparametric Statistics,
// 3.2). Below 6 samples none does: all of them, which hold it with 1 - 2^(1 - count).
std::size_t interval_rank(std::size_t count);

struct MedianInterval {
  double median = 0, low = 0, high = 0;
};
MedianInterval median_interval(std::vector<double> samples);

// theirs / ours, sample by sample: above 1 where ours is faster.
MedianInterval paired_ratio(const std::vector<double>& theirs, const std::vector<double>& ours);

}  // namespace stretto
