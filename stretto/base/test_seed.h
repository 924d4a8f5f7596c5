// The seed of a test's random inputs: fresh in every run, or STRETTO_SEED where a failure is to be
// repeated. A test prints it with SCOPED_TRACE.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace stretto {

inline std::uint64_t test_seed() {
  if (const char* text = std::getenv("STRETTO_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

}  // namespace stretto
