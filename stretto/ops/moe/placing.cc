#include "stretto/ops/moe/placing.h"

#include <algorithm>
#include <utility>

namespace stretto {
namespace {

Value number(ProgramBuilder& p, double value) { return p.full(DType::kF32, 1, 1, value); }

}  // namespace

PlacingTiles gpu_placing_tiles(std::int64_t most_tokens, std::int64_t num_experts) {
  constexpr std::int64_t kElements = 8192;
  std::int64_t fit = std::max<std::int64_t>(kElements / num_experts / 16 * 16, 16);
  std::int64_t tokens = ceil_div(most_tokens, std::int64_t{16}) * 16;
  return {.count_rows = std::min<std::int64_t>({fit, 64, tokens}),
          .tile_slots = std::min<std::int64_t>(fit, 128)};
}

Placing::Placing(ProgramBuilder& p, PlacingDesc desc)
    : p_(p),
      d_(std::move(desc)),
      blocks_(ceil_div(d_.most_tokens, d_.count_rows)),
      look_ups_(ceil_div(d_.most_tokens * d_.top_k, d_.tile_slots)) {
  counts_ = p.buffer("counts", DType::kF32, {blocks_, d_.num_experts});
  totals_ = p.buffer("totals", DType::kF32, {blocks_, d_.num_experts, 1});
  first_rows_ = p.buffer("first_rows", DType::kF32, {d_.num_experts, blocks_});
  block_slots_ = p.buffer("block_slots", DType::kI32, {blocks_, d_.top_k * d_.count_rows});
  counted_ = p.signal("counted", 1);
  placed_ = p.signal("placed", 1);
}

void Placing::place(const Tile& t, const std::function<void()>& ready) {
  p_.when(t.index < blocks_, [&] {
    ready();
    count(t.index);
  });
  p_.when(t.index >= blocks_ && t.index < 2 * blocks_, [&] { place_block(t.index - blocks_); });
  p_.when(t.index >= 2 * blocks_, [&] { look_up((t.index - 2 * blocks_) * d_.tile_slots); });
}

void Placing::count(const Index& block) {
  p_.store(counts_.tile({block, 0}, 1, d_.num_experts), col_sum(d_.chosen(block * d_.count_rows)));
  p_.notify(counted_[0], p_.rank());
}

// Counts are sums of products with triangles of ones, exact in f32.
void Placing::place_block(const Index& block) {
  const std::int64_t rows = d_.count_rows, experts = d_.num_experts;
  p_.wait(counted_[0], blocks_);
  Value before = p_.zeros(DType::kF32, 1, experts), all = p_.zeros(DType::kF32, 1, experts);
  p_.loop(ceil_div(Index(blocks_), rows), [&](const Index& i) {
    Value some = p_.load(counts_.tile({i * rows, 0}, rows, experts));
    Value earlier = p_.iota_rows(i * rows, rows) < p_.splat(DType::kI32, block);
    all = all + col_sum(some);
    before = before + col_sum(where(earlier, some, number(p_, 0)));
  });
  // What the experts before it take, some of them at a time.
  constexpr std::int64_t kSome = 32;
  p_.store(totals_.tile({block, 0, 0}, experts, 1), all.T());
  p_.worker_fence();
  Value start = p_.zeros(DType::kF32, 1, experts);
  p_.loop(ceil_div(Index(experts), kSome), [&](const Index& i) {
    Value lower = p_.iota_rows(i * kSome, kSome) < p_.iota_cols(0, experts);
    Value some = p_.load(totals_.tile({block, i * kSome, 0}, kSome, 1));
    start = start + col_sum(where(lower, some, number(p_, 0)));
  });
  p_.when(block == 0, [&] {
    p_.store(d_.offsets.tile({0}, 1, 1), p_.zeros(DType::kI32, 1, 1));
    p_.store(d_.offsets.tile({1}, 1, experts), cast(start + all, DType::kI32));
  });
  Value next = start + before;
  p_.store(first_rows_.tile({0, block}, experts, 1), next.T());

  Index first = block * rows;
  Value earlier = p_.iota_cols(0, rows) < p_.iota_rows(0, rows);
  Value slot = p_.zeros(DType::kF32, rows, experts);
  slot = dot(slot, cast(earlier, DType::kF32), d_.chosen(first)) + next;
  p_.loop(d_.top_k, [&](const Index& j) {
    Value here = p_.iota_cols(0, experts) == d_.expert(first, j);
    Value own = row_sum(where(here, slot, number(p_, 0)));
    if (d_.some_elsewhere) {
      Value found = row_sum(where(here, number(p_, 1), number(p_, 0)));
      own = where(found > number(p_, 0), own, number(p_, -1));
    }
    Value places = cast(own, DType::kI32);
    p_.store(d_.slots.tile({first, j}, rows, 1), places);
    p_.store(block_slots_.tile({block, j * rows}, 1, rows), places.T());
  });
  p_.notify(placed_[0], p_.rank());
}

// A row's expert is the last that begins at or before it, its block the last of that expert's;
// there it is found by comparing: rows chosen at run time could not be shown to be written once.
void Placing::look_up(const Index& row) {
  const std::int64_t rows = d_.tile_slots, experts = d_.num_experts;
  constexpr std::int64_t kSome = 64;
  p_.wait(placed_[0], blocks_);
  Value position = p_.iota_rows(row, rows), place = cast(position, DType::kF32);  // [rows, 1]
  Value one = number(p_, 1), zero = number(p_, 0);
  Value starts = p_.load(first_rows_.tile({0, 0}, experts, 1)).T();
  Value expert = row_sum(where(starts > place, zero, one)) - one;
  Value which = cast(expert, DType::kI32), passed = p_.zeros(DType::kF32, rows, 1);
  p_.loop(ceil_div(Index(blocks_), kSome), [&](const Index& i) {
    Value begins = p_.load_rows(first_rows_.tile({0, i * kSome}, rows, kSome), which);
    Value exists = p_.iota_cols(i * kSome, kSome) < p_.splat(DType::kI32, Index(blocks_));
    passed = passed + row_sum(where(exists && !(begins > place), one, zero));
  });
  Value block = cast(passed - one, DType::kI32);
  Value first = block * p_.splat(DType::kI32, Index(d_.count_rows));
  Value token = p_.zeros(DType::kF32, rows, 1);
  p_.loop(d_.top_k, [&](const Index& j) {
    Slice slots = block_slots_.tile({0, j * d_.count_rows}, rows, d_.count_rows);
    Value candidate = first + p_.iota_cols(0, d_.count_rows);
    Value hit =
        p_.load_rows(slots, block) == position && candidate < p_.splat(DType::kI32, d_.tokens);
    token = token + row_sum(where(hit, cast(candidate, DType::kF32), zero));
  });
  p_.store(d_.row_tokens.tile({row, 0}, rows, 1), cast(token, DType::kI32));
}

}  // namespace stretto
