#include "stretto/engine/philox.h"

namespace stretto {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

std::uint64_t philox_word(std::uint64_t seed, std::uint64_t counter, std::uint32_t stream) {
  auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  auto high = [](std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); };
  auto bits = philox4x32({low(counter), high(counter), stream, 0}, {low(seed), high(seed)});
  return (std::uint64_t{bits[1]} << 32) | bits[0];
}

double philox_uniform(std::uint64_t seed, std::uint64_t counter, std::uint32_t stream) {
  return static_cast<double>(philox_word(seed, counter, stream) >> 11) * 0x1p-53;
}

}  // namespace stretto
