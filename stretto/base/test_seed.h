// The seed of a test's random inputs: STRETTO_TEST_SEED, which ./check sets by the commit, so that
// a run can be repeated; else fresh in every run. A test prints it with SCOPED_TRACE.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace stretto {

inline std::uint64_t test_seed() {
  if (const char* text = std::getenv("STRETTO_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

// Without a seed, and with STRETTO_SOAK (./check --long).
inline bool every_case_is_drawn() {
  return std::getenv("STRETTO_TEST_SEED") == nullptr || std::getenv("STRETTO_SOAK") != nullptr;
}

// Whether a case is among those that ./check runs for its commit: one of so many, drawn by the seed
// and the case's name.
inline bool is_drawn(std::string_view name, std::uint64_t one_of) {
  if (every_case_is_drawn()) return true;
  std::uint64_t hash = 0xcbf29ce484222325 ^ test_seed();  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15;  // the last letters change low bits alone
  return (hash >> 32) % one_of == 0;
}

// Those of `all` of which `draws`(index) holds, one of all where it holds of none.
template <typename T, typename Draws>
std::vector<T> drawn_where(const std::vector<T>& all, const Draws& draws) {
  std::vector<T> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (draws(i)) out.push_back(all[i]);
  }
  if (out.empty() && !all.empty()) out.push_back(all[test_seed() % all.size()]);
  return out;
}

// Those of `all` that ./check runs for its commit, one of so many and one at least.
template <typename T>
std::vector<T> drawn_of(std::string_view suite, const std::vector<T>& all, std::uint64_t one_of) {
  return drawn_where(all, [&](std::size_t i) {
    return is_drawn(std::string(suite) + " " + std::to_string(i), one_of);
  });
}

}  // namespace stretto
