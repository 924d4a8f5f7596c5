// Routings of tokens to experts that a seed draws: even, skewed, with experts that get nothing, and
// one-sided ones. What fused layers of experts are judged by beside the even routing (moe.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stretto::bench {

// The order in which a draw's rounds have them is by lot; each round has each.
enum class RoutingKind {
  kUniform,     // any expert as likely as any other
  kZipf,        // the i-th of them in an order by lot with weight i^-exponent
  kZipfOfRank,  // the same, each rank's tokens with an order of their own
  kEmpty,       // `used` of them, by lot, get all
  kOneExpert,   // every token has one of them, the others are any
  kSame,        // all tokens have the same ones
  kAtHome,      // a rank's tokens have experts of its share: the r-th of as many as there are ranks
  kOneSided,    // all tokens have experts of one rank's share
};
inline constexpr int kNumRoutingKinds = 8;
const char* name(RoutingKind kind);

struct Routing {
  RoutingKind kind = RoutingKind::kUniform;
  double exponent = 0;     // of kZipf and kZipfOfRank
  double used = 1;         // part of the experts, of kEmpty; at least as many as a token has
  std::uint64_t seed = 0;  // of the order of experts, and of every token's choices

  std::string to_string() const;  // "zipf 1.32", "empty 0.25", "at home"
};

// Of the same seed fewer are the first of more. Every kNumRoutingKinds in a row have each kind.
std::vector<Routing> drawn_routings(std::uint64_t seed, int count);

struct RoutedTokens {
  std::int64_t m = 0;  // of all ranks; each rank has m / world_size
  int world_size = 1;
  std::int64_t num_experts = 0, top_k = 0;
};
// [m, top_k]: the experts of every token, which differ. Where a rank's share has fewer than top_k
// the rest are any.
std::vector<std::int32_t> experts_of(const Routing& routing, const RoutedTokens& tokens);

}  // namespace stretto::bench
