// The seed of a test's random inputs: STRETTO_TEST_SEED, which ./check sets by the commit, so that
// a run can be repeated; else fresh in every run. A test prints it with SCOPED_TRACE.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <utility>
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

// A number of the seed's and the case's.
inline std::uint64_t case_draw(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325 ^ test_seed();  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15;  // the last letters change low bits alone
  return hash >> 32;
}

// Whether a case is among those that ./check runs for its commit: one of so many, drawn by the seed
// and the case's name.
inline bool is_drawn(std::string_view name, std::uint64_t one_of) {
  return every_case_is_drawn() || case_draw(name) % one_of == 0;
}

// Those of `all` that ./check runs for its commit, in their order: one of so many exactly, rounded
// up, so that no commit's run takes much longer than another's.
template <typename T>
std::vector<T> drawn_of(std::string_view suite, const std::vector<T>& all, std::size_t one_of) {
  if (every_case_is_drawn()) return all;
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < all.size(); ++i) {
    order.emplace_back(case_draw(std::string(suite) + " " + std::to_string(i)), i);
  }
  std::sort(order.begin(), order.end());
  order.resize((all.size() + one_of - 1) / one_of);
  std::vector<bool> drawn(all.size(), false);
  for (const auto& [draw, i] : order) drawn[i] = true;
  std::vector<T> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (drawn[i]) out.push_back(all[i]);
  }
  return out;
}

}  // namespace stretto
