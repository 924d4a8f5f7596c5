#include "stretto/ops/moe/even_routing.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "stretto/base/at.h"

namespace stretto {
namespace {

using predict::LaunchTables;
using predict::TableValues;
using Entries = std::vector<std::int32_t>;
using Extents = std::vector<std::int64_t>;

// The tokens of a launch: programs that have as many in every launch have no extent.
std::int64_t tokens_of(const Extents& extents, std::int64_t bound) {
  return extents.empty() ? bound : extents.front();
}

std::int32_t entry(std::int64_t value) { return static_cast<std::int32_t>(value); }

// [tokens, top_k]. Predictions are to be the same every time.
Entries chosen_by_lot(std::int64_t tokens, std::int64_t top_k, std::int64_t num_experts) {
  std::mt19937_64 random(1);
  Entries order(at(num_experts)), out;
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < top_k; ++j) {
      std::int64_t place = j % num_experts;  // fewer experts than a token has: some twice
      std::uniform_int_distribution<std::int64_t> other(place, num_experts - 1);
      std::swap(order[at(place)], order[at(other(random))]);
      out.push_back(order[at(place)]);
    }
  }
  return out;
}

// Rows expert by expert.
struct Placed {
  Entries offsets;  // the first row of each expert, and the end of the last
  Entries pairs;    // by row
};

// Pairs of experts first <= e < end.
Placed placed(const Entries& chosen, std::int64_t first, std::int64_t end) {
  Placed out{.offsets = {0}, .pairs = {}};
  std::vector<Entries> of_expert(at(end - first));
  for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
    if (chosen[pair] < first || chosen[pair] >= end) continue;
    of_expert[at(chosen[pair] - first)].push_back(static_cast<std::int32_t>(pair));
  }
  for (const Entries& pairs : of_expert) {
    out.pairs.insert(out.pairs.end(), pairs.begin(), pairs.end());
    out.offsets.push_back(entry(std::ssize(out.pairs)));
  }
  return out;
}

TableValues all_of(const TileTables& tables) {
  return {{"tiles_used", {tables.used}},
          {"tile_experts", tables.experts},
          {"tile_needs", tables.needs},
          {"row_tokens", tables.tokens},
          {"slots", tables.slots}};
}

std::vector<TableValues> on_all(int ranks, const TableValues& values) {
  return std::vector<TableValues>(at(ranks), values);
}

std::vector<TableValues> of_tiles(const ExpertTiles& tiles, const Entries& chosen, std::int64_t m,
                                  const ExpertTileOrder& order) {
  std::vector<TableValues> out;
  for (int rank = 0; rank < tiles.shape.world_size; ++rank) {
    out.push_back(all_of(tile_tables(tiles, rank, m, chosen, order)));
  }
  return out;
}

// As callers have them.
LaunchTables in_classes(const ExpertTiles& tiles, const LayerSizes& sizes) {
  return even_routing(tiles, default_order(tiles, Target::kCuda, sizes));
}

// Of ranks that have `share` tokens each, the last ones fewer: those of one, `length` entries.
Entries own_part(const Entries& chosen, std::int64_t first, std::int64_t length) {
  Entries out(at(length), 0);
  const std::int64_t all = std::ssize(chosen), from = std::min(first, all);
  const std::int64_t end = std::min(first + length, all);
  std::copy(chosen.begin() + from, chosen.begin() + end, out.begin());
  return out;
}

// What ranks know of each other's tokens (ep_send.h).
class Exchange {
 public:
  Exchange(const EpDesc& d, std::int64_t m)
      : d_(d),
        share_(ceil_div(m, std::int64_t{d.shape.world_size})),
        chosen_(chosen_by_lot(m, d.shape.top_k, d.shape.num_experts)) {}

  TableValues of_rank(int rank) const {
    TableValues out;
    out["experts"] = own_part(chosen_, rank * share_ * d_.shape.top_k, share_ * d_.shape.top_k);
    out["positions"] = positions(rank);
    Entries received = received_by(rank), slots(received.size(), -1), is_here;
    for (std::int64_t row = 0; row < d_.received_rows(); ++row) {
      is_here.push_back(received[at(row * d_.shape.top_k)] >= 0 ? 1 : 0);
    }
    Placed rows = placed(received, split_of(d_).first(rank), split_of(d_).end(rank));
    Entries tokens(received.size(), 0);
    for (std::size_t row = 0; row < rows.pairs.size(); ++row) {
      slots[at(rows.pairs[row])] = static_cast<std::int32_t>(row);
      tokens[row] = entry(rows.pairs[row] / d_.shape.top_k);
    }
    rows.offsets.resize(at(split_of(d_).share() + 1), rows.offsets.back());
    rows.offsets.push_back(entry(std::ssize(received)));
    out["recv_experts"] = std::move(received);
    out["is_here"] = std::move(is_here);  // of ep_send.h with slots in turn
    out["slots"] = std::move(slots);
    out["offsets"] = std::move(rows.offsets);
    out["tokens"] = std::move(tokens);
    return out;
  }

 private:
  std::int64_t end_of(int rank) const {  // the tokens of a rank
    return std::min((rank + 1) * share_, std::ssize(chosen_) / d_.shape.top_k);
  }
  bool goes(std::int64_t token, int rank) const {
    auto first = chosen_.begin() + token * d_.shape.top_k;
    ExpertSplit split = split_of(d_);
    return std::any_of(first, first + d_.shape.top_k,
                       [&](auto e) { return split.first(rank) <= e && e < split.end(rank); });
  }
  // Calls visit(token, its row in the rank's block) for the tokens from a rank that go to another.
  template <typename Visit>
  void for_each_sent(int from, int to, const Visit& visit) const {
    for (std::int64_t token = from * share_; token < end_of(from); ++token) {
      if (goes(token, to)) visit(token, token - from * share_);
    }
  }
  Entries positions(int rank) const {
    Entries out(at(d_.received_rows()), -1);  // [S, P]
    for (int to = 0; to < d_.shape.world_size; ++to) {
      for_each_sent(rank, to, [&](std::int64_t token, std::int64_t row) {
        out[at((token - rank * share_) * d_.shape.world_size + to)] = entry(row);
      });
    }
    return out;
  }
  Entries received_by(int rank) const {
    Entries out(at(d_.received_rows() * d_.shape.top_k), -1);  // [P * S, top_k]
    for (int from = 0; from < d_.shape.world_size; ++from) {
      for_each_sent(from, rank, [&](std::int64_t token, std::int64_t row) {
        std::copy_n(chosen_.begin() + token * d_.shape.top_k, d_.shape.top_k,
                    out.begin() + (from * d_.shape.rows_per_rank() + row) * d_.shape.top_k);
      });
    }
    return out;
  }

  const EpDesc& d_;
  std::int64_t share_;
  Entries chosen_;
};

}  // namespace

LaunchTables even_routing(const ExpertTablesDesc& d) {
  return [tiles = d.tiles](const Extents& extents) {
    TableValues values{
        {"experts", chosen_by_lot(extents.front(), tiles.shape.top_k, tiles.shape.num_experts)}};
    return on_all(tiles.shape.world_size, values);
  };
}

LaunchTables even_routing(const ExpertTiles& tiles, const ExpertTileOrder& order) {
  return [=](const Extents& extents) {
    std::int64_t m = tokens_of(extents, tiles.shape.m);
    return of_tiles(tiles, chosen_by_lot(m, tiles.shape.top_k, tiles.shape.num_experts), m, order);
  };
}

LaunchTables even_routing(const AgGroupedDesc& d, const AgGroupedConfig& c) {
  return in_classes(tiles_of(d, c),
                    {.ffn = d.swiglu ? d.n : ceil_div(d.n, std::int64_t{2}), .hidden = d.k});
}

LaunchTables even_routing(const GroupedRsDesc& d, const GroupedRsConfig& c) {
  return in_classes(tiles_of(d, c), {.ffn = d.k, .hidden = d.n});
}

LaunchTables even_routing(const MoeLayerDesc& d, const MoeLayerConfig& c) {
  return in_classes(tiles_of(d, c), {.ffn = d.ffn});
}

LaunchTables even_routing(const EpMoeLayerDesc& d, const EpMoeLayerConfig& c) {
  return [tiles = tiles_of(d, c), order = c.order](const Extents& extents) {
    std::int64_t m = extents.front(), share = ceil_div(m, std::int64_t{tiles.shape.world_size});
    Entries chosen = chosen_by_lot(m, tiles.shape.top_k, tiles.shape.num_experts);
    std::vector<TableValues> out = of_tiles(tiles, chosen, m, order);
    for (int rank = 0; rank < tiles.shape.world_size; ++rank) {
      std::int64_t pairs = share * tiles.shape.top_k;
      out[at(rank)]["experts"] = own_part(chosen, rank * pairs, pairs);
    }
    return out;
  };
}

LaunchTables even_routing(const GroupedDesc& d) {
  if (d.layout == RowLayout::kMasked) return {};
  return [d](const Extents& extents) {
    Placed rows =
        placed(chosen_by_lot(extents.front(), d.rows_per_token, d.num_experts), 0, d.num_experts);
    if (d.spare_rows) rows.offsets.push_back(rows.offsets.back());
    for (std::int32_t& pair : rows.pairs) pair = entry(pair / d.rows_per_token);
    return on_all(d.world_size, {{"offsets", rows.offsets}, {"tokens", rows.pairs}});
  };
}

LaunchTables even_routing(const CombineDesc& d) {
  return [d](const Extents& extents) {
    const std::int64_t num_experts = d.shape.num_experts;
    Placed rows =
        placed(chosen_by_lot(extents.front(), d.shape.top_k, num_experts), 0, num_experts);
    Entries slots(rows.pairs.size());
    for (std::size_t row = 0; row < rows.pairs.size(); ++row) {
      slots[at(rows.pairs[row])] = static_cast<std::int32_t>(row);
    }
    return on_all(d.shape.world_size, {{"offsets", rows.offsets}, {"slots", slots}});
  };
}

LaunchTables even_routing(const SortedRsDesc& d) {
  return even_routing(CombineDesc{.shape = d.shape()});
}

LaunchTables even_routing(const EpDesc& d) {
  return [d](const Extents& extents) {
    // Products count what was received as their tokens.
    Exchange exchange(d, std::min(tokens_of(extents, d.shape.m), d.shape.m));
    std::vector<TableValues> out;
    for (int rank = 0; rank < d.shape.world_size; ++rank) out.push_back(exchange.of_rank(rank));
    return out;
  };
}

}  // namespace stretto
