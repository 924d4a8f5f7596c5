#include "stretto/ops/attention/packed_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/attention_runs.h"
#include "stretto/ops/attention/cached_rows.h"
#include "stretto/ops/attention/online_softmax.h"

namespace stretto {
namespace {

void check(const char* op, const PackedAttentionDesc& d, const PackedAttentionConfig& c) {
  FieldCheck need{op};
  need.not_double("dtype", d.dtype);
  need.at_least_one({{"m", d.m}, {"sequences", d.sequences}});
  need.heads(d.num_heads, d.num_kv_heads);
  need(d.window >= 0, "window", d.window, "0 or more");
  need.finite("scale", d.scale);
  need(d.causal || d.window == 0, "window", d.window, "0 where attention is not causal");
  need.at_least_one({{"head_dim", d.head_dim},
                     {"world_size", d.world_size},
                     {"tile_rows", c.tile_rows},
                     {"tile_kv", c.tile_kv},
                     {"blocks", c.blocks},
                     {"num_workers", c.num_workers}});
  need(c.first_run >= 0 && c.first_run % c.tile_kv == 0, "first_run", c.first_run,
       "0 or a multiple of tile_kv");
  need(c.first_run == 0 || d.page > 0, "first_run", c.first_run, "0: it reads no cache");
}

void check_pages(const PackedAttentionDesc& d, const PackedAttentionConfig& c) {
  FieldCheck need{"paged_attention"};
  need(d.page >= 1 && d.page % c.tile_kv == 0, "page", d.page, "a multiple of tile_kv");
  need.at_least_one({{"num_pages", d.num_pages}, {"max_tokens", d.max_tokens}});
  need(!d.lse || !d.behind_others, "lse", d.lse, "0 behind the rows of others");
}

class PackedAttention {
 public:
  PackedAttention(const char* name, const PackedAttentionDesc& d, const PackedAttentionConfig& cfg)
      : d_(d), cfg_(cfg), p_(name, d.world_size), m_(p_.extent("m", d.m)) {
    const std::int64_t parts = d.sequences + (d.behind_others ? 1 : 0);
    starts_ = p_.table("starts", {parts + 1}, {ContractKind::kPartition, 0, m_ + 1});
    q_ = p_.input("q", d.dtype, {m_, d.num_heads * d.head_dim});
    if (paged()) {
      pages_ = p_.table("pages", {d.sequences, d.pages_per_sequence()},
                        {ContractKind::kRange, 0, d.num_pages});
      tokens_ = p_.table("tokens", {d.sequences}, {ContractKind::kRange, 0, d.max_tokens + 1});
    }
    if (paged()) {
      CachedRowsDesc cache{.dtype = d.dtype,
                           .fp8 = d.fp8,
                           .entries = d.num_pages * d.num_kv_heads,
                           .page = d.page,
                           .head_dim = d.head_dim};
      k_pages_ = CachedRows(p_, "k", cache, false);
      v_pages_ = CachedRows(p_, "v", cache, false);
    } else {
      k_ = p_.input("k", d.dtype, {m_, d.num_kv_heads * d.head_dim});
      v_ = p_.input("v", d.dtype, {m_, d.num_kv_heads * d.head_dim});
    }
    const std::vector<Index> shape = {m_, d.num_heads * d.head_dim};
    out_ = d.behind_others ? p_.state("out", d.dtype, shape) : p_.output("out", d.dtype, shape);
    if (d.lse) lse_ = p_.output("lse", DType::kF32, {d.num_heads, m_});
  }

  Program run() {
    Resource sms =
        Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages).by_ticket(cfg_.tickets);
    // Heads together, so that their keys stay in the cache; late rows, which are long, first.
    p_.role("attend", sms, p_.range(d_.sequences * cfg_.blocks * d_.num_heads), [&](const Tile& t) {
      Index head = p_.let("head", t.index % d_.num_heads);
      Index first = p_.let("first", cfg_.blocks - 1 - t.index / d_.num_heads % cfg_.blocks);
      Sequence s = sequence(p_.let("sequence", t.index / (d_.num_heads * cfg_.blocks)));
      p_.loop(ceil_div(s.end - s.start, cfg_.tile_rows * cfg_.blocks), [&](const Index& i) {
        Index row = p_.let("row", s.start + (first + i * cfg_.blocks) * cfg_.tile_rows);
        p_.when(row < s.end, [&] { attend(s, head, row); });
      });
    });
    return p_.finish();
  }

 private:
  struct Sequence {
    Index idx;
    Index start, end;  // rows
    Index tokens;      // keys
    Index past;        // tokens before the first row's
  };

  bool paged() const { return d_.page > 0; }

  Sequence sequence(const Index& idx) {
    Sequence s{.idx = idx};
    const Index part = d_.behind_others ? idx + 1 : idx;
    s.start = p_.read(starts_, {part});
    s.end = p_.read(starts_, {part + 1});
    s.tokens = paged() ? p_.read(tokens_, {idx}) : p_.let("tokens", s.end - s.start);
    s.past = paged() ? p_.let("past", s.tokens - (s.end - s.start)) : Index(0);
    return s;
  }

  // Keys and values j * tile_kv .. of the first `seen` of a sequence.
  struct Block {
    Index row, end;  // of the rows, or of a page
    Index col;       // of the head
    Index entry;     // of the cache
  };
  Block block(const Sequence& s, const Index& kv, const Index& j, const Index& page,
              const Index& seen) const {
    std::int64_t bn = cfg_.tile_kv;
    if (!paged()) {
      return {.row = s.start + j * bn, .end = s.start + seen, .col = kv * d_.head_dim};
    }
    Index row = j * bn % d_.page;
    return {.row = row, .end = seen - (j * bn - row), .entry = page * d_.num_kv_heads + kv};
  }
  Value keys(const Block& b) {
    if (paged()) return k_pages_.load_transposed(b.entry, b.row, cfg_.tile_kv, b.end);
    return p_.load(k_.tile({b.row, b.col}, cfg_.tile_kv, d_.head_dim).until_row(b.end)).T();
  }
  Value values(const Block& b) {
    if (paged()) return v_pages_.load(b.entry, b.row, cfg_.tile_kv, b.end);
    return p_.load(v_.tile({b.row, b.col}, cfg_.tile_kv, d_.head_dim).until_row(b.end));
  }

  // Queries [row, row + tile_rows) of a sequence.
  void attend(const Sequence& s, const Index& head, const Index& row) {
    std::int64_t bm = cfg_.tile_rows, bn = cfg_.tile_kv;
    Index kv = p_.let("kv", head / (d_.num_heads / d_.num_kv_heads));
    Index token = p_.let("token", s.past + (row - s.start));  // of the first row
    Index seen = s.tokens, full = s.tokens;                   // by the last row; by all
    if (d_.causal) {
      seen = p_.let("seen", max(min(token + bm, s.tokens), 0));
      full = p_.let("full", max(min(token + 1, s.tokens), 0));
    }
    Index begin = 0;  // the first key that the first row sees; with a window all blocks are masked
    if (d_.window > 0) {
      begin = p_.let("begin", max(token - (d_.window - 1), 0));
      full = begin;
    }
    // Rows past the end of a sequence are another's; nobody stores what comes of them.
    Value query = p_.load(q_.tile({row, head * d_.head_dim}, bm, d_.head_dim));
    OnlineSoftmax softmax(
        p_, {.dtype = d_.dtype,
             .rows = bm,
             .head_dim = d_.head_dim,
             .scale = score_scale(d_.scale, d_.head_dim),
             .sums_by_product =
                 cfg_.num_stages > 0 && multiplied_by_tensor_core(d_.dtype, bn, d_.head_dim),
             .in_runs = cfg_.first_run > 0});
    const AttentionRuns runs(std::max<std::int64_t>(cfg_.first_run / bn, 1),
                             ceil_div(d_.max_tokens, bn));
    p_.loop(begin / bn, ceil_div(seen, bn), [&](const Index& j) {
      Index page = paged() ? p_.read(pages_, {s.idx, j * bn / d_.page}) : Index(0);
      Block b = block(s, kv, j, page, seen);
      Value scores =
          softmax.scores(dot(p_.zeros(DType::kF32, bm, bn), query, keys(b)));  // [bm, bn]
      p_.when(j >= full / bn, [&] {
        Value col = p_.iota_cols(j * bn, bn);
        Value sees = col < p_.splat(DType::kI32, seen);
        if (d_.causal) sees = sees && col <= p_.iota_rows(token, bm);
        if (d_.window > 0) sees = sees && (col > p_.iota_rows(token, bm) - d_.window);
        scores = where(sees, scores, p_.full(DType::kF32, 1, 1, kMaskedScore));
      });
      softmax.add(
          scores, [&] { return values(b); }, d_.fp8, cfg_.first_run > 0 ? runs.begins(j) : Index());
    });
    softmax.finish();
    p_.store(out_.tile({row, head * d_.head_dim}, bm, d_.head_dim).until_row(s.end),
             cast(softmax.mean(), d_.dtype));
    if (!d_.lse) return;
    Value lse = softmax.lse();
    if (paged() && d_.causal) {
      // Of fewer tokens than queries the first see none, but have added up what was masked for the
      // others of their tile.
      lse = where(p_.iota_rows(token, bm) >= 0, lse, -std::numeric_limits<double>::infinity());
    }
    Slice column = lse_.tile({head, row}, bm, 1).rows_along(1).cols_along(0);
    p_.store(column.until_row(s.end), lse);
  }

  const PackedAttentionDesc d_;
  const PackedAttentionConfig cfg_;
  ProgramBuilder p_;
  Index m_;
  TensorRef starts_, pages_, tokens_, q_, k_, v_, out_, lse_;
  CachedRows k_pages_, v_pages_;
};

}  // namespace

std::int64_t PackedAttentionDesc::pages_per_sequence() const { return ceil_div(max_tokens, page); }

NamedFields fields_of(PackedAttentionDesc& d) {
  return {{"m", d.m},
          {"sequences", d.sequences},
          {"max_tokens", d.max_tokens, 0},
          {"page", d.page, 0},
          {"num_pages", d.num_pages, 0},
          {"num_heads", d.num_heads},
          {"num_kv_heads", d.num_kv_heads},
          {"head_dim", d.head_dim},
          {"window", d.window, 0},
          NamedField("causal", d.causal).unless_set("full"),
          {"lse", d.lse},
          {"scale", d.scale},
          {"fp8", d.fp8},
          {"behind_others", d.behind_others},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}")};
}

Program packed_attention(const PackedAttentionDesc& d, const PackedAttentionConfig& cfg) {
  check("packed_attention", d, cfg);
  FieldCheck{"packed_attention"}(d.page == 0, "page", d.page, "0");
  FieldCheck{"packed_attention"}(!d.behind_others, "behind_others", d.behind_others,
                                 "0: it reads no cache");
  FieldCheck{"packed_attention"}(!d.fp8, "fp8", d.fp8, "0: it reads no cache");
  return PackedAttention("packed_attention", d, cfg).run();
}

Program paged_attention(const PackedAttentionDesc& d, const PackedAttentionConfig& cfg) {
  check("paged_attention", d, cfg);
  check_pages(d, cfg);
  return PackedAttention(d.fp8 ? "paged_attention_fp8" : "paged_attention", d, cfg).run();
}

NamedFields fields_of(PackedAttentionConfig& c) {
  return {
      {"tile", {&c.tile_rows, &c.tile_kv}}, {"first_run", c.first_run, 0}, {"blocks", c.blocks},
      {"workers", c.num_workers},           {"stages", c.num_stages, 0},   {"tickets", c.tickets}};
}

}  // namespace stretto
