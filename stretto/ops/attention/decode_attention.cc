#include "stretto/ops/attention/decode_attention.h"

#include <algorithm>
#include <numbers>
#include <numeric>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/online_softmax.h"

namespace stretto {
namespace {

void check(const AttentionDesc& d, const DecodeAttentionConfig& c) {
  FieldCheck need{"decode_attention"};
  need.not_double("dtype", d.dtype);
  need(d.batch == 1, "batch", d.batch, "1");
  need(d.m == 1, "m", d.m, "1");
  need(d.causal, "causal", 0, "true");
  need.at_least_one({{"max_tokens", d.max_tokens}});
  need.heads(d.num_heads, d.num_kv_heads);
  need(d.head_dim >= 2 && d.head_dim % 2 == 0, "head_dim", d.head_dim, "an even number");
  need(d.window >= 0, "window", d.window, "0 or more");
  need.finite("scale", d.scale);
  need.at_least_one({{"world_size", d.world_size},
                     {"tile_kv", c.tile_kv},
                     {"splits", c.splits},
                     {"num_workers", c.num_workers},
                     {"num_combiners", c.num_combiners}});
}

struct Halves {
  Value lo, hi;  // columns [0, head_dim / 2) and the rest
};

class DecodeAttention {
 public:
  DecodeAttention(const AttentionDesc& desc, const DecodeAttentionConfig& config)
      : d_(desc),
        cfg_(config),
        split_(split_heads(desc)),
        num_q_(split_.heads_per_rank),
        num_kv_(split_.kv_heads_per_rank),
        half_(desc.head_dim / 2),
        heads_(heads_of_a_tile(desc)),
        rows_(std::max<std::int64_t>(heads_, 2)),  // the tensor core takes no single row
        blocks_(num_q_ / heads_),
        p_("decode_attention", desc.world_size) {
    m_ = p_.extent("m", 1);
    past_ = p_.scalar("past", d_.max_tokens - 1);
    qkv_ = p_.input("qkv", d_.dtype, {m_, num_q_ + 2 * num_kv_, d_.head_dim});
    cos_ = p_.input("cos", DType::kF32, {d_.max_tokens, half_});
    sin_ = p_.input("sin", DType::kF32, {d_.max_tokens, half_});
    if (d_.head_norm) {
      q_norm_ = p_.input("q_norm", d_.weight_dtype, {1, d_.head_dim});
      k_norm_ = p_.input("k_norm", d_.weight_dtype, {1, d_.head_dim});
    }
    k_cache_ = p_.state("k_cache", d_.dtype, {num_kv_, d_.max_tokens, d_.head_dim});
    v_cache_ = p_.state("v_cache", d_.dtype, {num_kv_, d_.max_tokens, d_.head_dim});
    out_ = p_.output("out", d_.dtype, {m_, num_q_, d_.head_dim});
    if (d_.lse) lse_ = p_.output("lse", DType::kF32, {num_q_, m_});
    sums_ = p_.buffer("sums", DType::kF32, {num_q_, cfg_.splits, d_.head_dim});
    peaks_ = p_.buffer("peaks", DType::kF32, {num_q_, cfg_.splits, 1});  // in powers of two
    weights_ = p_.buffer("weights", DType::kF32, {num_q_, cfg_.splits, 1});
    arrived_ = p_.signal("arrived", blocks_);
  }

  Program run() {
    // The first runs before the later ones, which short contexts leave empty.
    p_.role("attend", Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages),
            p_.range(cfg_.splits * blocks_), [&](const Tile& t) {
              Index block = p_.let("block", t.index % blocks_);
              Index run = p_.let("run", t.index / blocks_);
              p_.when(m_ > 0, [&] { attend(block, run); });
              p_.notify(arrived_[block], p_.rank());
            });
    p_.role("combine", Resource::sms(cfg_.num_combiners), p_.range(num_q_),
            [&](const Tile& t) { combine(t.index); });
    return p_.finish();
  }

 private:
  Halves load_heads(const Index& head, std::int64_t rows, const Index& end) {
    auto part = [&](std::int64_t col) {
      return cast(p_.load(qkv_.tile({0, head, col}, rows, half_).until_row(end)), DType::kF32);
    };
    Value lo = part(0);
    return {std::move(lo), part(half_)};
  }

  // Heads [head, end) of qkv, normalised where the desc says so, rotated and rounded. [rows, half].
  Halves rotated(const Index& head, std::int64_t rows, const Index& end, const TensorRef& norm) {
    Halves x = load_heads(head, rows, end);
    if (d_.head_norm) {
      Value squares = row_sum(x.lo * x.lo) + row_sum(x.hi * x.hi);
      Value scale = rsqrt(squares / static_cast<double>(d_.head_dim) + d_.norm_eps);
      auto normed = [&](const Value& v, std::int64_t col) {
        Value weight = cast(p_.load(norm.tile({0, col}, 1, half_)), DType::kF32);
        return cast(cast(v * scale, d_.dtype), DType::kF32) * weight;
      };
      x.lo = normed(x.lo, 0);
      x.hi = normed(x.hi, half_);
    }
    Value c = p_.load(cos_.tile({past_, 0}, 1, half_));
    Value s = p_.load(sin_.tile({past_, 0}, 1, half_));
    return {cast(x.lo * c - x.hi * s, d_.dtype), cast(x.hi * c + x.lo * s, d_.dtype)};
  }

  // This rank's KV head of a block of query heads.
  Index kv_head(const Index& block) {
    Index group = d_.num_heads / d_.num_kv_heads, last = d_.num_heads - 1;
    Index first = p_.rank() * num_q_;
    return min(first + block * heads_, last) / group - min(first, last) / group;
  }

  void attend(const Index& block, const Index& run) {
    std::int64_t bn = cfg_.tile_kv;
    Index head = p_.let("head", block * heads_);
    Index kv = p_.let("kv", kv_head(block));
    Index begin = d_.window > 0 ? p_.let("begin", max(past_ - (d_.window - 1), 0)) : Index(0);
    // Steps of this run of the tokens [begin, past).
    Index first_step = begin / bn;
    Index steps = p_.let("steps", ceil_div(past_, bn) - first_step);
    Index per_run = p_.let("per_run", ceil_div(steps, cfg_.splits));
    Index from = p_.let("from", first_step + min(run * per_run, steps));
    Index to = p_.let("to", first_step + min((run + 1) * per_run, steps));

    Halves query = rotated(head, rows_, head + heads_, q_norm_);
    OnlineSoftmax softmax(
        p_, {.dtype = d_.dtype, .rows = rows_, .head_dim = d_.head_dim, .scale = scale()});
    p_.loop(from, to, [&](const Index& j) {
      auto block_of = [&](const TensorRef& cache, std::int64_t col, std::int64_t cols) {
        return cache.tile({kv, j * bn, col}, bn, cols).until_row(past_);
      };
      Value scores = dot(p_.zeros(DType::kF32, rows_, bn), query.lo,
                         p_.load(block_of(k_cache_, 0, half_)).T());
      scores = softmax.scores(dot(scores, query.hi, p_.load(block_of(k_cache_, half_, half_)).T()));
      Value col = p_.iota_cols(j * bn, bn);
      Value seen = col < p_.splat(DType::kI32, past_);
      if (d_.window > 0) seen = seen && !(col < p_.splat(DType::kI32, begin));
      scores = where(seen, scores, p_.full(DType::kF32, 1, 1, kMaskedScore));
      softmax.add(scores, block_of(v_cache_, 0, d_.head_dim));
    });
    auto part = [&](const TensorRef& buffer, std::int64_t cols) {
      return buffer.tile({head, run, 0}, rows_, cols).rows_along(0).until_row(head + heads_);
    };
    p_.store(part(sums_, d_.head_dim), softmax.sum());
    p_.store(part(peaks_, 1), softmax.log2_peak());
    p_.store(part(weights_, 1), softmax.weight());
  }

  void append(const Index& kv, const Halves& key, const Value& value) {
    p_.store(k_cache_.tile({kv, past_, 0}, 1, half_), key.lo);
    p_.store(k_cache_.tile({kv, past_, half_}, 1, half_), key.hi);
    p_.store(v_cache_.tile({kv, past_, 0}, 1, d_.head_dim), value);
  }

  // The new token's own part needs no cache: it is ready before the runs have arrived.
  void combine(const Index& head) {
    Index block = p_.let("block", head / heads_);
    Index kv = p_.let("kv", kv_head(block));
    auto new_value = [&](const Index& kv_head) {
      return p_.load(qkv_.tile({0, num_q_ + num_kv_ + kv_head, 0}, 1, d_.head_dim));
    };
    auto new_key = [&](const Index& kv_head) {
      return rotated(num_q_ + kv_head, 1, num_q_ + kv_head + 1, k_norm_);
    };
    auto wide = [](const Value& v) { return cast(v, DType::kF32); };
    Value own_peak = p_.full(DType::kF32, 1, 1, kMaskedScore);
    Value own = p_.zeros(DType::kF32, 1, d_.head_dim);
    p_.when(m_ > 0, [&] {
      Halves query = rotated(head, 1, head + 1, q_norm_), key = new_key(kv);
      Value score = row_sum(wide(query.lo) * wide(key.lo)) + row_sum(wide(query.hi) * wide(key.hi));
      own_peak = score * (scale() * std::numbers::log2e);
      own = own + wide(new_value(kv));
      p_.when(head < num_kv_, [&] { append(head, new_key(head), new_value(head)); });
    });
    p_.wait(arrived_[block], cfg_.splits);
    p_.when(m_ > 0, [&] {
      auto runs = [&](const TensorRef& buffer, std::int64_t cols) {
        return p_.load(buffer.tile({head, 0, 0}, cfg_.splits, cols));
      };
      Value peaks = runs(peaks_, 1);  // [splits, 1]
      Value peak = maximum(col_max(peaks), own_peak);
      Value scale = exp2(peaks - peak), own_scale = exp2(own_peak - peak);
      Value weight = col_sum(runs(weights_, 1) * scale) + own_scale;            // [1, 1]
      Value sum = col_sum(runs(sums_, d_.head_dim) * scale) + own * own_scale;  // [1, head_dim]
      p_.store(out_.tile({0, head, 0}, 1, d_.head_dim), cast(sum / weight, d_.dtype));
      if (d_.lse) p_.store(lse_.tile({head, 0}, 1, 1), peak * std::numbers::ln2 + log(weight));
    });
  }

  double scale() const { return score_scale(d_.scale, d_.head_dim); }

  const AttentionDesc d_;
  const DecodeAttentionConfig cfg_;
  HeadSplit split_;
  std::int64_t num_q_, num_kv_, half_, heads_, rows_, blocks_;
  ProgramBuilder p_;
  Index m_, past_;
  TensorRef qkv_, cos_, sin_, q_norm_, k_norm_, k_cache_, v_cache_, out_, lse_;
  TensorRef sums_, peaks_, weights_;
  SignalRef arrived_;
};

}  // namespace

std::int64_t heads_of_a_tile(const AttentionDesc& d) {
  return std::gcd(d.num_heads / d.num_kv_heads, split_heads(d).heads_per_rank);
}

Program decode_attention(const AttentionDesc& d, const DecodeAttentionConfig& cfg) {
  check(d, cfg);
  return DecodeAttention(d, cfg).run();
}

NamedFields fields_of(DecodeAttentionConfig& c) {
  return {{"tile_kv", c.tile_kv},
          {"splits", c.splits},
          {"workers", c.num_workers},
          {"combiners", c.num_combiners},
          {"stages", c.num_stages, 0}};
}

}  // namespace stretto
