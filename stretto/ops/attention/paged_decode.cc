#include "stretto/ops/attention/paged_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/cached_rows.h"
#include "stretto/ops/attention/field_check.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/ops/attention/packed_attention.h"

namespace stretto {
namespace {

void check(const PagedDecodeDesc& d, const PagedDecodeConfig& c) {
  FieldCheck need{"paged_decode"};
  need.not_double("dtype", d.dtype);
  need.at_least_one({{"m", d.m}, {"num_pages", d.num_pages}, {"max_tokens", d.max_tokens}});
  need.heads(d.num_heads, d.num_kv_heads);
  need(d.window >= 0, "window", d.window, "0 or more");
  need.finite("scale", d.scale);
  need.at_least_one({{"head_dim", d.head_dim},
                     {"world_size", d.world_size},
                     {"tile_kv", c.tile_kv},
                     {"splits", c.splits},
                     {"num_workers", c.num_workers},
                     {"num_combiners", c.num_combiners}});
  need(d.page >= 1 && d.page % c.tile_kv == 0, "page", d.page, "a multiple of tile_kv");
  need(c.tile_rows == 0 || c.tile_rows * d.num_kv_heads >= d.num_heads, "tile_rows", c.tile_rows,
       "0, or room for the query heads of a KV head");
  need(!c.sums_by_product || c.splits == 1, "splits", c.splits, "1 with sums_by_product");
}

class PagedDecode {
 public:
  PagedDecode(const PagedDecodeDesc& desc, const PagedDecodeConfig& config)
      : d_(desc),
        cfg_(config),
        group_(desc.num_heads / desc.num_kv_heads),
        // The tensor core takes no single row.
        rows_(config.tile_rows > 0 ? config.tile_rows : std::max<std::int64_t>(group_, 2)),
        units_(desc.m * desc.num_kv_heads),
        p_(desc.fp8 ? "paged_decode_fp8" : "paged_decode", desc.world_size),
        m_(p_.extent("m", desc.m)) {
    const auto heads = static_cast<std::int64_t>(d_.num_heads);
    q_ = p_.input("q", d_.dtype, {m_, heads, d_.head_dim});
    pages_ =
        p_.table("pages", {m_, d_.pages_per_sequence()}, {ContractKind::kRange, 0, d_.num_pages});
    tokens_ = p_.table("tokens", {m_}, {ContractKind::kRange, 0, d_.max_tokens + 1});
    CachedRowsDesc cache{.dtype = d_.dtype,
                         .fp8 = d_.fp8,
                         .entries = d_.num_pages * d_.num_kv_heads,
                         .page = d_.page,
                         .head_dim = d_.head_dim};
    k_ = CachedRows(p_, "k", cache, false);
    v_ = CachedRows(p_, "v", cache, false);
    out_ = p_.output("out", d_.dtype, {m_, heads, d_.head_dim});
    if (d_.lse) lse_ = p_.output("lse", DType::kF32, {m_, heads});
    if (cfg_.splits == 1) return;
    sums_ = p_.buffer("sums", DType::kF32, {units_, cfg_.splits, group_, d_.head_dim});
    peaks_ = p_.buffer("peaks", DType::kF32, {units_, cfg_.splits, group_, 1});
    weights_ = p_.buffer("weights", DType::kF32, {units_, cfg_.splits, group_, 1});
    arrived_ = p_.signal("arrived", units_);
  }

  // Runs of a sequence follow each other, so that the first sequences are added up while the last
  // are read.
  Program run() {
    Resource readers = Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages);
    p_.role("attend", readers, p_.range(units_ * cfg_.splits), [&](const Tile& t) {
      Unit unit = unit_of(t.index / cfg_.splits);
      p_.when(unit.sequence < m_, [&] { attend(unit, p_.let("run", t.index % cfg_.splits)); });
      if (cfg_.splits > 1) p_.notify(arrived_[unit.idx], p_.rank());
    });
    if (cfg_.splits == 1) return p_.finish();
    p_.role("combine", Resource::sms(cfg_.num_combiners), p_.range(units_), [&](const Tile& t) {
      Unit unit = unit_of(t.index);
      p_.wait(arrived_[unit.idx], cfg_.splits);
      p_.when(unit.sequence < m_, [&] { combine(unit); });
    });
    return p_.finish();
  }

 private:
  // The query heads of a KV head, of one sequence.
  struct Unit {
    Index idx, sequence, kv;
  };
  Unit unit_of(const Index& idx) {
    Unit unit{.idx = p_.let("unit", idx)};
    unit.sequence = p_.let("sequence", unit.idx / d_.num_kv_heads);
    unit.kv = p_.let("kv", unit.idx % d_.num_kv_heads);
    return unit;
  }

  OnlineSoftmax softmax() {
    return {p_,
            {.dtype = d_.dtype,
             .rows = rows_,
             .head_dim = d_.head_dim,
             .scale = score_scale(d_.scale, d_.head_dim),
             .sums_by_product = cfg_.sums_by_product}};
  }

  void attend(const Unit& unit, const Index& run) {
    std::int64_t bn = cfg_.tile_kv;
    Index tokens = p_.let("tokens", p_.read(tokens_, {unit.sequence}));
    Index begin = d_.window > 0 ? p_.let("begin", max(tokens - d_.window, 0)) : Index(0);
    Index first = begin / bn;
    // Ranges of `first` and `last` alone show that every step has an entry in the table of pages.
    Index last = p_.let("last", ceil_div(tokens, bn));
    Index steps = p_.let("steps", max(last - first, 0));
    Index per_run = p_.let("per_run", ceil_div(steps, cfg_.splits));
    Value query = p_.load(queries(unit));
    OnlineSoftmax sums = softmax();
    Index start = min(first + run * per_run, last), end = min(first + (run + 1) * per_run, last);
    p_.loop(start, end, [&](const Index& j) {
      Index page = p_.read(pages_, {unit.sequence, j * bn / d_.page});
      Index row = j * bn % d_.page;
      Index entry = page * d_.num_kv_heads + unit.kv, end = tokens - (j * bn - row);
      Value scores = sums.scores(dot(p_.zeros(DType::kF32, rows_, bn), query,
                                     k_.load_transposed(entry, row, bn, end)));  // [rows, tile_kv]
      auto mask = [&](const Value& sees) {
        scores = where(sees, scores, p_.full(DType::kF32, 1, 1, kMaskedScore));
      };
      p_.when(j == tokens / bn,
              [&] { mask(p_.iota_cols(j * bn, bn) < p_.splat(DType::kI32, tokens)); });
      if (d_.window > 0) {
        p_.when(j == first,
                [&] { mask(p_.iota_cols(j * bn, bn) >= p_.splat(DType::kI32, begin)); });
      }
      sums.add(
          scores, [&] { return v_.load(entry, row, bn, end); }, d_.fp8);
    });
    if (cfg_.splits == 1) return store(unit, sums);
    sums.store(part(unit, run));
  }

  void combine(const Unit& unit) {
    OnlineSoftmax sums = softmax();
    auto merge = [&](const Index& first, std::int64_t count) {
      std::vector<OnlineSoftmax::State> parts;
      for (std::int64_t i = 0; i < count; ++i) parts.push_back(part(unit, first + i));
      sums.merge(parts);
    };
    constexpr std::int64_t kAtOnce = 4;
    std::int64_t rest = cfg_.splits % kAtOnce;
    p_.loop(cfg_.splits / kAtOnce, [&](const Index& i) { merge(i * kAtOnce, kAtOnce); });
    if (rest > 0) merge(cfg_.splits - rest, rest);
    store(unit, sums);
  }

  // What is left of a run.
  OnlineSoftmax::State part(const Unit& unit, const Index& run) const {
    auto of = [&](const TensorRef& buffer, std::int64_t cols) {
      return buffer.tile({unit.idx, run, 0, 0}, rows_, cols).until_row(group_);
    };
    return {of(sums_, d_.head_dim), of(weights_, 1), of(peaks_, 1)};
  }

  // Of wide tiles the rows past the group are other heads', which costs no mask.
  Slice queries(const Unit& unit) const {
    if (cfg_.tile_rows == 0) return of_heads(q_, unit, d_.head_dim);
    return q_.tile({unit.sequence, unit.kv * group_, 0}, rows_, d_.head_dim);
  }

  Slice of_heads(const TensorRef& tensor, const Unit& unit, std::int64_t cols) const {
    Index head = unit.kv * group_;
    return tensor.tile({unit.sequence, head, 0}, rows_, cols).until_row(head + group_);
  }

  void store(const Unit& unit, const OnlineSoftmax& sums) {
    p_.store(of_heads(out_, unit, d_.head_dim), cast(sums.mean(), d_.dtype));
    if (!d_.lse) return;
    Index head = unit.kv * group_;
    Slice column = lse_.tile({unit.sequence, head}, rows_, 1).rows_along(1).cols_along(0);
    p_.store(column.until_row(head + group_), sums.lse());
  }

  const PagedDecodeDesc d_;
  const PagedDecodeConfig cfg_;
  const std::int64_t group_, rows_, units_;
  ProgramBuilder p_;
  Index m_;
  TensorRef q_, pages_, tokens_, out_, lse_, sums_, peaks_, weights_;
  CachedRows k_, v_;
  SignalRef arrived_;
};

}  // namespace

std::int64_t PagedDecodeDesc::pages_per_sequence() const { return ceil_div(max_tokens, page); }

NamedFields fields_of(PagedDecodeDesc& d) {
  return {{"m", d.m},
          {"max_tokens", d.max_tokens},
          {"page", d.page},
          {"num_pages", d.num_pages},
          {"num_heads", d.num_heads},
          {"num_kv_heads", d.num_kv_heads},
          {"head_dim", d.head_dim},
          {"window", d.window, 0},
          {"lse", d.lse},
          {"scale", d.scale},
          {"fp8", d.fp8},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}")};
}

Program paged_decode(const PagedDecodeDesc& d, const PagedDecodeConfig& cfg) {
  check(d, cfg);
  return PagedDecode(d, cfg).run();
}

NamedFields fields_of(PagedDecodeConfig& c) {
  return {{"tile_kv", c.tile_kv},
          {"splits", c.splits},
          {"workers", c.num_workers},
          {"combiners", c.num_combiners},
          {"stages", c.num_stages, 0},
          {"tile_rows", c.tile_rows, 0},
          {"sums_by_product", c.sums_by_product}};
}

}  // namespace stretto
