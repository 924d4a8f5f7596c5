// Plain fp64 reference of attention over a cache that is spread over the ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/sequence_cases.h"

namespace stretto {
namespace {

}  // namespace

OpCase flash_decode_case(const FlashDecodeDesc& d, const OpShape& shape, std::uint64_t seed) {
  std::int64_t group = d.num_heads / d.num_kv_heads;
  OpCase c;
  c.program = flash_decode(d, flash_decode_config(d, shape.target));
  std::int64_t m = shape.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
  std::int64_t tokens = d.max_tokens - static_cast<std::int64_t>(seed % 5) * (d.max_tokens / 6);
  c.extents = {m, tokens};
  c.config = fmt::format("flash_decode {} m={} tokens={}", to_string(d), m, tokens);
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  c.tolerance = sum_tolerance(d.dtype, d.max_tokens) * 4;
  auto idx = [&](const char* name) {
    return static_cast<std::size_t>(c.program.find_tensor(name));
  };
  auto size = [&](std::size_t t) {
    return static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(t))));
  };
  Values seen(size(idx("seen")));  // the last token sees all, each one before one less
  for (std::size_t row = 0; row < seen.size(); ++row) {
    auto later = static_cast<double>(m - 1) - static_cast<double>(row) / static_cast<double>(group);
    seen[row] = std::max(1.0, static_cast<double>(tokens) - std::ceil(later));
  }
  Values q = random_values(size(idx("q")), d.dtype, seed * 131);
  Values out(q.size(), kUnchecked), lse(d.lse ? size(idx("lse")) : 0, kUnchecked);
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    c.inputs[r][idx("q")] = q;
    c.inputs[r][idx("seen")] = seen;
    for (const char* cache : {"k_cache", "v_cache"}) {
      c.inputs[r][idx(cache)] =
          random_values(size(idx(cache)), d.dtype, seed * 131 + idx(cache) + 1000 * r);
    }
  }
  auto cached = [&](const char* cache, std::int64_t kv, std::int64_t token, std::int64_t i) {
    std::int64_t block = token / d.block;
    std::int64_t row = block / d.world_size * d.block + token % d.block;
    const Values& values = c.inputs[static_cast<std::size_t>(block % d.world_size)][idx(cache)];
    return values[static_cast<std::size_t>((kv * d.tokens_per_rank() + row) * d.head_dim + i)];
  };
  for (std::int64_t kv = 0; kv < d.num_kv_heads; ++kv) {
    for (std::int64_t row = 0; row < m * group; ++row) {
      auto at = static_cast<std::size_t>((kv * d.m * group + row) * d.head_dim);
      Values sum(static_cast<std::size_t>(d.head_dim));
      double total = 0;
      auto end = static_cast<std::int64_t>(seen[static_cast<std::size_t>(row)]);
      std::int64_t begin = d.window > 0 ? std::max<std::int64_t>(end - d.window, 0) : 0;
      for (std::int64_t t = begin; t < end; ++t) {
        double score = 0;
        for (std::int64_t i = 0; i < d.head_dim; ++i) {
          score += q[at + static_cast<std::size_t>(i)] * cached("k_cache", kv, t, i);
        }
        double weight = std::exp(score * score_scale(d.scale, d.head_dim));
        total += weight;
        for (std::int64_t i = 0; i < d.head_dim; ++i) {
          sum[static_cast<std::size_t>(i)] += weight * cached("v_cache", kv, t, i);
        }
      }
      for (std::size_t i = 0; i < sum.size(); ++i) out[at + i] = sum[i] / total;
      std::int64_t head = kv * group + row % group;
      if (d.lse) lse[static_cast<std::size_t>(row / group * d.num_heads + head)] = std::log(total);
    }
  }
  for (auto& expected : c.expected) {
    expected[idx("out")] = out;
    if (d.lse) expected[idx("lse")] = lse;
  }
  return c;
}

std::vector<OperatorCase> flash_decode_cases() {
  return {{"flash_decode", [](const OpShape& s, std::uint64_t seed) {
             return flash_decode_case(flash_decode_desc(s), s, seed);
           }}};
}

}  // namespace stretto
