#include "stretto/ops/moe/table_maker.h"

#include <algorithm>

namespace stretto {

TableMaker::TableMaker(ProgramBuilder& p, const ExpertTablesDesc& d, const ExpertTablesConfig& cfg,
                       const Index& m, const MadeTables& tables)
    : p_(p),
      d_(d),
      cfg_(cfg),
      tiles_(d.tiles),
      num_experts_(d.tiles.split().share()),
      division_(d, cfg),
      m_(m),
      share_(ceil_div(m_, d.tiles.shape.world_size)),
      tables_(tables) {
  std::int64_t experts = num_experts_, parts = division_.parts();
  std::int64_t groups = division_.groups, blocks = parts * cfg.part_blocks;
  auto buffer = [&](const char* name, std::vector<Index> shape) {
    return p.buffer(name, DType::kI32, std::move(shape));
  };
  if (cfg.part_blocks > 1) counts_ = buffer("counts", {blocks, experts});
  below_ = buffer("below", {blocks, experts});
  totals_ = buffer("totals", {parts, experts});
  positions_ = buffer("positions", {blocks * pairs_of_block(), 1});
  sorted_ = buffer("sorted", {blocks * pairs_of_block(), 1});
  plan_ = buffer("plan", {parts, experts, 3 * d.order.stages + tiles_.shape.world_size});
  first_ = buffer("first", {experts, groups});
  begins_ = buffer("begins", {groups * experts, group_blocks()});
  moves_ = buffer("moves", {blocks, experts, 1});
  shifts_ = buffer("shifts", {groups * experts, group_blocks()});
  runs_ = buffer("runs", {tiles_.num_tiles(), 3});
  counted_ = p.signal("counted", 1);
  placed_ = p.signal("placed", 1);
}

TableMaker::Pairs TableMaker::pairs_of(const Index& block) const {
  std::int64_t blocks_of_rank = division_.parts_of_rank * cfg_.part_blocks;
  Index position = p_.let("position", block / blocks_of_rank);
  Index owner = p_.let("owner", (p_.rank() + position) % tiles_.shape.world_size);
  Index token = p_.let("token", block % blocks_of_rank * cfg_.block_tokens);
  Index end = min((owner + 1) * share_, m_) * (position < tiles_.shape.world_size);
  return {.first = p_.let("first_pair", (owner * share_ + token) * tiles_.shape.top_k),
          .end = p_.let("end_pair", end * tiles_.shape.top_k),
          .first_token = p_.let("first_token", position * share_ + token)};
}

// Of experts that are another group's: how many the own one has.
Value TableMaker::own_number(const Value& expert) const {
  ExpertSplit split = tiles_.split();
  if (split.groups == 1) return expert;
  Value first = number(split.first(p_.rank())), end = number(split.end(p_.rank()));
  return where(expert >= first && expert < end, expert - first, number(num_experts_));
}

// -1 where it is another group's.
Value TableMaker::if_own(const Value& is_own, const Value& value) const {
  return tiles_.expert_groups == 1 ? value : where(is_own, value, number(-1));
}

// --- every block by itself ---

void TableMaker::wait_for_part(const Index& part) {
  Index position = part / division_.parts_of_rank;
  p_.when(position < tiles_.shape.world_size, [&] {
    tables_.wait_for_experts(p_.let("source", (p_.rank() + position) % tiles_.shape.world_size));
  });
}

void TableMaker::sort_part(const Index& part) {
  const std::int64_t experts = num_experts_;
  Value total = zeros(1, experts);
  if (tables_.wait_for_experts) wait_for_part(part);
  p_.loop(cfg_.part_blocks, [&](const Index& i) {
    Index block = p_.let("block", part * cfg_.part_blocks + i);
    Value counts = sort(block);
    if (cfg_.part_blocks > 1) p_.store(counts_.tile({block, 0}, 1, experts), counts);
    total = total + counts;
  });
  p_.store(totals_.tile({part, 0}, 1, experts), total);
  p_.notify(counted_[0], p_.rank());
}

// The pairs of each expert [1, E]. A pair's position is the number of those with a lower key, of
// expert and pair; those that do not exist come last.
Value TableMaker::sort(const Index& block) {
  const std::int64_t size = pairs_of_block(), rows = std::min(cfg_.sort_rows, size);
  const std::int64_t steps = ceil_div(size, rows);
  Pairs pairs = pairs_of(block);
  auto key = [&](const Value& expert, const Value& pair) {
    Value exists = pair < number(min(pairs.end - pairs.first, size));
    return where(exists, own_number(expert), number(num_experts_)) * number(size) + pair;
  };
  auto box = [&](const Index& i) {
    return tables_.experts.tile({pairs.first + i * rows, 0}, rows, 1).until_row(pairs.end);
  };
  Slice row = tables_.experts.tile({pairs.first, 0}, 1, size).rows_along(1).cols_along(0);
  Value all = p_.load(row.until_col(pairs.end)), some = p_.load(box(0));

  Value place = p_.iota_cols(0, size), expert = p_.iota_cols(0, num_experts_);
  Value keys = key(all, place);
  // What is added up over the rows of a step stays where it is until the last one.
  Value sorted = zeros(rows, size), counts = zeros(rows, num_experts_);
  Value below = zeros(rows, num_experts_);
  // A loop: written out, its text takes the compiler a second of a processor.
  p_.loop(steps, [&](const Index& i) {
    Value pair = p_.iota_rows(i * rows, rows), own = key(some, pair);
    some = p_.load(box(min(i + 1, steps - 1)));  // under way before it is used
    Value position = row_sum(one_where(keys < own));
    Slice to = positions_.tile({block * size + i * rows, 0}, rows, 1);
    p_.store(to.until_row((block + 1) * size), position);
    Value token = number(pairs.first_token) + pair / number(tiles_.shape.top_k);
    sorted = where(position == place, token, sorted);
    Value of = own / number(size);
    counts = counts + one_where(of == expert);
    below = below + one_where(of < expert);
  });
  p_.store(sorted_.tile({block * size, 0}, 1, size).rows_along(1).cols_along(0), col_sum(sorted));
  p_.store(below_.tile({block, 0}, 1, num_experts_), col_sum(below));
  return col_sum(counts);
}

// --- every part with the counts of all ---

void TableMaker::place(const Index& part) {
  p_.wait(counted_[0], division_.parts());
  Totals totals = add_up(part);
  Plan made = plan(part, totals);
  p_.loop(cfg_.part_blocks, [&](const Index& i) {
    Index block = p_.let("block", part * cfg_.part_blocks + i);
    place_block(part, block, totals.before);
    if (cfg_.part_blocks == 1) return;
    totals.before = totals.before + p_.load(counts_.tile({block, 0}, 1, num_experts_));
  });
  describe_tiles(part, made);
  p_.when(part == 0, [&] { p_.store(tables_.used.tile({0}, 1, 1), made.used); });
  p_.notify(placed_[0], p_.rank());
}

TableMaker::Totals TableMaker::add_up(const Index& part) {
  const std::int64_t rows = cfg_.count_parts, experts = num_experts_;
  Totals out{.before = zeros(1, experts), .through = {}};
  for (int i = 0; i < tiles_.shape.world_size; ++i) out.through.push_back(zeros(1, experts));
  p_.loop(ceil_div(division_.parts(), rows), [&](const Index& i) {
    Value some = p_.load(totals_.tile({i * rows, 0}, rows, experts));
    Value which = p_.iota_rows(i * rows, rows);
    auto sum = [&](const Index& end) {
      return col_sum(where(which < number(end), some, number(0)));
    };
    out.before = out.before + sum(part);
    for (std::size_t r = 0; r < out.through.size(); ++r) {
      std::int64_t end = (static_cast<std::int64_t>(r) + 1) * division_.parts_of_rank;
      out.through[r] = out.through[r] + sum(end);
    }
  });
  return out;
}

// An expert's tiles of a class and of those before: the full ones of the pairs that these need,
// or all.
Value TableMaker::tiles_through(const Totals& totals, int stage) const {
  auto ranks = static_cast<std::size_t>(ranks_through(tiles_, d_.order, stage));
  const Value &some = totals.through[ranks - 1], &all = totals.through.back();
  Value up = where(some == all, number(tiles_.tile_rows - 1), number(0));
  Value through = (some + up) / number(tiles_.tile_rows);
  if (stage + 1 == d_.order.stages || d_.order.early_experts >= num_experts_) return through;
  Value early = p_.iota_cols(0, num_experts_) < number(d_.order.early_experts);
  return where(early, through, number(0));
}

TableMaker::Plan TableMaker::plan(const Index& part, const Totals& totals) {
  Plan out{.begins = {}, .used = zeros(1, 1)};
  std::vector<Value> below = {zeros(1, num_experts_)};
  for (int s = 0; s < d_.order.stages; ++s) {
    below.push_back(tiles_through(totals, s));
    std::size_t last = below.size() - 1;
    keep(part, column(kTiles) + s, below[last] - below[last - 1]);
  }
  p_.worker_fence();
  std::vector<Value> before = sums_before(part);
  for (int s = 0; s < d_.order.stages; ++s) {
    auto at = static_cast<std::size_t>(s);
    out.begins.push_back(out.used + before[at]);
    out.used = out.used + row_sum(below[at + 1] - below[at]);
  }
  // From an expert's tile to its place: the steps of the classes up to its own are added.
  for (int s = 0; s < d_.order.stages; ++s) {
    auto at = static_cast<std::size_t>(s);
    Value step = out.begins[at] - below[at];
    if (s > 0) step = step - (out.begins[at - 1] - below[at - 1]);
    keep(part, column(kStep) + s, step);
    keep(part, column(kBelow) + s, below[at]);
  }
  for (int r = 0; r < tiles_.shape.world_size; ++r) {
    keep(part, column(kThrough) + r, totals.through[static_cast<std::size_t>(r)]);
  }
  return out;
}

// Of each class, the tiles of the experts before each, some experts at a time.
std::vector<Value> TableMaker::sums_before(const Index& part) {
  const std::int64_t experts = num_experts_, rows = std::min(cfg_.sum_experts, experts);
  std::vector<Value> sums;
  for (int s = 0; s < d_.order.stages; ++s) sums.push_back(zeros(1, experts));
  p_.loop(ceil_div(experts, rows), [&](const Index& i) {
    Value some = p_.load(plan_.tile({part, i * rows, column(kTiles)}, rows, d_.order.stages));
    Value before = p_.iota_rows(i * rows, rows) < p_.iota_cols(0, experts);
    for (std::size_t s = 0; s < sums.size(); ++s) {
      Value own = p_.iota_cols(0, d_.order.stages) == number(static_cast<std::int64_t>(s));
      Value tiles = row_sum(where(own, some, number(0)));
      sums[s] = sums[s] + col_sum(where(before, tiles, number(0)));
    }
  });
  return sums;
}

void TableMaker::keep(const Index& part, std::int64_t col, const Value& of_experts) {
  Slice to = plan_.tile({part, 0, col}, 1, num_experts_).rows_along(2).cols_along(1);
  p_.store(to, of_experts);
}

// Of these experts [r, 1]: [r, cols].
Value TableMaker::picked(const Index& part, Column which, std::int64_t cols,
                         const Value& experts) const {
  return p_.load_rows(plan_.tile({part, 0, column(which)}, experts.rows(), cols), experts);
}

void TableMaker::place_block(const Index& part, const Index& block, const Value& before) {
  const std::int64_t size = pairs_of_block(), experts = num_experts_;
  Pairs pairs = pairs_of(block);
  Index group = block / group_blocks(), in_group = block % group_blocks();
  auto of_block = [&](const TensorRef& table) {
    return table.tile({group * experts, in_group}, 1, experts).rows_along(1).cols_along(0);
  };
  Value shift = before - p_.load(below_.tile({block, 0}, 1, experts));
  p_.store(of_block(begins_), before);
  p_.store(of_block(shifts_), shift);
  p_.store(moves_.tile({block, 0, 0}, 1, experts).rows_along(2).cols_along(1), shift);
  p_.when(in_group == 0, [&] {
    p_.store(first_.tile({0, group}, 1, experts).rows_along(1).cols_along(0), before);
  });
  p_.worker_fence();

  Slice own = tables_.slots.tile({pairs.first, 0}, size, 1).until_row(pairs.end);
  Value expert =
      own_number(p_.load(tables_.experts.tile({pairs.first, 0}, size, 1).until_row(pairs.end)));
  Value is_own = expert < number(num_experts_);
  expert = if_own(is_own, expert);
  Value position = p_.load(positions_.tile({block * size, 0}, size, 1));
  Value row = position + p_.load_rows(moves_.tile({block, 0, 0}, size, 1), expert);
  Value rows_of_tile = number(tiles_.tile_rows);
  Value passed = picked(part, kBelow, d_.order.stages, expert) <= row / rows_of_tile;
  Value steps = picked(part, kStep, d_.order.stages, expert);
  p_.store(own, if_own(is_own, row + row_sum(where(passed, steps, number(0))) * rows_of_tile));
}

// As many tiles for every part.
void TableMaker::describe_tiles(const Index& part, const Plan& plan) {
  const std::int64_t experts = num_experts_;
  const std::int64_t rows = ceil_div(tiles_.num_tiles(), division_.parts());
  Value tile = p_.iota_rows(part * rows, rows), exists = tile < plan.used;
  Value run = zeros(rows, 1) - number(1);  // by class and expert: the last that begins here
  for (const Value& begins : plan.begins) run = run + row_sum(one_where(begins <= tile));
  Value stage = run / number(experts), expert = run - stage * number(experts);
  Value known = where(exists, expert, number(-1));
  Value counted = p_.iota_cols(0, d_.order.stages) <= stage;
  Value steps = where(counted, picked(part, kStep, d_.order.stages, known), number(0));
  Value first = (tile - row_sum(steps)) * number(tiles_.tile_rows);
  Value through = picked(part, kThrough, tiles_.shape.world_size, known);  // [rows, P]
  Value end = minimum(first + number(tiles_.tile_rows), row_max(through));
  const int ranks = tiles_.shape.world_size, stages = d_.order.stages;
  Value needs = row_sum(one_where(through < end)) + number(1);
  if (d_.order.in_step) {  // ranks_through
    needs = (stage * number(ranks) + number(ranks + stages - 1)) / number(stages);
  }

  auto store = [&](const TensorRef& to, std::int64_t col, const Value& value) {
    p_.store(to.tile({part * rows, col}, rows, 1), where(exists, value, number(0)));
  };
  store(tables_.tile_experts, 0, expert);
  store(tables_.tile_needs, 0, needs);
  store(runs_, 0, expert);
  store(runs_, 1, first);
  store(runs_, 2, end - first);
}

// --- rows, with the places of all blocks ---

// By the block whose rows of the expert begin last: rows chosen at run time could not be shown to
// be written once.
void TableMaker::look_up(const Index& row) {
  const std::int64_t rows = cfg_.tile_rows, experts = num_experts_;
  const std::int64_t blocks = group_blocks();
  p_.wait(placed_[0], division_.parts());
  Value at = p_.iota_rows(row, rows), tile = at / number(tiles_.tile_rows);
  tile = where(at < number(tiles_.num_rows()), tile, number(-1));
  auto run = [&](std::int64_t col) { return p_.load_rows(runs_.tile({0, col}, rows, 1), tile); };
  Value in_tile = at - tile * number(tiles_.tile_rows), expert = run(0);
  Value own = run(1) + in_tile, exists = in_tile < run(2);  // of the expert's rows
  auto if_exists = [&](const Value& value) { return where(exists, value, number(-1)); };
  auto last = [&](const Value& begins) { return row_sum(one_where(begins <= own)) - number(1); };

  Value group = last(p_.load_rows(first_.tile({0, 0}, rows, division_.groups), if_exists(expert)));
  Value place = if_exists(group * number(experts) + expert);
  Value block = last(p_.load_rows(begins_.tile({0, 0}, rows, blocks), place));
  Value shifts = p_.load_rows(shifts_.tile({0, 0}, rows, blocks), place);
  Value shift = row_sum(where(p_.iota_cols(0, blocks) == block, shifts, number(0)));
  Value from = (group * number(blocks) + block) * number(pairs_of_block()) + (own - shift);
  Value token = p_.load_rows(sorted_.tile({0, 0}, rows, 1), if_exists(from));
  p_.store(tables_.row_tokens.tile({row, 0}, rows, 1), if_exists(token));
  if (tables_.made.idx() >= 0) p_.notify(tables_.made[0], p_.rank());
}

}  // namespace stretto
