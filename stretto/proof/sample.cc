#include "stretto/proof/sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <span>
#include <tuple>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/tile_map.h"
#include "stretto/proof/size_boundaries.h"

namespace stretto {
namespace {

// --- extents ---

std::vector<std::int64_t> thin(const std::set<std::int64_t>& all, std::size_t keep) {
  std::vector<std::int64_t> v(all.begin(), all.end());
  if (v.size() <= keep) return v;
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < keep; ++i) out.push_back(v[i * (v.size() - 1) / (keep - 1)]);
  return out;
}

// The boundaries, thinned to `keep`. The extremes come first, and where comparisons change, if
// those are few: what does not fit is cut off at the end.
std::vector<std::int64_t> candidates(const std::set<std::int64_t>& steps,
                                     const std::set<std::int64_t>& changes, std::int64_t bound,
                                     std::size_t keep) {
  std::set<std::int64_t> must, all;
  auto add = [&](std::set<std::int64_t>& to, std::int64_t v) {
    if (v >= 0 && v <= bound) to.insert(v);
  };
  for (std::int64_t v : {std::int64_t{0}, std::int64_t{1}, bound - 1, bound}) add(must, v);
  if (bound < static_cast<std::int64_t>(keep)) {
    for (std::int64_t v = 0; v <= bound; ++v) must.insert(v);
  }
  for (std::int64_t step : steps) {
    std::int64_t last = bound / step, stride = std::max<std::int64_t>(1, last / 4096);
    for (std::int64_t k = 1; k <= last; k += stride) {
      bool edge = k == 1 || k == last;
      for (std::int64_t v : {k * step - 1, k * step, k * step + 1}) add(edge ? must : all, v);
    }
  }
  bool few = 3 * changes.size() <= keep / 2;
  for (std::int64_t change : changes) {
    for (std::int64_t v : {change - 1, change, change + 1}) add(few ? must : all, v);
  }
  for (std::int64_t v : must) all.erase(v);
  std::size_t room = keep > must.size() + 2 ? keep - must.size() : 2;
  std::vector<std::int64_t> out;
  for (std::int64_t v : {bound, std::int64_t{0}, bound - 1, std::int64_t{1}}) {
    if (must.erase(v) != 0) out.push_back(v);
  }
  out.insert(out.end(), must.begin(), must.end());
  for (std::int64_t v : thin(all, room)) out.push_back(v);
  return out;
}

// --- tables ---

enum class Pattern { kLow, kHigh, kAscending, kCyclic, kRandom, kRandomPerRank, kNarrow };

const char* pattern_name(Pattern pattern) {
  constexpr const char* kNames[] = {"all low", "all high",        "ascending",          "cyclic",
                                    "random",  "random per rank", "close to each other"};
  return kNames[static_cast<int>(pattern)];
}

class PatternTables : public TableWitness {
 public:
  // `seed`: of what is drawn by lot.
  PatternTables(const Program& program, const std::vector<std::int64_t>& extents, Pattern pattern,
                std::uint64_t seed = 7)
      : program_(program), pattern_(pattern) {
    std::vector<std::int64_t> vars = initial_vars(program, 0, extents);
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      const Tensor& tensor = program.tensors[t];
      if (tensor.contract.kind == ContractKind::kNone) continue;
      for (const Expr& dim : tensor.shape) shapes_[static_cast<int>(t)].push_back(eval(dim, vars));
    }
    bool per_rank =
        pattern == Pattern::kRandomPerRank || (pattern == Pattern::kNarrow && seed % 2 == 1);
    for (int rank = 0; rank < program.world_size; ++rank) {
      vars[0] = rank;
      std::mt19937_64 random(per_rank ? 100 * (seed - 6) + at(rank) : seed);
      auto& tables = values_.emplace_back();
      for (const auto& [t, shape] : shapes_) {
        tables[t] = fill(program.tensors[at(t)].contract, vars, num_elements(shape), random);
      }
      for (const TileMap& map : program.maps) {
        if (map.table_driven) agree(program, map, vars, tables, random);
      }
    }
  }

  std::int64_t value(int rank, int tensor_idx, std::span<const std::int64_t> index) const override {
    auto shape = shapes_.find(tensor_idx);
    if (shape == shapes_.end()) throw Rejected("a table without a contract decides what happens");
    std::int64_t linear = 0;
    for (std::size_t d = 0; d < index.size(); ++d) {
      if (index[d] < 0 || index[d] >= shape->second[d]) {
        throw Rejected("a table is read outside its shape");
      }
      linear = linear * shape->second[d] + index[d];
    }
    return values_[at(rank)].at(tensor_idx)[at(linear)];
  }
  // "'t' = [0, 4], 'u' = [1] on rank 0, [0] on rank 1".
  std::string name() const override {
    std::string text;
    for (const auto& [t, shape] : shapes_) {
      text += fmt::format("{}'{}' = ", text.empty() ? "" : ", ", program_.tensors[at(t)].name);
      bool alike = std::ranges::all_of(
          values_, [&, t = t](const auto& tables) { return tables.at(t) == values_[0].at(t); });
      if (alike) {
        text += entries(0, t);
        continue;
      }
      for (std::size_t rank = 0; rank < values_.size(); ++rank) {
        text += fmt::format("{}{} on rank {}", rank == 0 ? "" : ", ", entries(rank, t), rank);
      }
    }
    return text;
  }

  // False where the table cannot be made so.
  bool make_so(const Program& program, int rank, const TableFact& fact) {
    if (fact.kind == FactKind::kCondition) return false;
    const Contract& contract = program.tensors[at(fact.table)].contract;
    Table& table = values_[at(rank)].at(fact.table);
    auto [it, is_new] = made_.try_emplace({rank, fact.table, fact.entry}, fact.value);
    if (!is_new) return it->second == fact.value;
    if (fact.kind == FactKind::kInhabited) {
      // All rows in one part.
      if (contract.kind != ContractKind::kPartition || table.empty()) return false;
      std::int64_t lo = table.front(), hi = table.back();
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(table.size()); ++i) {
        table[at(i)] = i <= fact.entry[0] ? lo : hi;
      }
      table.back() = hi;
      return hi - lo > fact.value;
    }
    std::int64_t linear = 0;
    const auto& shape = shapes_.at(fact.table);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (fact.entry[d] < 0 || fact.entry[d] >= shape[d]) return false;  // not at these sizes
      linear = linear * shape[d] + fact.entry[d];
    }
    if (contract.kind == ContractKind::kPermutation && fact.value >= 0) {
      auto other = std::find(table.begin(), table.end(), fact.value);
      if (other != table.end()) *other = table[at(linear)];
    }
    table[at(linear)] = fact.value;
    return true;
  }

 private:
  using Table = std::vector<std::int64_t>;

  // Of long ones the first, those that somebody asked for, and which pattern goes on.
  std::string entries(std::size_t rank, int tensor_idx) const {
    constexpr std::size_t kFewNamed = 8, kMostNamed = 64;
    const Table& table = values_[rank].at(tensor_idx);
    bool equal = std::ranges::all_of(table, [&](std::int64_t v) { return v == table[0]; });
    if (equal && table.size() > kFewNamed) {
      return fmt::format("[{}, ...: {} entries, all alike]", table[0], table.size());
    }
    if (table.size() <= kMostNamed) return fmt::format("[{}]", fmt::join(table, ", "));
    std::string text = fmt::format("[{}, ...", fmt::join(std::span(table).first(kMostNamed), ", "));
    for (const auto& [what, value] : made_) {
      const auto& [of_rank, of_table, entry] = what;
      if (of_table != tensor_idx || at(of_rank) != rank) continue;
      text += fmt::format(", {} at [{}]", value, fmt::join(entry, ", "));
    }
    return fmt::format("{}: {} entries, {}]", text, table.size(), pattern_name(pattern_));
  }

  Table fill(const Contract& contract, std::span<const std::int64_t> vars, std::int64_t n,
             std::mt19937_64& random) const {
    std::int64_t lo = eval(contract.lo, vars), hi = std::max(lo + 1, eval(contract.hi, vars));
    bool narrow = pattern_ == Pattern::kNarrow && contract.kind != ContractKind::kPermutation &&
                  contract.kind != ContractKind::kPartition;
    if (narrow) {
      constexpr std::array<std::int64_t, 6> kWidths = {1, 2, 3, 4, 8, 16};
      std::int64_t width = kWidths[random() % kWidths.size()];
      lo = std::uniform_int_distribution<std::int64_t>(lo, hi - 1)(random);
      hi = std::min(hi, lo + width);
    }
    Table out(at(n));
    for (std::int64_t i = 0; i < n; ++i) out[at(i)] = one(contract.kind, lo, hi, i, n, random);
    // Rows that count from the other end meet those that do not.
    bool mirrors = narrow && random() % 2 == 0;
    std::int64_t ends = eval(contract.lo, vars) + eval(contract.hi, vars) - 1;
    for (std::int64_t i = 0; i < n && mirrors; ++i) {
      if (random() % 2 == 0) out[at(i)] = ends - out[at(i)];
    }
    if (contract.kind == ContractKind::kAscending || contract.kind == ContractKind::kPartition) {
      std::sort(out.begin(), out.end());
    }
    if (contract.kind == ContractKind::kPartition && n > 0) {
      out.front() = lo;
      out.back() = hi - 1;
    }
    if (contract.kind == ContractKind::kPermutation && pattern_ == Pattern::kNarrow) {
      // Of more values than entries not always the lowest.
      std::int64_t first = std::max<std::int64_t>(lo, 0), values = std::max(n, hi - first);
      std::int64_t offset = std::uniform_int_distribution<std::int64_t>(0, values - 1)(random);
      for (std::int64_t& v : out) v = v < first ? v : first + (v - first + offset) % values;
    }
    if (contract.kind == ContractKind::kPermutation && shuffles()) {
      std::shuffle(out.begin(), out.end(), random);
    }
    return out;
  }

  bool shuffles() const {
    return pattern_ == Pattern::kRandom || pattern_ == Pattern::kRandomPerRank ||
           pattern_ == Pattern::kNarrow;
  }

  std::int64_t one(ContractKind kind, std::int64_t lo, std::int64_t hi, std::int64_t i,
                   std::int64_t n, std::mt19937_64& random) const {
    if (kind == ContractKind::kPermutation) {
      // Nowhere where there is no other value left, and all of them in one pattern.
      std::int64_t first = std::max<std::int64_t>(lo, 0);
      std::int64_t value = pattern_ == Pattern::kHigh ? hi - 1 - i : first + i;
      bool nowhere = value < first || value >= hi || pattern_ == Pattern::kLow;
      return nowhere && lo < 0 ? lo : std::clamp(value, first, std::max(first, hi - 1));
    }
    switch (pattern_) {
      case Pattern::kLow:
        return lo;
      case Pattern::kHigh:
        return hi - 1;
      case Pattern::kAscending:
        return lo + i * (hi - lo) / std::max<std::int64_t>(1, n);
      case Pattern::kCyclic:
        return lo + i % (hi - lo);
      default:
        return std::uniform_int_distribution<std::int64_t>(lo, hi - 1)(random);
    }
  }

  // Rows [low, high) ascending without overlap, and as many tiles per channel as it says.
  void agree(const Program& program, const TileMap& map, std::span<const std::int64_t> vars,
             std::map<int, Table>& tables, std::mt19937_64& random) const {
    if (tables.count(map.low) != 0 && tables.count(map.high) != 0 &&
        !rows_are_partition(program, map)) {
      std::int64_t rows = eval(program.tensors[at(map.tensor)].shape[0], vars);
      Table cuts;
      for (std::int64_t i = 0; i < map.num_tiles; ++i) {
        cuts.push_back(one(ContractKind::kRange, 0, rows + 1, i, map.num_tiles, random));
      }
      std::sort(cuts.begin(), cuts.end());
      for (std::int64_t i = 0; i < map.num_tiles; ++i) {
        tables[map.low][at(i)] = i == 0 ? 0 : cuts[at(i - 1)];
        tables[map.high][at(i)] = i + 1 == map.num_tiles ? rows : cuts[at(i)];
      }
    }
    if (tables.count(map.channel) == 0 || tables.count(map.count) == 0) return;
    Table& count = tables[map.count];
    std::fill(count.begin(), count.end(), 0);
    for (std::int64_t c : tables[map.channel]) {
      if (c >= 0 && c < static_cast<std::int64_t>(count.size())) ++count[at(c)];
    }
  }

  const Program& program_;
  Pattern pattern_;
  std::map<int, std::vector<std::int64_t>> shapes_;
  std::vector<std::map<int, Table>> values_;  // per rank
  std::map<std::tuple<int, int, std::vector<std::int64_t>>, std::int64_t> made_;
};

}  // namespace

std::optional<Samples> all_extents(const Program& program, std::size_t most,
                                   const std::vector<bool>& at_bound) {
  std::vector<std::int64_t> bounds = extent_bounds(program);
  auto fixed = [&](std::size_t i) { return i < at_bound.size() && at_bound[i]; };
  std::size_t count = 1;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (fixed(i)) continue;
    if (at(bounds[i]) >= most / count) return {};
    count *= at(bounds[i]) + 1;
  }
  Samples all = {bounds};
  for (std::size_t i = 0; i + 1 < count; ++i) {  // the last is the bounds
    std::size_t rest = i;
    auto& one = all.emplace_back();
    for (std::size_t e = 0; e < bounds.size(); ++e) {
      std::size_t values = fixed(e) ? 1 : at(bounds[e]) + 1;
      one.push_back(fixed(e) ? bounds[e] : static_cast<std::int64_t>(rest % values));
      rest /= values;
    }
  }
  return all;
}

Samples sample_extents(const Program& program, int max_samples) {
  std::vector<std::int64_t> bounds = extent_bounds(program);
  Samples out = {bounds};
  if (bounds.empty()) return out;
  std::set<std::int64_t> steps = size_steps(program);
  std::vector<std::set<std::int64_t>> boundaries = size_boundaries(program);
  std::set<std::vector<std::int64_t>> seen = {bounds};
  auto add = [&](const std::vector<std::int64_t>& v) {
    if (static_cast<int>(out.size()) < max_samples && seen.insert(v).second) out.push_back(v);
  };
  Samples values;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    values.push_back(candidates(steps, boundaries[i], bounds[i],
                                at(max_samples) / (bounds.size() == 1 ? 1 : 2 * bounds.size())));
  }
  add(std::vector<std::int64_t>(bounds.size(), 0));
  std::vector<std::int64_t> ones = bounds;
  for (std::int64_t& v : ones) v = std::min<std::int64_t>(v, 1);
  add(ones);
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    for (std::int64_t v : values[i]) {
      std::vector<std::int64_t> others = bounds;
      others[i] = v;
      add(others);
    }
  }
  std::mt19937_64 random(1);
  for (int tries = 0; bounds.size() > 1 && tries < 4 * max_samples; ++tries) {
    std::vector<std::int64_t> v;
    for (const auto& of_var : values) v.push_back(of_var[random() % of_var.size()]);
    add(v);
  }
  return out;
}

std::vector<std::unique_ptr<TableWitness>> sample_tables(const Program& program,
                                                         const std::vector<std::int64_t>& extents) {
  std::vector<std::unique_ptr<TableWitness>> out;
  for (Pattern p : {Pattern::kLow, Pattern::kHigh, Pattern::kAscending, Pattern::kCyclic,
                    Pattern::kRandom, Pattern::kRandomPerRank}) {
    out.push_back(std::make_unique<PatternTables>(program, extents, p));
  }
  return out;
}

std::unique_ptr<TableWitness> highest_tables(const Program& program,
                                             const std::vector<std::int64_t>& extents) {
  return std::make_unique<PatternTables>(program, extents, Pattern::kHigh);
}

std::unique_ptr<TableWitness> narrow_tables(const Program& program,
                                            const std::vector<std::int64_t>& extents,
                                            std::uint64_t seed) {
  return std::make_unique<PatternTables>(program, extents, Pattern::kNarrow, 7 + seed);
}

std::unique_ptr<TableWitness> table_with(const Program& program,
                                         const std::vector<std::int64_t>& extents,
                                         const std::vector<RankChoice>& wanted, bool shuffled) {
  auto tables = std::make_unique<PatternTables>(program, extents,
                                                shuffled ? Pattern::kRandomPerRank : Pattern::kLow);
  for (const RankChoice& one : wanted) {
    for (const TableFact& fact : one.facts) {
      if (!tables->make_so(program, one.rank, fact)) return nullptr;
    }
  }
  return tables;
}

}  // namespace stretto
