// Hashes for tables whose keys come with requests. A number that only this process knows goes into
// them (a polynomial over it, Carter and Wegman, Universal Classes of Hash Functions, 1979), so
// that nobody outside can choose keys that meet in one place of a table. Never written anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace stretto {

class SecretHash {
 public:
  void add(std::uint64_t x) { value_ = reduced(reduced(value_ + reduced(x) + 1) * key()); }
  std::size_t value() const { return static_cast<std::size_t>(value_); }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

  static std::uint64_t reduced(Wide x) {
    const auto sum = static_cast<std::uint64_t>(x & kPrime) + static_cast<std::uint64_t>(x >> 61);
    return sum >= kPrime ? sum - kPrime : sum;
  }
  static Wide key() {
    static const std::uint64_t its = [] {
      std::random_device random;
      return (std::uint64_t{random()} << 32 | random()) % (kPrime - 2) + 2;
    }();
    return its;
  }

  std::uint64_t value_ = 0;
};

}  // namespace stretto
