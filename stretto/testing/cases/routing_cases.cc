#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/routing_case.h"

namespace stretto {
namespace {

// Experts first <= e < end.
struct Range {
  std::int64_t first, end;
};

// The experts of a rank, or of the next one that has some. Where all ranks have parts of the same
// experts, one of these.
Range experts_near(const ExpertSplit& split, int rank) {
  if (split.groups == 1) {
    const std::int64_t expert = rank % split.num_experts;
    return {expert, expert + 1};
  }
  for (;; rank = (rank + 1) % split.world_size) {
    if (split.first(rank) < split.end(rank)) return {split.first(rank), split.end(rank)};
  }
}

class Chooser {
 public:
  Chooser(const RoutedTokens& of, std::uint64_t seed)
      : of_(of), random_(seed), pairs_(of.tokens * of.top_k), chosen_(at(pairs_)) {}

  std::vector<std::int32_t> choose(Routing routing) {
    const std::int64_t experts = of_.split.num_experts;
    const auto ranks = static_cast<std::int64_t>(of_.split.world_size);
    switch (routing) {
      case Routing::kRandom:
        fill(0, pairs_, {0, experts});
        break;
      case Routing::kEven:
        for (std::int64_t i = 0; i < pairs_; ++i) set(i, i % experts);
        break;
      case Routing::kSkewed:
        skew();
        break;
      case Routing::kOneExpert: {
        const std::int64_t expert = below(experts);
        fill(0, pairs_, {expert, expert + 1});
        break;
      }
      case Routing::kLastExpert:
        fill(0, pairs_, {experts - 1, experts});
        break;
      case Routing::kOneRank:
        fill(0, pairs_, experts_near(of_.split, static_cast<int>(below(ranks))));
        break;
      case Routing::kNextRank: {
        const std::int64_t share = ceil_div(of_.tokens, ranks) * of_.top_k;
        for (std::int64_t r = 0; r < ranks; ++r) {
          fill(r * share, (r + 1) * share,
               experts_near(of_.split, static_cast<int>((r + 1) % ranks)));
        }
        break;
      }
      case Routing::kOnePerExpert:
        deal([](std::int64_t) { return 1; }, below(experts));
        break;
      case Routing::kTileRows:
        if (of_.exchanged) return exchange();
        deal([&](std::int64_t expert) { return near_tile(expert); }, experts - 1);
        break;
    }
    return std::move(chosen_);
  }

 private:
  std::int64_t below(std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random_);
  }
  void set(std::int64_t pair, std::int64_t expert) {
    chosen_[at(pair)] = static_cast<std::int32_t>(expert);
  }
  void fill(std::int64_t first, std::int64_t end, Range experts) {
    for (std::int64_t i = first; i < std::min(end, pairs_); ++i) {
      set(i, experts.first + below(experts.end - experts.first));
    }
  }

  std::int64_t near_tile(std::int64_t i) const {
    const std::int64_t rows[] = {of_.tile_rows, of_.tile_rows - 1, of_.tile_rows + 1};
    return rows[i % 3];
  }

  // So many tokens of each rank for each rank, the rest for the last one.
  std::vector<std::int32_t> exchange() {
    const std::int64_t ranks = of_.split.world_size, share = ceil_div(of_.tokens, ranks);
    for (std::int64_t from = 0; from < ranks; ++from) {
      std::int64_t next = from * share;
      const std::int64_t end = std::min(next + share, of_.tokens);
      for (std::int64_t to = 0; to < ranks && next < end; ++to) {
        const std::int64_t count = to + 1 < ranks ? near_tile(from + to) : end - next;
        const std::int64_t until = std::min(next + count, end);
        fill(next * of_.top_k, until * of_.top_k, experts_near(of_.split, static_cast<int>(to)));
        next = until;
      }
    }
    return std::move(chosen_);
  }

  void skew() {
    std::vector<double> weights(at(of_.split.num_experts));
    for (double& w : weights) w = std::max<double>(0, static_cast<double>(below(9)) - 4);
    weights[at(below(of_.split.num_experts))] = 8;
    std::discrete_distribution<std::int64_t> among(weights.begin(), weights.end());
    for (std::int64_t i = 0; i < pairs_; ++i) set(i, among(random_));
  }

  // rows_of(e) rows for every expert while there are some, what is left for `rest`; any tokens'.
  template <typename RowsOf>
  void deal(const RowsOf& rows_of, std::int64_t rest) {
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < of_.split.num_experts; ++e) {
      for (std::int64_t i = 0; i < rows_of(e) && next < pairs_; ++i) set(next++, e);
    }
    while (next < pairs_) set(next++, rest);
    std::shuffle(chosen_.begin(), chosen_.end(), random_);
  }

  const RoutedTokens& of_;
  std::mt19937_64 random_;
  std::int64_t pairs_;
  std::vector<std::int32_t> chosen_;
};

}  // namespace

const char* name_of(Routing routing) {
  constexpr std::array<const char*, kNumRoutings> kNames{
      "random",   "even",      "skewed",         "one_expert", "last_expert",
      "one_rank", "next_rank", "one_per_expert", "tile_rows"};
  return kNames.at(static_cast<std::size_t>(routing));
}

Routing routing_of(std::uint64_t seed) {
  // Shifted from one round to the next: sizes and configs go by the remainders of seeds, too.
  return static_cast<Routing>((seed + seed / kNumRoutings) % kNumRoutings);
}

RoutedTokens routed_tokens(const ExpertTiles& tiles, std::int64_t tokens) {
  return {.tokens = tokens,
          .top_k = tiles.shape.top_k,
          .split = tiles.split(),
          .tile_rows = tiles.tile_rows};
}

std::vector<std::int32_t> chosen_experts(const RoutedTokens& of, Routing routing,
                                         std::uint64_t seed) {
  return Chooser(of, seed).choose(routing);
}

std::vector<std::int32_t> chosen_experts(const RoutedTokens& of, std::uint64_t seed) {
  return chosen_experts(of, routing_of(seed), seed);
}

std::vector<std::int32_t> different_experts(const RoutedTokens& of, Routing routing,
                                            std::uint64_t seed) {
  STRETTO_CHECK(of.top_k <= of.split.num_experts, "as many experts as a token takes");
  std::vector<std::int32_t> chosen = chosen_experts(of, routing, seed);
  for (auto first = chosen.begin(); first != chosen.end(); first += of.top_k) {
    for (auto e = first; e != first + of.top_k; ++e) {
      while (std::find(first, e, *e) != e) {
        *e = static_cast<std::int32_t>((*e + 1) % of.split.num_experts);
      }
    }
  }
  return chosen;
}

std::vector<OpCase> cases_of_routings(const OperatorInfo& op, const OpShape& shape,
                                      std::uint64_t seed) {
  std::vector<OpCase> cases;
  const std::uint64_t first = seed / kNumRoutings * kNumRoutings;
  for (std::uint64_t i = first; i < first + kNumRoutings; ++i) {
    OpShape at_rows = shape;
    at_rows.rows = shape.m;
    cases.push_back(make_case(op, at_rows, i));
    cases.back().config += fmt::format(" | {}", name_of(routing_of(i)));
    if (routing_of(i) != Routing::kLastExpert || cases.back().extents.empty()) continue;
    at_rows.rows = 0;
    cases.push_back(make_case(op, at_rows, i));
  }
  return cases;
}

}  // namespace stretto
