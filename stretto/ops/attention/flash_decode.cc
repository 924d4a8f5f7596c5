#include "stretto/ops/attention/flash_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/online_softmax.h"

namespace stretto {
namespace {

void check(const FlashDecodeDesc& d, const FlashDecodeConfig& c) {
  FieldCheck need{"flash_decode"};
  need.not_double("dtype", d.dtype);
  need.at_least_one({{"m", d.m}, {"max_tokens", d.max_tokens}});
  need.heads(d.num_heads, d.num_kv_heads);
  need.at_least_one(
      {{"head_dim", d.head_dim}, {"world_size", d.world_size}, {"tile_kv", c.tile_kv}});
  need(d.window >= 0, "window", d.window, "0 or more");
  need.finite("scale", d.scale);
  need(d.block >= 1 && d.block % c.tile_kv == 0, "block", d.block, "a multiple of tile_kv");
  need.at_least_one(
      {{"splits", c.splits}, {"num_workers", c.num_workers}, {"num_combiners", c.num_combiners}});
  need(c.tile_rows == 0 || c.tile_rows >= 2, "tile_rows", c.tile_rows, "0 or 2 and more");
}

constexpr std::int64_t kMostAtOnce = 4;

class FlashDecode {
 public:
  FlashDecode(const FlashDecodeDesc& d, const FlashDecodeConfig& cfg)
      : d_(d),
        cfg_(cfg),
        group_(d.num_heads / d.num_kv_heads),
        most_rows_(most_rows(d)),
        tile_rows_(tile_rows(d, cfg)),
        row_tiles_(ceil_div(most_rows_, tile_rows_)),
        all_rows_(most_rows_ * d.num_kv_heads),
        at_once_(std::min(ceil_div(all_rows_, std::int64_t{cfg.num_combiners}), kMostAtOnce)),
        p_("flash_decode", d.world_size),
        m_(p_.extent("m", d.m)),
        tokens_(p_.scalar("tokens", d.max_tokens)),
        rows_(m_ * group_) {
    q_ = p_.input("q", d.dtype, {d.num_kv_heads, rows_, d.head_dim});
    seen_ = p_.input("seen", DType::kI32, {rows_, 1});
    std::vector<Index> cache = {d.num_kv_heads, d.tokens_per_rank(), d.head_dim};
    k_cache_ = p_.input("k_cache", d.dtype, cache);
    v_cache_ = p_.input("v_cache", d.dtype, cache);
    out_ = p_.output("out", d.dtype, {d.num_kv_heads, rows_, d.head_dim});
    if (d.lse) lse_ = p_.output("lse", DType::kF32, {m_, d.num_heads});
    auto of_runs = [&](const char* name, std::int64_t cols) {
      return p_.buffer(name, DType::kF32, {d.num_kv_heads, most_rows_, cfg.splits, cols});
    };
    sums_ = of_runs("sums", d.head_dim);
    peaks_ = of_runs("peaks", 1);  // in powers of two
    weights_ = of_runs("weights", 1);
    finished_ = p_.signal("finished", d.num_kv_heads);
    if (d.world_size == 1) return;
    // Two slots bound the run-ahead, as in the all-reduce by packets: a rank that writes a slot
    // again has received every rank's packets of the launch between.
    inbox_ =
        p_.buffer("inbox", DType::kF32, {d.world_size, d.num_kv_heads * most_rows_, d.head_dim + 2},
                  {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  }

  Program run() {
    // The first runs before the later ones, which short contexts leave empty.
    p_.role("attend", Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages),
            p_.range(cfg_.splits * row_tiles_ * d_.num_kv_heads), [&](const Tile& t) {
              Index kv = p_.let("kv", t.index % d_.num_kv_heads), of_kv = t.index / d_.num_kv_heads;
              Index first =
                  row_tiles_ == 1 ? Index(0) : p_.let("first_row", of_kv % row_tiles_ * tile_rows_);
              p_.when(row_tiles_ == 1 ? m_ > 0 : first < rows_,
                      [&] { attend(kv, p_.let("run", of_kv / row_tiles_), first); });
              p_.notify(finished_[kv], p_.rank());
            });
    p_.role("combine", Resource::sms(cfg_.num_combiners), p_.range(ceil_div(all_rows_, at_once_)),
            [&](const Tile& t) { combine(t.index); });
    return p_.finish();
  }

 private:
  // Unnormalised, with the power of two that it is in units of. [n, head_dim], [n, 1], [n, 1].
  struct Part {
    Value sum, weight, peak;
  };

  // Tokens of this rank's cache that come before `token`.
  Index own_before(const Index& token) const {
    std::int64_t round = d_.block * d_.world_size;
    Index rest = token % round - p_.rank() * d_.block;
    return token / round * d_.block + max(min(rest, d_.block), 0);
  }
  // Of the token in a row of this rank's cache.
  Index position(const Index& row) const {
    return (row / d_.block * d_.world_size + p_.rank()) * d_.block + row % d_.block;
  }

  // Rows from `first_row` on.
  void attend(const Index& kv, const Index& run, const Index& first_row) {
    std::int64_t bn = cfg_.tile_kv, tile_rows = tile_rows_;
    Index own = p_.let("own", own_before(tokens_));
    Index begin = 0, end = p_.let("steps", ceil_div(own, bn));  // steps
    if (d_.window > 0) {
      Index first = p_.let("first", max(tokens_ - (m_ - 1) - d_.window, 0));  // that any row sees
      begin = p_.let("begin", own_before(first) / bn);
    }
    Index per_run = p_.let("per_run", ceil_div(end - begin, cfg_.splits));
    Index of_run = p_.let("of_run", begin + run * per_run);
    Value query = p_.load(q_.tile({kv, first_row, 0}, tile_rows, d_.head_dim));
    Value sees = p_.load(seen_.tile({first_row, 0}, tile_rows, 1));
    OnlineSoftmax softmax(p_, {.dtype = d_.dtype,
                               .rows = tile_rows,
                               .head_dim = d_.head_dim,
                               .scale = score_scale(d_.scale, d_.head_dim)});
    p_.loop(min(of_run, end), min(of_run + per_run, end), [&](const Index& j) {
      auto block = [&](const TensorRef& cache) {
        return cache.tile({kv, j * bn, 0}, bn, d_.head_dim).until_row(own);
      };
      Value scores = softmax.scores(dot(p_.zeros(DType::kF32, tile_rows, bn), query,
                                        p_.load(block(k_cache_)).T()));  // [rows, tile_kv]
      Value token = p_.iota_cols(position(j * bn), bn);
      Value exists = token < sees && token < p_.splat(DType::kI32, tokens_);
      if (d_.window > 0) exists = exists && !(token < sees - d_.window);
      scores = where(exists, scores, p_.full(DType::kF32, 1, 1, kMaskedScore));
      softmax.add(scores, block(v_cache_));
    });
    auto part = [&](const TensorRef& buffer, std::int64_t cols) {
      return buffer.tile({kv, first_row, run, 0}, tile_rows, cols).rows_along(1).until_row(rows_);
    };
    p_.store(part(sums_, d_.head_dim), softmax.sum());
    p_.store(part(peaks_, 1), softmax.log2_peak());
    p_.store(part(weights_, 1), softmax.weight());
  }

  // The parts of several runs or ranks as one.
  static Part together(const Part& parts) {
    Value peak = col_max(parts.peak);
    Value scale = exp2(parts.peak - peak);
    return {col_sum(parts.sum * scale), col_sum(parts.weight * scale), peak};
  }

  struct Row {
    Index kv, row, exists;  // rows past m * group do not
  };
  Row row_of(const Index& idx) {
    Row r{.kv = p_.let("kv", idx % d_.num_kv_heads), .row = p_.let("row", idx / d_.num_kv_heads)};
    r.exists = p_.let("exists", r.row < rows_);
    return r;
  }

  Part runs_of(const Row& r) {
    auto runs = [&](const TensorRef& buffer, std::int64_t cols) {
      Slice all = buffer.tile({r.kv, r.row, 0, 0}, cfg_.splits, cols);
      return p_.load(all.until_row(r.exists * cfg_.splits));
    };
    return {runs(sums_, d_.head_dim), runs(weights_, 1), runs(peaks_, 1)};
  }

  // A few rows at a time: all are read before the first is added up, and all are sent before the
  // first is waited for. Without any there is still one to send, since packets of the launch stand
  // for signals.
  void combine(const Index& tile) {
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < at_once_; ++i) {
      rows.push_back(row_of(tile + i * ceil_div(all_rows_, at_once_)));
    }
    for (const Row& r : rows) p_.wait(finished_[r.kv], cfg_.splits * row_tiles_);
    std::vector<Part> runs, own;
    for (const Row& r : rows) runs.push_back(runs_of(r));
    for (const Part& parts : runs) own.push_back(together(parts));
    if (d_.world_size == 1) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        p_.when(rows[i].exists, [&] { store(own[i], rows[i]); });
      }
      return;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      p_.when(i == 0 ? rows[i].exists || tile == 0 : rows[i].exists,
              [&] { send(own[i], rows[i]); });
    }
    for (const Row& r : rows) {
      p_.when(r.exists, [&] { store(together(received(r)), r); });
    }
    p_.when(rows[0].exists == 0 && tile == 0, [&] { received(rows[0]); });
  }

  void store(const Part& all, const Row& r) {
    p_.store(out_.tile({r.kv, r.row, 0}, 1, d_.head_dim), cast(all.sum / all.weight, d_.dtype));
    if (!d_.lse) return;
    Index head = r.kv * group_ + r.row % group_;
    p_.store(lse_.tile({r.row / group_, head}, 1, 1),
             all.peak * std::numbers::ln2 + log(all.weight));
  }

  Slice parts_of(const Index& sender, const Row& r, std::int64_t num, std::int64_t col,
                 std::int64_t cols) const {
    return inbox_.tile({sender, r.row * d_.num_kv_heads + r.kv, col}, num, cols).rows_along(0);
  }

  void send(const Part& own, const Row& r) {
    std::int64_t cols = d_.head_dim;
    p_.loop(d_.world_size, [&](const Index& i) {
      Index peer = p_.let("peer", (p_.rank() + 1 + i) % d_.world_size);
      p_.store_packet(parts_of(p_.rank(), r, 1, 0, cols).on(peer), own.sum);
      p_.store_packet(parts_of(p_.rank(), r, 1, cols, 1).on(peer), own.weight);
      p_.store_packet(parts_of(p_.rank(), r, 1, cols + 1, 1).on(peer), own.peak);
    });
  }

  Part received(const Row& r) {
    std::int64_t cols = d_.head_dim, num = d_.world_size;
    return {p_.load_packet(parts_of(0, r, num, 0, cols)),
            p_.load_packet(parts_of(0, r, num, cols, 1)),
            p_.load_packet(parts_of(0, r, num, cols + 1, 1))};
  }

  const FlashDecodeDesc d_;
  const FlashDecodeConfig cfg_;
  const std::int64_t group_, most_rows_;  // of a KV head
  const std::int64_t tile_rows_, row_tiles_;
  const std::int64_t all_rows_, at_once_;  // that a combiner adds up
  ProgramBuilder p_;
  Index m_, tokens_, rows_;
  TensorRef q_, seen_, k_cache_, v_cache_, out_, lse_, sums_, peaks_, weights_, inbox_;
  SignalRef finished_;
};

}  // namespace

std::int64_t FlashDecodeDesc::tokens_per_rank() const {
  return ceil_div(ceil_div(max_tokens, block), std::int64_t{world_size}) * block;
}

std::int64_t most_rows(const FlashDecodeDesc& d) { return d.m * (d.num_heads / d.num_kv_heads); }

std::int64_t tile_rows(const FlashDecodeDesc& d, const FlashDecodeConfig& c) {
  std::int64_t all = std::max<std::int64_t>(most_rows(d), 2);
  return c.tile_rows > 0 ? std::min(all, c.tile_rows) : all;
}

NamedFields fields_of(FlashDecodeDesc& d) {
  return {{"m", d.m},
          {"max_tokens", d.max_tokens},
          {"block", d.block},
          {"num_heads", d.num_heads},
          {"num_kv_heads", d.num_kv_heads},
          {"head_dim", d.head_dim},
          {"window", d.window, 0},
          {"lse", d.lse},
          {"scale", d.scale},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}")};
}

Program flash_decode(const FlashDecodeDesc& d, const FlashDecodeConfig& cfg) {
  check(d, cfg);
  return FlashDecode(d, cfg).run();
}

NamedFields fields_of(FlashDecodeConfig& c) {
  return {{"tile_kv", c.tile_kv},      {"splits", c.splits},
          {"workers", c.num_workers},  {"combiners", c.num_combiners},
          {"stages", c.num_stages, 0}, {"tile_rows", c.tile_rows, 0}};
}

}  // namespace stretto
