// Plain fp64 reference of attention of several sequences in the rows of one tensor.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/testing/cases/cached_rows_case.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

// Inputs of one rank, and what comes of them.
class PackedReference {
 public:
  PackedReference(OpCase& c, std::size_t rank, const PackedAttentionDesc& d, std::int64_t m,
            std::uint64_t seed)
      : c_(c), r_(rank), d_(d), m_(m), random_(seed * 977 + rank) {
    for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
      const Tensor& tensor = c.program.tensors[t];
      auto count = at(num_elements(bound_shape(c.program, static_cast<int>(t))));
      if (tensor.kind == TensorKind::kOutput) c.expected[r_][t].assign(count, kUnchecked);
      if (tensor.kind == TensorKind::kInput) {
        c.inputs[r_][t] = random_values(count, tensor.dtype, seed * 131 + 7 * t + 1000 * rank);
      }
    }
    cut(seed);
    if (d.page > 0) fill_cache();
    k_ = rows_of("k", seed);
    v_ = rows_of("v", seed + 1);
  }

  void run() {
    for (std::int64_t s = 0; s < d_.sequences; ++s) {
      auto first = static_cast<std::int64_t>(in("starts")[at(s)]);
      auto end = static_cast<std::int64_t>(in("starts")[at(s + 1)]);
      std::int64_t tokens =
          d_.page > 0 ? static_cast<std::int64_t>(in("tokens")[at(s)]) : end - first;
      for (std::int64_t row = first; row < end; ++row) {
        std::int64_t seen = d_.causal ? tokens - (end - row) + 1 : tokens;
        for (std::int64_t head = 0; head < d_.num_heads; ++head) attend(s, first, row, head, seen);
      }
    }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  Values& in(const std::string& name) { return c_.inputs[r_][at(c_.program.find_tensor(name))]; }
  Values& out(const char* name) { return c_.expected[r_][at(c_.program.find_tensor(name))]; }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }

  // The rows by seed: cut at random, a sequence of one token and the rest, all in the last one. In
  // a cache a sequence has as many rows as tokens at most.
  void cut(std::uint64_t seed) {
    Values starts(at(d_.sequences + 1));
    for (double& start : starts) {
      start = static_cast<double>(seed % 3 == 0   ? below(m_ + 1)
                                  : seed % 3 == 1 ? std::min<std::int64_t>(m_, 1)
                                                  : 0);
    }
    starts.front() = 0;
    starts.back() = static_cast<double>(m_);
    std::sort(starts.begin(), starts.end());
    if (d_.page > 0) shorten(starts);
    in("starts") = starts;
  }

  // To as many rows as a sequence has room for, the others before and behind it taking the rest.
  void shorten(Values& starts) const {
    for (std::size_t s = 1; s < starts.size(); ++s) {
      auto behind = static_cast<std::int64_t>(starts.size() - 1 - s);
      double least = static_cast<double>(m_ - behind * d_.max_tokens);
      double most = starts[s - 1] + static_cast<double>(d_.max_tokens);
      starts[s] = std::min(std::max({starts[s], least, starts[s - 1]}), most);
    }
  }

  void fill_cache() {
    for (double& page : in("pages")) page = static_cast<double>(below(d_.num_pages));
    for (std::int64_t s = 0; s < d_.sequences; ++s) {
      auto rows = static_cast<std::int64_t>(in("starts")[at(s + 1)] - in("starts")[at(s)]);
      in("tokens")[at(s)] = static_cast<double>(rows + below(d_.max_tokens - rows + 1));
    }
  }

  // Keys or values, as the queries see them.
  Values rows_of(const std::string& kind, std::uint64_t seed) {
    const Values& rows = in(d_.page > 0 ? kind + "_pages" : kind);
    if (!d_.fp8) return rows;
    Values& scales = in(kind + "_scales");
    scales = random_scales(scales.size(), seed * 31 + r_);
    return scaled_rows(rows, scales, d_.head_dim, d_.dtype);
  }

  // Where a token's key or value lies.
  std::size_t place(std::int64_t s, std::int64_t first, std::int64_t kv, std::int64_t token) {
    if (d_.page == 0) return at(((first + token) * d_.num_kv_heads + kv) * d_.head_dim);
    double page = in("pages")[at(s * d_.pages_per_sequence() + token / d_.page)];
    std::int64_t entry = static_cast<std::int64_t>(page) * d_.num_kv_heads + kv;
    return at((entry * d_.page + token % d_.page) * d_.head_dim);
  }

  void attend(std::int64_t s, std::int64_t first, std::int64_t row, std::int64_t head,
              std::int64_t seen) {
    const Values& q = in("q");
    std::int64_t kv = head / (d_.num_heads / d_.num_kv_heads);
    std::size_t query = at((row * d_.num_heads + head) * d_.head_dim), dim = at(d_.head_dim);
    Values sum(dim);
    double total = 0;
    std::int64_t begin = d_.window > 0 ? std::max<std::int64_t>(seen - d_.window, 0) : 0;
    for (std::int64_t t = begin; t < seen; ++t) {
      std::size_t from = place(s, first, kv, t);
      double score = 0;
      for (std::size_t i = 0; i < dim; ++i) score += q[query + i] * k_[from + i];
      double weight = std::exp(score / std::sqrt(static_cast<double>(d_.head_dim)));
      total += weight;
      for (std::size_t i = 0; i < dim; ++i) sum[i] += weight * v_[from + i];
    }
    for (std::size_t i = 0; i < dim; ++i) out("out")[query + i] = sum[i] / total;
    if (d_.lse) out("lse")[at(head * d_.m + row)] = std::log(total);
  }

  OpCase& c_;
  std::size_t r_;
  const PackedAttentionDesc& d_;
  std::int64_t m_;
  Values k_, v_;
  std::mt19937_64 random_;
};

OpCase packed_case(const OpShape& s, std::uint64_t seed, PackedKeys keys) {
  PackedAttentionDesc d = packed_desc(s, keys);
  OpCase c;
  c.program = packed_program(s, keys);
  std::int64_t m = s.rows.value_or(seed % 4 == 3 ? d.m / 2 : d.m);
  c.extents = {m};
  c.config = fmt::format("{} {} m={}", c.program.name, to_string(d), m);
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  c.tolerance = sum_tolerance(d.dtype, std::max(d.m, d.max_tokens)) * 4;
  for (std::size_t r = 0; r < c.inputs.size(); ++r) PackedReference(c, r, d, m, seed).run();
  return c;
}

}  // namespace

std::vector<OperatorCase> packed_attention_cases() {
  auto of = [](PackedKeys keys) {
    return [keys](const OpShape& s, std::uint64_t seed) { return packed_case(s, seed, keys); };
  };
  return {{"packed_attention", of(PackedKeys::kLikeQueries)},
          {"paged_attention", of(PackedKeys::kPaged)},
          {"paged_attention_fp8", of(PackedKeys::kPagedFp8)}};
}

}  // namespace stretto
