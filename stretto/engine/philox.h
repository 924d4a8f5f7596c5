// Philox4x32-10, a counter-based random number generator: a pure function of key and counter, so
// that draw n of a seed needs no state and is the same everywhere. Source: Salmon, Moraes, Dror,
// Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.2.
#pragma once

#include <array>
#include <cstdint>

namespace stretto {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

// Draw number `counter` of `seed`, 64 bits; of each `stream` another.
std::uint64_t philox_word(std::uint64_t seed, std::uint64_t counter, std::uint32_t stream = 0);

// Uniform in [0, 1) with 53 bits, from that word.
double philox_uniform(std::uint64_t seed, std::uint64_t counter, std::uint32_t stream = 0);

}  // namespace stretto
