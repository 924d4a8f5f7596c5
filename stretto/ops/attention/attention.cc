#include "stretto/ops/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

void check(const char* op, const AttentionDesc& d, const AttentionConfig& c) {
  FieldCheck need{op};
  need.not_double("dtype", d.dtype);
  need.at_least_one({{"batch", d.batch}, {"m", d.m}});
  need.heads(d.num_heads, d.num_kv_heads);
  need(d.head_dim >= 2 && d.head_dim % 2 == 0, "head_dim", d.head_dim, "an even number");
  need(d.window >= 0, "window", d.window, "0 or more");
  need.finite("scale", d.scale);
  need(d.causal || d.window == 0, "window", d.window, "0 where attention is not causal");
  need.at_least_one(
      {{"world_size", d.world_size}, {"tile_rows", c.tile_rows}, {"tile_kv", c.tile_kv}});
  need.at_least_one({{"max_tokens", d.max_tokens}});
  int heads = (d.num_heads + d.world_size - 1) / d.world_size;
  need(c.head_group >= 0 && (c.head_group == 0 || heads % c.head_group == 0), "head_group",
       c.head_group, "a divisor of the heads of a rank");
  need.at_least_one({{"num_workers", c.num_workers}, {"cluster_size", c.cluster_size}});
}

// Of the config rope() has tile_rows, head_group and num_workers.
void check_rope_uses(const AttentionDesc& d, AttentionConfig c) {
  auto fields = FieldFit::refusing("rope " + to_string(d));
  const AttentionConfig none;
  const char* reason = "rope multiplies nothing";
  fields.only("num_stages", c.num_stages, none.num_stages, reason);
  fields.only("query_slots", c.query_slots, none.query_slots, reason);
  fields.only("tickets", c.tickets, none.tickets, "all rows take as long");
  fields.only("cluster_size", c.cluster_size, none.cluster_size, reason);
  fields.only("products", c.products, none.products, reason);
}

// This rank's KV head for its local query head.
Index local_kv_head(const ProgramBuilder& p, const AttentionDesc& d, const HeadSplit& split,
                    const Index& local_head) {
  Index group = d.num_heads / d.num_kv_heads;
  Index last = d.num_heads - 1;
  Index first = p.rank() * split.heads_per_rank;
  return min(first + local_head, last) / group - min(first, last) / group;
}

Value norm_head(const AttentionDesc& d, const Value& lo, const Value& hi) {
  Value squares = row_sum(lo * lo) + row_sum(hi * hi);
  return rsqrt(squares / static_cast<double>(d.head_dim) + d.norm_eps);
}

}  // namespace

int HeadSplit::first_head(int rank) const { return std::min(rank * heads_per_rank, num_heads); }
int HeadSplit::num_heads_of(int rank) const {
  return std::min((rank + 1) * heads_per_rank, num_heads) - first_head(rank);
}
int HeadSplit::first_kv_head(int rank) const {
  return std::min(rank * heads_per_rank, num_heads - 1) / (num_heads / num_kv_heads);
}

HeadSplit split_heads(const AttentionDesc& d) {
  HeadSplit split;
  split.num_heads = d.num_heads;
  split.num_kv_heads = d.num_kv_heads;
  split.heads_per_rank = (d.num_heads + d.world_size - 1) / d.world_size;
  int group = d.num_heads / d.num_kv_heads;
  for (int rank = 0; rank < d.world_size; ++rank) {
    if (split.num_heads_of(rank) == 0) continue;
    int last = (split.first_head(rank) + split.num_heads_of(rank) - 1) / group;
    split.kv_heads_per_rank =
        std::max(split.kv_heads_per_rank, last - split.first_kv_head(rank) + 1);
  }
  return split;
}

Program rope(const AttentionDesc& d, const AttentionConfig& cfg) {
  check("rope", d, cfg);
  FieldCheck{"rope"}(d.max_tokens >= d.m, "max_tokens", d.max_tokens, "at least m");
  FieldCheck{"rope"}(d.batch == 1, "batch", d.batch, "1");
  check_rope_uses(d, cfg);
  HeadSplit split = split_heads(d);
  std::int64_t num_q = split.heads_per_rank, num_kv = split.kv_heads_per_rank,
               half = d.head_dim / 2;
  FieldCheck{"rope"}(cfg.head_group == 0 || num_kv % cfg.head_group == 0, "head_group",
                     cfg.head_group, "a divisor of the KV heads of a rank");
  ProgramBuilder p("rope", d.world_size);
  Index m = p.extent("m", d.m);
  Index past = p.scalar("past", d.max_tokens - 1);
  TensorRef qkv = p.input("qkv", d.dtype, {m, (num_q + 2 * num_kv) * d.head_dim});
  TensorRef cos_table = p.input("cos", DType::kF32, {d.max_tokens, half});
  TensorRef sin_table = p.input("sin", DType::kF32, {d.max_tokens, half});
  TensorRef q_norm, k_norm;
  if (d.head_norm) {
    q_norm = p.input("q_norm", d.weight_dtype, {1, d.head_dim});
    k_norm = p.input("k_norm", d.weight_dtype, {1, d.head_dim});
  }
  TensorRef q = p.output("q", d.dtype, {m, num_q * d.head_dim});
  TensorRef k_cache = p.state("k_cache", d.dtype, {num_kv, d.max_tokens, d.head_dim});
  TensorRef v_cache = p.state("v_cache", d.dtype, {num_kv, d.max_tokens, d.head_dim});

  std::int64_t group = cfg.head_group > 0 ? cfg.head_group : num_q + num_kv;
  p.role("rotate", Resource::sms(cfg.num_workers), p.grid(m, num_q + num_kv, cfg.tile_rows, group),
         [&](const Tile& t) {
           auto box = [&](const TensorRef& tensor, const Index& row, const Index& col,
                          std::int64_t cols) {
             return tensor.tile({row, col}, cfg.tile_rows, cols);
           };
           auto cached = [&](const TensorRef& cache, const Index& head, const Index& col,
                             std::int64_t cols) {
             return cache.tile({head, past + t.row, col}, cfg.tile_rows, cols).until_row(past + m);
           };
           Value c = p.load(box(cos_table, past + t.row, 0, half));
           Value s = p.load(box(sin_table, past + t.row, 0, half));
           // Rotates the head at column `from` and hands both halves to store_half(offset in the
           // head, value).
           auto rotate = [&](const Index& from, const TensorRef& norm, const auto& store_half) {
             Value lo = cast(p.load(box(qkv, t.row, from, half)), DType::kF32);
             Value hi = cast(p.load(box(qkv, t.row, from + half, half)), DType::kF32);
             if (d.head_norm) {
               Value scale = norm_head(d, lo, hi);
               auto weight = [&](std::int64_t col) {
                 return cast(p.load(norm.tile({0, col}, 1, half)), DType::kF32);
               };
               lo = cast(cast(lo * scale, d.dtype), DType::kF32) * weight(0);
               hi = cast(cast(hi * scale, d.dtype), DType::kF32) * weight(half);
             }
             store_half(0, cast(lo * c - hi * s, d.dtype));
             store_half(half, cast(hi * c + lo * s, d.dtype));
           };
           auto query = [&](const Index& h) {
             rotate(h * d.head_dim, q_norm, [&](std::int64_t offset, const Value& v) {
               p.store(box(q, t.row, h * d.head_dim + offset, half), v);
             });
           };
           auto key = [&](const Index& h) {
             rotate((h + num_q) * d.head_dim, k_norm, [&](std::int64_t offset, const Value& v) {
               p.store(cached(k_cache, h, offset, half), v);
             });
             p.store(cached(v_cache, h, 0, d.head_dim),
                     p.load(box(qkv, t.row, (h + num_q + num_kv) * d.head_dim, d.head_dim)));
           };
           if (cfg.head_group == 0) {
             p.loop(num_q, query);
             p.loop(num_kv, key);
             return;
           }
           p.when(
               t.col < num_q,
               [&] { p.loop(cfg.head_group, [&](const Index& i) { query(t.col + i); }); },
               [&] { p.loop(cfg.head_group, [&](const Index& i) { key(t.col - num_q + i); }); });
         });
  return p.finish();
}

Program attention(const AttentionDesc& d, const AttentionConfig& cfg) {
  check("attention", d, cfg);
  HeadSplit split = split_heads(d);
  std::int64_t bm = cfg.tile_rows, bn = cfg.tile_kv;
  ProgramBuilder p("attention", d.world_size);
  Index m = p.extent("m", d.m);
  Index past = p.scalar("past", d.max_tokens - 1);
  bool outgrows = d.m > d.max_tokens;  // rows past the cache's last token see all of it
  std::int64_t num_q = split.heads_per_rank, num_kv = split.kv_heads_per_rank;
  TensorRef q = p.input("q", d.dtype, {d.batch, m, num_q * d.head_dim});
  TensorRef k_cache = p.state("k_cache", d.dtype, {d.batch * num_kv, d.max_tokens, d.head_dim});
  TensorRef v_cache = p.state("v_cache", d.dtype, {d.batch * num_kv, d.max_tokens, d.head_dim});
  TensorRef out = p.output("out", d.dtype, {d.batch, m, num_q * d.head_dim});
  TensorRef lse;
  if (d.lse) lse = p.output("lse", DType::kF32, {d.batch * num_q, m});

  // One tile: a block of query rows of one head of one sequence. Long rows first, so that no worker
  // is left with one at the end; the heads of a group before the next group, so that their keys
  // stay in the cache.
  std::int64_t group = cfg.head_group > 0 ? cfg.head_group : num_q;
  Index row_tiles = ceil_div(m, Index(bm));
  Resource sms = Resource::sms(cfg.num_workers)
                     .pipelined(cfg.num_stages)
                     .holding(cfg.query_slots)
                     .by_ticket(cfg.tickets)
                     .multiplying(cfg.products)
                     .clustered(cfg.cluster_size);
  p.role("attend", sms, p.grid(row_tiles * (d.batch * num_q), 1, 1, 1), [&](const Tile& t) {
    Index in_group = p.let("in_group", t.m % (row_tiles * group));
    Index any_head = p.let("any_head", t.m / (row_tiles * group) * group + in_group % group);
    Index sequence = d.batch > 1 ? p.let("sequence", any_head / num_q) : Index(0);
    Index head = d.batch > 1 ? p.let("head", any_head % num_q) : any_head;
    Index first = p.let("first", (row_tiles - 1 - in_group / group) * bm);
    Index kv = p.let("kv", sequence * num_kv + local_kv_head(p, d, split, head));
    // Tokens that the last row sees, and the first block of which a row does not see all.
    Index behind = d.causal ? past + min(first + bm, m) : past + m;
    Index end = p.let("end", outgrows ? min(behind, d.max_tokens) : behind);
    Index begin = d.window > 0 ? p.let("begin", max(past + first - (d.window - 1), 0)) : Index(0);
    Index whole = d.causal ? past + first + 1 : end;  // what the first row sees
    Index begin_block = begin / bn;
    Index full =
        d.window > 0 ? begin_block : p.let("full", (outgrows ? min(whole, end) : whole) / bn);
    Value query = p.load(q.tile({sequence, first, head * d.head_dim}, bm, d.head_dim));
    Value row = p.iota_rows(past + first, bm);  // [bm, 1] position of each query
    OnlineSoftmax softmax(
        p, {.dtype = d.dtype,
            .rows = bm,
            .head_dim = d.head_dim,
            .scale = score_scale(d.scale, d.head_dim),
            .sums_by_product =
                cfg.num_stages > 0 && multiplied_by_tensor_core(d.dtype, bn, d.head_dim)});
    p.loop(begin / bn, ceil_div(end, bn), [&](const Index& j) {
      auto block = [&](const TensorRef& cache) {
        return cache.tile({kv, j * bn, 0}, bn, d.head_dim).until_row(end);
      };
      Value scores =
          softmax.scores(dot(p.zeros(DType::kF32, bm, bn), query, p.load(block(k_cache)).T()));
      p.when(j >= full, [&] {
        Value col = p.iota_cols(j * bn, bn);
        Value seen = d.causal ? col <= row : col < p.splat(DType::kI32, end);
        if (d.window > 0) seen = seen && (col > row - d.window);
        if (d.causal && outgrows) seen = seen && col < p.splat(DType::kI32, end);
        scores = where(seen, scores, p.full(DType::kF32, 1, 1, kMaskedScore));
      });
      softmax.add(scores, block(v_cache));
    });
    // A row whose window lies past the cache's last token sees none.
    auto if_any = [&](const Value& of_seen, auto otherwise) {
      if (!outgrows || d.window == 0) return of_seen;
      Value sees = row < p.splat(DType::kI32, d.max_tokens + d.window - 1);
      return where(sees, of_seen, otherwise());
    };
    auto zero = [&] { return p.zeros(DType::kF32, 1, 1); };
    p.store(out.tile({sequence, first, head * d.head_dim}, bm, d.head_dim),
            cast(if_any(softmax.mean(), zero), d.dtype));
    if (d.lse) {
      p.store(lse.tile({any_head, first}, bm, 1).rows_along(1).cols_along(0),
              if_any(softmax.lse(), [&] { return log(zero()); }));
    }
  });
  return p.finish();
}

NamedFields fields_of(AttentionDesc& d) {
  return {{"batch", d.batch, 1},
          {"m", d.m},
          NamedField("max_tokens", d.max_tokens).as("cache={}"),
          {"num_heads", d.num_heads},
          {"num_kv_heads", d.num_kv_heads},
          {"head_dim", d.head_dim},
          {"window", d.window, 0},
          NamedField("causal", d.causal).unless_set("full"),
          {"lse", d.lse},
          {"scale", d.scale},
          {"head_norm", d.head_norm},
          {"weight_dtype", d.weight_dtype, DType::kF32},
          {"norm_eps", d.norm_eps, 1e-6},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}")};
}

NamedFields fields_of(AttentionConfig& c) {
  using enum ProductOrder;
  return {{"tile", {&c.tile_rows, &c.tile_kv}},
          {"workers", c.num_workers},
          {"stages", c.num_stages, 0},
          {"query_slots", c.query_slots},
          {"tickets", c.tickets},
          {"head_group", c.head_group, 0},
          {"cluster", c.cluster_size, 1},
          {"products", c.products, {kAhead, kAheadInTurn, kInTurn, kAwaited}, kAhead}};
}

}  // namespace stretto
