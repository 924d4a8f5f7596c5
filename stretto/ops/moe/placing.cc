#include "stretto/ops/moe/placing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

void check_placing_tiles(const char* op, const PlacingTiles& tiles) {
  check_sizes(op, {{"part_tokens", tiles.part_tokens},
                   {"count_tokens", tiles.count_tokens},
                   {"count_experts", tiles.count_experts},
                   {"add_counts", tiles.add_counts},
                   {"tile_slots", tiles.tile_slots}});
  if (tiles.part_tokens % tiles.count_tokens != 0) {
    throw UserError(fmt::format("{}: count_tokens is {}, must divide part_tokens = {}", op,
                                tiles.count_tokens, tiles.part_tokens));
  }
}

Placing::Placing(ProgramBuilder& p, PlacingDesc desc)
    : p_(p),
      d_(std::move(desc)),
      parts_(ceil_div(d_.most_tokens, d_.tiles.part_tokens)),
      blocks_of_part_(d_.tiles.part_tokens / d_.tiles.count_tokens),
      look_ups_(ceil_div(d_.most_tokens * d_.top_k, d_.tiles.tile_slots)) {
  const std::int64_t experts = d_.num_experts, pairs = pairs_of_part();
  auto buffer = [&](const char* name, std::vector<Index> shape) {
    return p.buffer(name, DType::kI32, std::move(shape));
  };
  counts_ = buffer("counts", {parts_, 1, experts});
  ranks_ = buffer("ranks", {parts_, d_.top_k, d_.tiles.part_tokens});
  columns_ = buffer("columns", {parts_, kColumns, experts});
  begins_ = buffer("begins", {parts_ * experts, 1});
  shifts_ = buffer("shifts", {parts_ * experts, 1});
  scattered_ = buffer("scattered", {parts_, pairs, 1});
  sorted_ = buffer("sorted", {parts_ * pairs, 1});
  if (d_.some_elsewhere) placed_rows_ = buffer("placed_rows", {1, 1});
  if (!alone()) counted_ = p.signal("counted", 1);
  placed_ = p.signal("placed", 1);
}

void Placing::count(const Index& index, const std::function<void(const Index& part)>& ready) {
  Index part = p_.let("part", index / blocks_of_part_);
  Index block = p_.let("block", index % blocks_of_part_);
  ready(part);
  count_block(part, block);
  if (!alone()) return p_.notify(counted_[0], p_.rank());
  p_.worker_fence();
  place_part(part);
}

void Placing::place(const Index& index) {
  std::int64_t parts = num_tiles() - look_ups_;
  if (parts > 0) {
    p_.when(index < parts, [&] {
      p_.wait(counted_[0], num_blocks());
      place_part(p_.let("part", index));
    });
  }
  p_.when(index >= parts, [&] { look_up((index - parts) * d_.tiles.tile_slots); });
}

Slice Placing::of_part(const TensorRef& table, const Index& part) const {
  Slice all = table.tile({part * d_.num_experts, 0}, 1, d_.num_experts);
  return all.rows_along(1).cols_along(0);
}

// Of `count` experts from `first` on: [count, 1].
Slice Placing::kept(const Index& part, Column column, const Index& first,
                    std::int64_t count) const {
  return columns_.tile({part, column, first}, count, 1).rows_along(2).cols_along(1);
}

// --- every part by itself ---

// The j-th experts of `count` tokens, [count, 1] each. All loads are under way before the first is
// used.
std::vector<Value> Placing::load_experts(const Index& first, std::int64_t count) {
  std::vector<Value> experts;
  for (std::int64_t j = 0; j < d_.top_k; ++j) {
    experts.push_back(p_.load(d_.experts.tile({first, j}, count, 1)));
  }
  if (!d_.some_elsewhere) return experts;
  for (Value& expert : experts) expert = expert - number(d_.first_expert);
  return experts;
}

// Those of a block, -1 of those that are none.
std::vector<Value> Placing::experts_of(const Index& first) {
  std::vector<Value> experts = load_experts(first, d_.tiles.count_tokens);
  Value exists = p_.iota_rows(first, d_.tiles.count_tokens) < number(d_.tokens);
  for (Value& expert : experts) {
    Value is_here = d_.some_elsewhere ? exists && expert < number(d_.num_experts) : exists;
    expert = where(is_here, expert, number(-1));
  }
  return experts;
}

// bf16 [count_tokens, count_experts]: 1 where a token has the expert.
Value Placing::chosen(const std::vector<Value>& experts, const Value& columns) {
  Value ones = p_.zeros(DType::kF32, d_.tiles.count_tokens, d_.tiles.count_experts);
  for (const Value& expert : experts) {
    ones = where(columns == expert, p_.full(DType::kF32, 1, 1, 1), ones);
  }
  return cast(ones, DType::kBF16);
}

// Pairs of tokens up to each are products with ones: of the blocks before with nothing else, of the
// own one with a triangle. Exact, as sums of ones are in f32. A pair is its own predecessor, too.
void Placing::count_block(const Index& part, const Index& block) {
  const std::int64_t tokens = d_.tiles.count_tokens, width = d_.tiles.count_experts;
  Index begin = part * d_.tiles.part_tokens;
  std::vector<Value> own = experts_of(begin + block * tokens), rank;
  for (std::size_t j = 0; j < own.size(); ++j) rank.push_back(p_.full(DType::kF32, tokens, 1, -1));
  p_.loop(ceil_div(d_.num_experts, width), [&](const Index& i) {
    Value columns = p_.iota_cols(i * width, width), through = p_.zeros(DType::kF32, tokens, width);
    p_.loop(block, [&](const Index& other) {
      Value all = chosen(experts_of(begin + other * tokens), columns);
      through = dot(through, p_.full(DType::kBF16, tokens, tokens, 1), all);
    });
    Value triangle = cast(p_.iota_cols(0, tokens) <= p_.iota_rows(0, tokens), DType::kBF16);
    through = dot(through, triangle, chosen(own, columns));
    // Only the last row of the box is there, which has all pairs: no sum over a column's threads.
    p_.when(block == blocks_of_part_ - 1, [&] {
      p_.store(counts_.tile({part, 1 - tokens, i * width}, tokens, width),
               cast(through, DType::kI32));
    });
    for (std::size_t j = 0; j < own.size(); ++j) {
      Value of_pair = where(columns == own[j], through, p_.full(DType::kF32, 1, 1, 0));
      rank[j] = rank[j] + row_sum(of_pair);
    }
  });
  for (std::size_t j = 0; j < own.size(); ++j) {
    Slice to = ranks_.tile({part, static_cast<std::int64_t>(j), block * tokens}, tokens, 1);
    p_.store(to.rows_along(2).cols_along(1), cast(rank[j], DType::kI32));
  }
  // All of scattered_ is written before some of it is: rows of pairs are chosen at run time.
  const std::int64_t pairs = tokens * d_.top_k;
  p_.store(scattered_.tile({part, block * pairs, 0}, 1, pairs).rows_along(2).cols_along(1),
           zeros(1, pairs));
}

// --- every part with the counts of all ---

// Threads share a row by powers of two.
std::int64_t Placing::rows_at_once() const {
  auto row = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(d_.num_experts)));
  return std::max<std::int64_t>(d_.tiles.add_counts / row, 1);
}

void Placing::place_part(const Index& part) {
  const std::int64_t experts = d_.num_experts;
  Pairs pairs = load_pairs(part);
  Value own = p_.load(counts_.tile({part, 0, 0}, 1, experts));
  Totals totals = add_up(part), lower = sums_before(part, own, totals.all);
  Value begins = lower.all + totals.before, shifts = begins - lower.before;
  p_.store(columns_.tile({part, kBegin, 0}, 1, experts), begins);
  p_.store(columns_.tile({part, kShift, 0}, 1, experts), shifts);
  p_.store(of_part(begins_, part), begins);
  p_.store(of_part(shifts_, part), shifts);
  p_.when(part == 0, [&] {
    p_.store(d_.offsets.tile({0}, 1, 1), zeros(1, 1));
    p_.store(d_.offsets.tile({1}, 1, experts), lower.all + totals.all);
    if (d_.some_elsewhere) p_.store(placed_rows_.tile({0, 0}, 1, 1), row_sum(totals.all));
  });
  p_.worker_fence();
  place_pairs(part, pairs);
  p_.notify(placed_[0], p_.rank());
}

Placing::Totals Placing::add_up(const Index& part) {
  const std::int64_t rows = std::min(rows_at_once(), parts_), experts = d_.num_experts;
  Value before = zeros(rows, experts), all = zeros(rows, experts);
  p_.loop(ceil_div(Index(parts_), rows), [&](const Index& i) {
    Value some = p_.load(counts_.tile({i * rows, 0, 0}, rows, experts).rows_along(0));
    all = all + some;
    before = before + where(p_.iota_rows(i * rows, rows) < number(part), some, number(0));
  });
  return {.before = col_sum(before), .all = col_sum(all)};
}

// Of the part's pairs and of all, those of the experts before each, some experts at a time.
Placing::Totals Placing::sums_before(const Index& part, const Value& own, const Value& all) {
  const std::int64_t experts = d_.num_experts, rows = std::min(rows_at_once(), experts);
  p_.store(columns_.tile({part, kOwn, 0}, 1, experts), own);
  p_.store(columns_.tile({part, kAll, 0}, 1, experts), all);
  p_.worker_fence();
  Value of_part = zeros(rows, experts), of_all = zeros(rows, experts);
  p_.loop(ceil_div(Index(experts), rows), [&](const Index& i) {
    Value some = p_.load(kept(part, kOwn, i * rows, rows));
    Value some_of_all = p_.load(kept(part, kAll, i * rows, rows));
    Value lower = p_.iota_rows(i * rows, rows) < p_.iota_cols(0, experts);
    of_part = of_part + where(lower, some, number(0));
    of_all = of_all + where(lower, some_of_all, number(0));
  });
  return {.before = col_sum(of_part), .all = col_sum(of_all)};
}

Placing::Pairs Placing::load_pairs(const Index& part) {
  const std::int64_t tokens = d_.tiles.part_tokens;
  Pairs pairs{.expert = load_experts(part * tokens, tokens), .rank = {}};
  for (std::int64_t j = 0; j < d_.top_k; ++j) {
    Slice ranks = ranks_.tile({part, j, 0}, tokens, 1);
    pairs.rank.push_back(p_.load(ranks.rows_along(2).cols_along(1)));
  }
  return pairs;
}

// All loads are under way before the first is used.
void Placing::place_pairs(const Index& part, const Pairs& pairs) {
  const std::int64_t tokens = d_.tiles.part_tokens, size = pairs_of_part();
  std::vector<Value> entries, begin, shift;
  for (std::size_t j = 0; j < pairs.rank.size(); ++j) {
    entries.push_back(where(pairs.rank[j] >= number(0), pairs.expert[j], number(-1)));
  }
  for (const Value& entry : entries) {
    begin.push_back(p_.load_rows(kept(part, kBegin, 0, tokens), entry));
    shift.push_back(p_.load_rows(kept(part, kShift, 0, tokens), entry));
  }
  Index first = part * tokens;
  Value token = p_.iota_rows(first, tokens);
  for (std::size_t j = 0; j < pairs.rank.size(); ++j) {
    Value slot = begin[j] + pairs.rank[j], is_here = pairs.rank[j] >= number(0);
    p_.store(d_.slots.tile({first, static_cast<std::int64_t>(j)}, tokens, 1),
             where(is_here, slot, number(-1)));
    p_.store_rows(scattered_.tile({part, 0, 0}, tokens, 1),
                  where(is_here, slot - shift[j], number(-1)), token);
  }
  p_.worker_fence();
  Value sorted = p_.load(scattered_.tile({part, 0, 0}, 1, size).rows_along(2).cols_along(1));
  p_.store(sorted_.tile({part * size, 0}, 1, size).rows_along(1).cols_along(0), sorted);
}

// --- rows, with the places of all parts ---

// A row's expert is the last that begins at or before it, its part the last of that expert's. Rows
// look, and are not told: rows chosen at run time could not be shown to be written once.
void Placing::look_up(const Index& first) {
  const std::int64_t rows = d_.tiles.tile_slots;
  p_.wait(placed_[0], parts_);
  Value row = p_.iota_rows(first, rows);
  auto picked = [&](const TensorRef& table, const Value& entry) {
    return p_.load_rows(table.tile({0, 0}, rows, 1), entry);
  };
  Value expert = last_that_begins(d_.num_experts, row, [](const Value& e) { return e; });
  auto entry = [&](const Value& part) { return part * number(d_.num_experts) + expert; };
  Value part = last_that_begins(parts_, row, entry);
  Value in_part = row - picked(shifts_, entry(part));
  Value rows_with_token =
      d_.some_elsewhere ? p_.load(placed_rows_.tile({0, 0}, 1, 1)) : number(d_.tokens * d_.top_k);
  Value from = where(row < rows_with_token, part * number(pairs_of_part()) + in_part, number(-1));
  p_.store(d_.row_tokens.tile({first, 0}, rows, 1), picked(sorted_, from));
}

// Of `count` entries of begins_, which ascend and the first of which is no greater than `row`: by
// quarters, the loads of three entries being under way together.
Value Placing::last_that_begins(std::int64_t count, const Value& row,
                                const std::function<Value(const Value&)>& entry) const {
  const std::int64_t rows = d_.tiles.tile_slots;
  std::int64_t step = 1;
  while (4 * step < count) step *= 4;
  Value found = zeros(rows, 1);
  for (; step > 0; step /= 4) {
    std::vector<Value> next, entries, begins;
    for (std::int64_t i = 1; i < 4 && i * step < count; ++i) {
      next.push_back(minimum(found + number(i * step), number(count - 1)));
      entries.push_back(entry(next.back()));
    }
    for (const Value& at : entries) {
      begins.push_back(p_.load_rows(begins_.tile({0, 0}, rows, 1), at));
    }
    for (std::size_t i = 0; i < next.size(); ++i) found = where(begins[i] <= row, next[i], found);
  }
  return found;
}

NamedFields fields_of(PlacingTiles& c) {
  return {{"part_tokens", c.part_tokens},
          {"count_tokens", c.count_tokens},
          {"count_experts", c.count_experts},
          {"add_counts", c.add_counts},
          {"tile_slots", c.tile_slots}};
}

}  // namespace stretto
