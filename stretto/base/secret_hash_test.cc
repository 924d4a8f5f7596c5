// What a user would lose: a server that keys of one request keep busy, chosen so that all of them
// lie in one place of a table.
#include "stretto/base/secret_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace stretto {
namespace {

std::size_t hash_of(const std::string& text) {
  SecretHash out;
  for (char c : text) out.add(static_cast<unsigned char>(c));
  return out.value();
}

// As everybody can compute it.
std::uint64_t public_hash(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

TEST(SecretHash, KeysThatMeetUnderAPublicHashDoNot) {
  constexpr std::size_t kPlaces = 1109;  // of a table of the standard library for so many keys
  std::vector<std::string> keys;
  for (int i = 0; keys.size() < 1000; ++i) {
    std::string key = "key" + std::to_string(i);
    if (public_hash(key) % kPlaces == 7) keys.push_back(std::move(key));
  }
  std::unordered_map<std::size_t, int> in_place;
  int most = 0;
  for (const std::string& key : keys) most = std::max(most, ++in_place[hash_of(key) % kPlaces]);
  EXPECT_LT(most, 30);
}

TEST(SecretHash, IsOfTheWholeKey) {
  EXPECT_EQ(hash_of("abc"), hash_of("abc"));
  std::set<std::size_t> seen;
  for (const char* key : {"", "a", "b", "ab", "ba", "aa", "aaa", "abc", "acb"}) {
    seen.insert(hash_of(key));
  }
  EXPECT_EQ(seen.size(), 9u);
  SecretHash zero, zeros;  // a nought counts as well
  zero.add(0);
  zeros.add(0), zeros.add(0);
  EXPECT_NE(zero.value(), zeros.value());
}

}  // namespace
}  // namespace stretto
