// When requests come and how long they are: drawn by lot, or as a trace recorded them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stretto {

struct Arrival {
  double at_s = 0;  // since the first one
  std::int64_t input_tokens = 1, output_tokens = 1;
};

// `count` arrivals, `rate` a second on average, with gaps of a Gamma distribution of this shape: 1
// is a Poisson process, less comes in bursts.
std::vector<double> gamma_arrivals(std::int64_t count, double rate, double burstiness,
                                   std::uint64_t seed);

// A CSV as BurstGPT (Wang et al., 2024) publishes it: a line of names, among them Timestamp
// (seconds), Request tokens and Response tokens, in any order; others are passed over. Arrivals by
// time, the first `count` of them, 0: all. Rows whose response failed (0 tokens) ask for one token.
// UserError naming file, line and column for what is not so.
std::vector<Arrival> read_trace(const std::string& path, std::int64_t count);

}  // namespace stretto
