// What the comparison of exchange.h tries for a shape: configs around the default, each with its
// program.
#pragma once

#include <vector>

#include "bench/gpu/experts/exchange.h"
#include "stretto/ir/program.h"

namespace stretto::bench {

struct ExchangeCandidate {
  TriedConfig time;  // in words; not yet measured
  Program program;
};

// The default first, and with `quick` alone.
std::vector<ExchangeCandidate> exchange_candidates(const ExchangeShape& shape, bool quick);

}  // namespace stretto::bench
