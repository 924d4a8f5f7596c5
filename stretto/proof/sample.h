// Where the proof looks when sizes and tables are given at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/proof/expand.h"
#include "stretto/proof/table_choices.h"

namespace stretto {

// Values for the extents and scalars, in declaration order; the first is the bounds.
using Samples = std::vector<std::vector<std::int64_t>>;

// All there are, where that is no more than `most`; `at_bound`: those whose bound is looked at
// alone.
std::optional<Samples> all_extents(const Program& program, std::size_t most,
                                   const std::vector<bool>& at_bound = {});

// Where a mistake is likely to show, of sizes that are too many to look at all: 0, 1, the bound,
// every tile and rank boundary +-1 and where comparisons change (size_boundaries.h), for each
// extent with the others at their bounds, and random combinations; boundaries in the middle are
// thinned out evenly.
Samples sample_extents(const Program& program, int max_samples);

// Tables that keep the contracts: all low, all high, ascending, cyclic, random alike on all ranks,
// random per rank; permutations forwards, backwards and shuffled. Tables of one tile map agree with
// each other: ascending rows, counts that count.
std::vector<std::unique_ptr<TableWitness>> sample_tables(const Program& program,
                                                         const std::vector<std::int64_t>& extents);

// The one of them whose values are the highest that the contracts allow.
std::unique_ptr<TableWitness> highest_tables(const Program& program,
                                             const std::vector<std::int64_t>& extents);

// By lot, the values of each table close to each other, so that rows which go by several entries
// meet more often than in large tables; every other seed gives each rank its own.
std::unique_ptr<TableWitness> narrow_tables(const Program& program,
                                            const std::vector<std::int64_t>& extents,
                                            std::uint64_t seed);

// As one of those, but with what each choice asks of its rank's tables: nullptr where they
// contradict each other, or ask for what is not known how to make.
struct RankChoice {
  int rank = 0;
  std::vector<TableFact> facts;
};
std::unique_ptr<TableWitness> table_with(const Program& program,
                                         const std::vector<std::int64_t>& extents,
                                         const std::vector<RankChoice>& wanted, bool shuffled);

}  // namespace stretto
