#include "stretto/ops/attention/paged_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/attention_runs.h"
#include "stretto/ops/attention/cached_rows.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/ops/attention/packed_attention.h"

namespace stretto {
namespace {

AttentionRuns runs_of(const PagedDecodeDesc& d, const PagedDecodeConfig& c) {
  return {std::max<std::int64_t>(c.first_run / c.tile_kv, 1), ceil_div(d.max_tokens, c.tile_kv)};
}

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
  need(c.first_run >= 0 && c.first_run % c.tile_kv == 0, "first_run", c.first_run,
       "0 or a multiple of tile_kv");
}

class PagedDecode {
 public:
  PagedDecode(const PagedDecodeDesc& desc, const PagedDecodeConfig& config)
      : d_(desc),
        cfg_(config),
        runs_(runs_of(desc, config)),
        group_(desc.num_heads / desc.num_kv_heads),
        rows_(config.tile_rows > 0 ? config.tile_rows : rows_of_heads()),
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
    const std::int64_t parts = turns() * cfg_.splits;
    sums_ = p_.buffer("sums", DType::kF32, {units_, parts, group_, d_.head_dim});
    peaks_ = p_.buffer("peaks", DType::kF32, {units_, parts, group_, 1});
    weights_ = p_.buffer("weights", DType::kF32, {units_, parts, group_, 1});
    arrived_ = p_.signal("arrived", units_);
  }

  // Runs of a sequence follow each other, so that the first sequences are added up while the last
  // are read.
  Program run() {
    Resource readers = Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages);
    p_.role("attend", readers, p_.range(units_ * cfg_.splits), [&](const Tile& t) {
      Unit unit = unit_of(t.index / cfg_.splits);
      p_.when(unit.sequence < m_, [&] { attend(unit, p_.let("split", t.index % cfg_.splits)); });
      if (cfg_.splits > 1) p_.notify(arrived_[unit.idx], p_.rank());
    });
    if (cfg_.splits == 1) return p_.finish();
    p_.role("combine", Resource::sms(cfg_.num_combiners), p_.range(units_), [&](const Tile& t) {
      Unit unit = unit_of(t.index);
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

  // Of one worker's keys: some runs, or all of them.
  OnlineSoftmax softmax(std::int64_t rows, bool sums_by_product, bool in_runs) {
    return {p_,
            {.dtype = d_.dtype,
             .rows = rows,
             .head_dim = d_.head_dim,
             .scale = score_scale(d_.scale, d_.head_dim),
             .sums_by_product = sums_by_product,
             .in_runs = in_runs}};
  }

  // Runs that a split takes, one after the other.
  std::int64_t turns() const {
    return cfg_.first_run > 0 ? ceil_div(runs_.count(), cfg_.splits) : 1;
  }

  // The keys that count, and the steps that have them.
  struct Keys {
    Index begin, end, first, last;
  };
  Keys keys_of(const Unit& unit) {
    Keys k{.end = p_.let("tokens", p_.read(tokens_, {unit.sequence}))};
    k.begin = d_.window > 0 ? p_.let("begin", max(k.end - d_.window, 0)) : Index(0);
    k.first = k.begin / cfg_.tile_kv;
    // Ranges of `first` and `last` alone show that every step has an entry in the table of pages.
    k.last = p_.let("last", ceil_div(k.end, cfg_.tile_kv));
    return k;
  }

  void attend(const Unit& unit, const Index& split) {
    const Keys keys = keys_of(unit);
    Value query = p_.load(queries(unit));
    if (cfg_.splits == 1) {
      OnlineSoftmax sums = softmax(rows_, cfg_.sums_by_product, cfg_.first_run > 0);
      add_steps(sums, unit, keys, query, keys.first, keys.last);
      return store(unit, sums, rows_);
    }
    if (cfg_.first_run == 0) {
      Index steps = p_.let("steps", max(keys.last - keys.first, 0));
      Index share = p_.let("share", ceil_div(steps, cfg_.splits));
      OnlineSoftmax sums = softmax(rows_, cfg_.sums_by_product, false);
      add_steps(sums, unit, keys, query, min(keys.first + split * share, keys.last),
                min(keys.first + (split + 1) * share, keys.last));
      return sums.store(part(unit, split, rows_));
    }
    p_.loop(turns(), [&](const Index& turn) {
      Index run = p_.let("run", turn * cfg_.splits + split);
      OnlineSoftmax sums = softmax(rows_, cfg_.sums_by_product, false);
      add_steps(sums, unit, keys, query, min(max(runs_.start(run), keys.first), keys.last),
                min(max(runs_.start(run + 1), keys.first), keys.last));
      sums.store(part(unit, run, rows_));
    });
  }

  void add_steps(OnlineSoftmax& sums, const Unit& unit, const Keys& keys, const Value& query,
                 const Index& first, const Index& last) {
    std::int64_t bn = cfg_.tile_kv;
    p_.loop(first, last, [&](const Index& j) {
      Index page = p_.read(pages_, {unit.sequence, j * bn / d_.page});
      Index row = j * bn % d_.page;
      Index entry = page * d_.num_kv_heads + unit.kv, end = keys.end - (j * bn - row);
      Value scores = sums.scores(dot(p_.zeros(DType::kF32, rows_, bn), query,
                                     k_.load_transposed(entry, row, bn, end)));  // [rows, tile_kv]
      auto mask = [&](const Value& sees) {
        scores = where(sees, scores, p_.full(DType::kF32, 1, 1, kMaskedScore));
      };
      p_.when(j == keys.end / bn,
              [&] { mask(p_.iota_cols(j * bn, bn) < p_.splat(DType::kI32, keys.end)); });
      if (d_.window > 0) {
        p_.when(j == keys.first,
                [&] { mask(p_.iota_cols(j * bn, bn) >= p_.splat(DType::kI32, keys.begin)); });
      }
      sums.add(
          scores, [&] { return v_.load(entry, row, bn, end); }, d_.fp8, runs_.begins(j));
    });
    sums.finish();
  }

  void combine(const Unit& unit) {
    const std::int64_t rows = rows_of_heads();
    // While others are at work.
    Index count = cfg_.splits;
    if (cfg_.first_run > 0) count = p_.let("count", runs_.count(keys_of(unit).last));
    p_.wait(arrived_[unit.idx], cfg_.splits);
    OnlineSoftmax sums = softmax(rows, false, false);
    auto merge = [&](const Index& first, std::int64_t at_once) {
      std::vector<OnlineSoftmax::State> parts;
      for (std::int64_t i = 0; i < at_once; ++i) parts.push_back(part(unit, first + i, rows));
      sums.merge(parts);
    };
    constexpr std::int64_t kAtOnce = 4;
    p_.loop(count / kAtOnce, [&](const Index& i) { merge(i * kAtOnce, kAtOnce); });
    p_.loop(count / kAtOnce * kAtOnce, count, [&](const Index& i) { merge(i, 1); });
    store(unit, sums, rows);
  }

  // The tensor core takes no single row.
  std::int64_t rows_of_heads() const { return std::max<std::int64_t>(group_, 2); }

  // What is left of a run.
  OnlineSoftmax::State part(const Unit& unit, const Index& run, std::int64_t rows) const {
    auto of = [&](const TensorRef& buffer, std::int64_t cols) {
      return buffer.tile({unit.idx, run, 0, 0}, rows, cols).until_row(group_);
    };
    return {of(sums_, d_.head_dim), of(weights_, 1), of(peaks_, 1)};
  }

  // Of wide tiles the rows past the group are other heads', which costs no mask.
  Slice queries(const Unit& unit) const {
    if (cfg_.tile_rows == 0) return of_heads(q_, unit, rows_, d_.head_dim);
    return q_.tile({unit.sequence, unit.kv * group_, 0}, rows_, d_.head_dim);
  }

  Slice of_heads(const TensorRef& tensor, const Unit& unit, std::int64_t rows,
                 std::int64_t cols) const {
    Index head = unit.kv * group_;
    return tensor.tile({unit.sequence, head, 0}, rows, cols).until_row(head + group_);
  }

  void store(const Unit& unit, const OnlineSoftmax& sums, std::int64_t rows) {
    p_.store(of_heads(out_, unit, rows, d_.head_dim), cast(sums.mean(), d_.dtype));
    if (!d_.lse) return;
    Index head = unit.kv * group_;
    Slice column = lse_.tile({unit.sequence, head}, rows, 1).rows_along(1).cols_along(0);
    p_.store(column.until_row(head + group_), sums.lse());
  }

  const PagedDecodeDesc d_;
  const PagedDecodeConfig cfg_;
  const AttentionRuns runs_;
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
  return {{"tile_kv", c.tile_kv},         {"first_run", c.first_run, 0},
          {"splits", c.splits},           {"workers", c.num_workers},
          {"combiners", c.num_combiners}, {"stages", c.num_stages, 0},
          {"tile_rows", c.tile_rows, 0},  {"sums_by_product", c.sums_by_product}};
}

}  // namespace stretto
