#include "stretto/ops/moe/placing.h"

namespace stretto {
namespace {

Value number(ProgramBuilder& p, double value) { return p.full(DType::kF32, 1, 1, value); }

}  // namespace

// Counts are sums of products with triangles of ones, exact in f32.
void place_rows(ProgramBuilder& p, const Placing& g) {
  Value expert_numbers = p.iota_cols(0, g.num_experts);
  Index chunks = ceil_div(g.tokens, g.count_rows);
  Value counts = p.zeros(DType::kF32, 1, g.num_experts);
  p.loop(chunks, [&](const Index& i) { counts = counts + col_sum(g.chosen(i * g.count_rows)); });
  // Free row of each expert: what those before it take, some of them at a time.
  constexpr std::int64_t kSome = 32;
  p.store(g.counts.tile({0, 0}, g.num_experts, 1), counts.T());
  p.worker_fence();
  Value next = p.zeros(DType::kF32, 1, g.num_experts);
  p.loop(ceil_div(g.num_experts, kSome), [&](const Index& i) {
    Value before = p.iota_rows(i * kSome, kSome) < expert_numbers;
    Value some = p.load(g.counts.tile({i * kSome, 0}, kSome, 1));
    next = next + col_sum(where(before, some, number(p, 0)));
  });
  p.store(g.offsets.tile({0}, 1, 1), p.zeros(DType::kI32, 1, 1));
  p.store(g.offsets.tile({1}, 1, g.num_experts), cast(next + counts, DType::kI32));
  p.loop(chunks, [&](const Index& i) {
    Index first = i * g.count_rows;
    Value chosen = g.chosen(first);
    Value earlier = p.iota_cols(0, g.count_rows) < p.iota_rows(0, g.count_rows);
    Value slot = p.zeros(DType::kF32, g.count_rows, g.num_experts);
    slot = dot(slot, cast(earlier, DType::kF32), chosen) + next;
    p.loop(g.top_k, [&](const Index& j) {
      Value here = p.iota_cols(0, g.num_experts) == g.expert(first, j);
      Value own = row_sum(where(here, slot, number(p, 0)));
      if (g.some_elsewhere) {
        Value found = row_sum(where(here, number(p, 1), number(p, 0)));
        own = where(found > number(p, 0), own, number(p, -1));
      }
      Value rows = cast(own, DType::kI32);
      p.store(g.slots.tile({first, j}, g.count_rows, 1), rows);
      p.store(g.columns.tile({j, first}, 1, g.count_rows), rows.T());
    });
    next = next + col_sum(chosen);
  });
}

// The inverse of `slots`, by comparing: rows chosen at run time could not be shown to be written
// once.
void look_up_tokens(ProgramBuilder& p, const Placing& g, const Tile& t) {
  Value position = p.iota_rows(t.row, g.tile_slots);
  Value token = p.zeros(DType::kF32, g.tile_slots, 1);
  p.loop(ceil_div(g.tokens, g.count_rows), [&](const Index& i) {
    Value candidate = p.iota_cols(i * g.count_rows, g.count_rows);
    p.loop(g.top_k, [&](const Index& j) {
      Value slot = p.load(g.columns.tile({j, i * g.count_rows}, 1, g.count_rows));
      Value hit = slot == position && candidate < p.splat(DType::kI32, g.tokens);
      token = token + row_sum(where(hit, cast(candidate, DType::kF32), number(p, 0)));
    });
  });
  p.store(g.row_tokens.tile({t.row, 0}, g.tile_slots, 1), cast(token, DType::kI32));
}

}  // namespace stretto
