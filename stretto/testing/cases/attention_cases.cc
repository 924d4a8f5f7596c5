// Plain fp64 references of rotary embedding and attention, head by head, token by token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/decode_attention.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

struct AttentionCase {
  OpCase c;
  AttentionDesc d;
  HeadSplit split;
  std::int64_t m, past;

  AttentionCase(const AttentionDesc& desc, Program program, const OpShape& s, std::uint64_t seed)
      : d(desc), split(split_heads(desc)) {
    c.program = std::move(program);
    m = s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
    std::int64_t room = d.m > d.max_tokens ? d.max_tokens : d.max_tokens - d.m + 1;
    past = static_cast<std::int64_t>(seed / 2) % room;
    c.extents = {m, past};
    c.config = fmt::format("{} {} m={} past={}", c.program.name, to_string(d), m, past);
    c.inputs = no_values(c.program);
    c.expected = no_values(c.program);
    c.tolerance = sum_tolerance(d.dtype, d.max_tokens) * 4;
    for (std::size_t r = 0; r < c.inputs.size(); ++r) {
      for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
        auto count =
            static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(t))));
        const Tensor& tensor = c.program.tensors[t];
        if (tensor.kind == TensorKind::kOutput) {
          c.expected[r][t].assign(count, kUnchecked);
        } else {
          c.inputs[r][t] = random_values(count, tensor.dtype, seed * 131 + 7 * t + 1000 * r);
          if (tensor.kind == TensorKind::kState) c.expected[r][t] = c.inputs[r][t];
        }
      }
    }
  }

  std::size_t idx(const char* name) const {
    return static_cast<std::size_t>(c.program.find_tensor(name));
  }
  Values& in(std::size_t r, const char* name) { return c.inputs[r][idx(name)]; }
  Values& out(std::size_t r, const char* name) { return c.expected[r][idx(name)]; }
};

// One head of one token, rotated (and normalised first where the desc says so).
Values rotated(AttentionCase& a, std::size_t r, std::int64_t token, std::int64_t column,
               const char* norm) {
  const AttentionDesc& d = a.d;
  std::int64_t half = d.head_dim / 2,
               width = (a.split.heads_per_rank + 2 * a.split.kv_heads_per_rank) * d.head_dim;
  Values x(static_cast<std::size_t>(d.head_dim)), y(x.size());
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = a.in(r, "qkv")[static_cast<std::size_t>(token * width + column) + i];
    squares += x[i] * x[i];
  }
  if (d.head_norm) {
    double scale = 1 / std::sqrt(squares / static_cast<double>(d.head_dim) + d.norm_eps);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= scale * a.in(r, norm)[i];
  }
  for (std::int64_t i = 0; i < half; ++i) {
    auto at = static_cast<std::size_t>((a.past + token) * half + i);
    double c = a.in(r, "cos")[at], s = a.in(r, "sin")[at];
    auto lo = static_cast<std::size_t>(i), hi = static_cast<std::size_t>(i + half);
    y[lo] = x[lo] * c - x[hi] * s;
    y[hi] = x[hi] * c + x[lo] * s;
  }
  return y;
}

OpCase rope_case(const OpShape& shape, std::uint64_t seed) {
  AttentionDesc d = attention_desc(shape);
  AttentionCase a(d, rope(d, rope_config(d, shape.target)), shape, seed);
  std::int64_t num_q = a.split.heads_per_rank, num_kv = a.split.kv_heads_per_rank;
  std::int64_t width = (num_q + 2 * num_kv) * d.head_dim;
  a.c.exact = {"v_cache"};
  for (std::size_t r = 0; r < a.c.inputs.size(); ++r) {
    for (std::int64_t token = 0; token < a.m; ++token) {
      for (std::int64_t h = 0; h < num_q; ++h) {
        Values y = rotated(a, r, token, h * d.head_dim, "q_norm");
        std::copy(y.begin(), y.end(), a.out(r, "q").begin() + (token * num_q + h) * d.head_dim);
      }
      for (std::int64_t h = 0; h < num_kv; ++h) {
        std::int64_t at = (h * d.max_tokens + a.past + token) * d.head_dim;
        Values y = rotated(a, r, token, (num_q + h) * d.head_dim, "k_norm");
        std::copy(y.begin(), y.end(), a.out(r, "k_cache").begin() + at);
        auto v = a.in(r, "qkv").begin() + token * width + (num_q + num_kv + h) * d.head_dim;
        std::copy(v, v + d.head_dim, a.out(r, "v_cache").begin() + at);
      }
    }
  }
  return std::move(a.c);
}

struct Attended {
  Values out;
  double lse;
};

// What one query head of one token of a sequence makes of the cache as it stands after this launch.
Attended attended(const AttentionCase& a, int rank, std::int64_t sequence, std::int64_t token,
                  std::int64_t h, const Values& query, const Values& keys, const Values& values) {
  const AttentionDesc& d = a.d;
  auto num_q = static_cast<std::int64_t>(a.split.heads_per_rank);
  int head = std::min(rank * static_cast<int>(num_q) + static_cast<int>(h), d.num_heads - 1);
  std::int64_t kv = sequence * a.split.kv_heads_per_rank + head / (d.num_heads / d.num_kv_heads) -
                    a.split.first_kv_head(rank);
  std::int64_t place = a.past + token, last = std::min(place, d.max_tokens - 1);
  std::int64_t first = d.window > 0 ? std::max<std::int64_t>(0, place - d.window + 1) : 0;
  auto at = [&](std::int64_t t, std::int64_t i) {
    return static_cast<std::size_t>((kv * d.max_tokens + t) * d.head_dim + i);
  };
  Values weights, out;
  double total = 0;
  for (std::int64_t t = first; t <= last; ++t) {
    double score = 0;
    for (std::int64_t i = 0; i < d.head_dim; ++i) {
      score += query[static_cast<std::size_t>(i)] * keys[at(t, i)];
    }
    weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d.head_dim))));
    total += weights.back();
  }
  for (std::int64_t i = 0; i < d.head_dim; ++i) {
    double sum = 0;
    for (std::int64_t t = first; t <= last; ++t) {
      sum += weights[static_cast<std::size_t>(t - first)] * values[at(t, i)];
    }
    out.push_back(total > 0 ? sum / total : 0);
  }
  return {std::move(out), std::log(total)};
}

OpCase attention_case(const OpShape& shape, std::uint64_t seed) {
  AttentionDesc d = attention_batch_desc(shape);
  AttentionCase a(d, attention(d, attention_config(d, shape.target)), shape, seed);
  std::int64_t num_q = a.split.heads_per_rank;
  for (std::size_t r = 0; r < a.c.inputs.size(); ++r) {
    for (std::int64_t i = 0; i < d.batch * a.m * num_q; ++i) {
      std::int64_t sequence = i / (a.m * num_q), token = i / num_q % a.m, h = i % num_q;
      auto at = ((sequence * d.m + token) * num_q + h) * d.head_dim;
      auto q = a.in(r, "q").begin() + at;
      Attended want = attended(a, static_cast<int>(r), sequence, token, h,
                               Values(q, q + d.head_dim), a.in(r, "k_cache"), a.in(r, "v_cache"));
      std::copy(want.out.begin(), want.out.end(), a.out(r, "out").begin() + at);
      if (d.lse) {
        a.out(r, "lse")[static_cast<std::size_t>((sequence * num_q + h) * d.m + token)] = want.lse;
      }
    }
  }
  return std::move(a.c);
}

// As the reference of attention, over a cache that holds the new token; rows are rounded as they
// enter the cache.
OpCase decode_attention_case(const OpShape& shape, std::uint64_t seed) {
  AttentionDesc d = decode_desc(shape);
  AttentionCase a(d, decode_attention(d, decode_config(d, shape.target)), shape, seed);
  std::int64_t num_q = a.split.heads_per_rank, num_kv = a.split.kv_heads_per_rank;
  a.c.exact = {"v_cache"};
  for (std::size_t r = 0; r < a.c.inputs.size(); ++r) {
    Values &keys = a.out(r, "k_cache"), &values = a.out(r, "v_cache");
    if (a.m == 0) continue;
    auto rounded_head = [&](std::int64_t head, const char* norm) {
      return round_to(rotated(a, r, 0, head * d.head_dim, norm), d.dtype);
    };
    for (std::int64_t h = 0; h < num_kv; ++h) {
      std::int64_t at = (h * d.max_tokens + a.past) * d.head_dim;
      Values y = rounded_head(num_q + h, "k_norm");
      std::copy(y.begin(), y.end(), keys.begin() + at);
      auto v = a.in(r, "qkv").begin() + (num_q + num_kv + h) * d.head_dim;
      std::copy(v, v + d.head_dim, values.begin() + at);
    }
    for (std::int64_t h = 0; h < num_q; ++h) {
      Attended want =
          attended(a, static_cast<int>(r), 0, 0, h, rounded_head(h, "q_norm"), keys, values);
      std::copy(want.out.begin(), want.out.end(), a.out(r, "out").begin() + h * d.head_dim);
      if (d.lse) a.out(r, "lse")[static_cast<std::size_t>(h)] = want.lse;
    }
  }
  return std::move(a.c);
}

}  // namespace

std::vector<OperatorCase> attention_cases() {
  return {{"rope", rope_case},
          {"attention", attention_case},
          {"decode_attention", decode_attention_case}};
}

}  // namespace stretto
