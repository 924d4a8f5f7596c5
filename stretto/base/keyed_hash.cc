#include "stretto/base/keyed_hash.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::size_t kBlock = 128, kDigest = 32, kRounds = 12;

// RFC 7693, 2.6: the fractions of the square roots of the first eight primes.
constexpr std::array<std::uint64_t, 8> kStart = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// RFC 7693, 2.7: the order in which each round reads the message; rounds 10 and 11 begin again.
constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static_assert(std::endian::native == std::endian::little);

void mix(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d, std::uint64_t x,
         std::uint64_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

// One block, padded with zeros, after which `total` bytes have been read.
void compress(std::array<std::uint64_t, 8>& state, std::string_view block, std::uint64_t total,
              bool last) {
  std::uint64_t m[16] = {}, v[16];
  std::memcpy(m, block.data(), block.size());
  for (std::size_t i = 0; i < 8; ++i) v[i] = state[i], v[i + 8] = kStart[i];
  v[12] ^= total;
  if (last) v[14] = ~v[14];
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::uint8_t* at = kOrder[round % 10];
    for (std::size_t i = 0; i < 4; ++i) {
      mix(v[i], v[4 + i], v[8 + i], v[12 + i], m[at[2 * i]], m[at[2 * i + 1]]);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], m[at[8 + 2 * i]],
          m[at[9 + 2 * i]]);
    }
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

std::string keyed_hash(std::string_view key, std::string_view bytes) {
  STRETTO_CHECK(key.size() <= 64, "BLAKE2b takes keys of up to 64 bytes");
  std::array<std::uint64_t, 8> state = kStart;
  state[0] ^= 0x01010000 ^ (key.size() << 8) ^ kDigest;
  std::uint64_t total = 0;
  if (!key.empty()) {
    std::string first(key);
    first.resize(kBlock);
    total = kBlock;
    compress(state, first, total, bytes.empty());
  }
  while (!bytes.empty() || total == 0) {
    std::string_view block = bytes.substr(0, kBlock);
    bytes.remove_prefix(block.size());
    total += block.size();
    compress(state, block, total, bytes.empty());
    if (bytes.empty()) break;
  }
  std::string digits;
  for (std::size_t i = 0; i < kDigest; ++i) {
    digits += fmt::format("{:02x}", (state[i / 8] >> (8 * (i % 8))) & 0xff);
  }
  return digits;
}

}  // namespace stretto
