// Which signal a rank's counter belongs to, of signals whose counters follow each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

struct SignalPlace {
  std::size_t signal = 0;
  std::int64_t channel = 0;
};

// Signal s has the counters from offsets[s] on.
inline SignalPlace signal_place(const std::vector<std::int64_t>& offsets, std::int64_t counter) {
  auto after = std::upper_bound(offsets.begin(), offsets.end(), counter);
  STRETTO_CHECK(after != offsets.begin(), "a counter of no signal");
  return {static_cast<std::size_t>(after - offsets.begin() - 1), counter - *(after - 1)};
}

}  // namespace stretto
