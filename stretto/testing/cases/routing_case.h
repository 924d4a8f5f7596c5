// Where the tokens of a case go: at random, and in every way that makes some tile, list or rank
// empty, full, or one row more or less than full.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/ops/moe/expert_tiles.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

enum class Routing : std::uint8_t {
  kRandom,
  kEven,          // as many rows for each expert
  kSkewed,        // many rows for some experts, none for others
  kOneExpert,     // all rows
  kLastExpert,    // all rows
  kOneRank,       // all rows to the experts of one rank
  kNextRank,      // every rank's tokens to the experts of the next rank that has some
  kOnePerExpert,  // a row for each expert, but for one that has the rest
  kTileRows,      // of a tile, one less, one more, expert by expert; the last one has the rest
};
inline constexpr std::uint64_t kNumRoutings = 9;
const char* name_of(Routing routing);

// Each of kNumRoutings consecutive seeds, from a multiple of it on, has another one. At random for
// seed 0.
Routing routing_of(std::uint64_t seed);

struct RoutedTokens {
  std::int64_t tokens = 0;  // of all ranks, each with ceil(tokens / P) of them
  std::int64_t top_k = 1;
  ExpertSplit split;
  std::int64_t tile_rows = 1;
  bool exchanged = false;  // tiles are of a rank's tokens for another rank, not of an expert's rows
};
RoutedTokens routed_tokens(const ExpertTiles& tiles, std::int64_t tokens);

// [tokens, top_k], by seed. A token may have an expert twice.
std::vector<std::int32_t> chosen_experts(const RoutedTokens& of, std::uint64_t seed);
std::vector<std::int32_t> chosen_experts(const RoutedTokens& of, Routing routing,
                                         std::uint64_t seed);
// The same where there are as many experts as top_k: the next expert in place of one that a token
// has already.
std::vector<std::int32_t> different_experts(const RoutedTokens& of, Routing routing,
                                            std::uint64_t seed);

// A case of every routing, all of one program at the shape's m rows, and one of no rows behind that
// whose rows all have one expert. `seed`: any.
std::vector<OpCase> cases_of_routings(const OperatorInfo& op, const OpShape& shape,
                                      std::uint64_t seed);

}  // namespace stretto
