// The seed of a test's random inputs: STRETTO_TEST_SEED, which ./check sets by the commit, so that
// a run can be repeated; else fresh in every run. A test prints it with SCOPED_TRACE.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace stretto {

inline std::uint64_t test_seed() {
  if (const char* text = std::getenv("STRETTO_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

}  // namespace stretto
