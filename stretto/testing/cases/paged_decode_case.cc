// Plain fp64 reference of a decoding step over a cache of pages.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/testing/cases/cached_rows_case.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

// Inputs of one rank, and what comes of them.
class PagedDecodeReference {
 public:
  PagedDecodeReference(OpCase& c, std::size_t rank, const PagedDecodeDesc& d, std::uint64_t seed)
      : c_(c), r_(rank), d_(d), random_(seed * 977 + rank) {
    for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
      const Tensor& tensor = c.program.tensors[t];
      auto count = at(num_elements(bound_shape(c.program, static_cast<int>(t))));
      if (tensor.kind == TensorKind::kOutput) {
        c.expected[r_][t].assign(count, kUnchecked);
      }
      if (tensor.kind == TensorKind::kInput) {
        c.inputs[r_][t] = random_values(count, tensor.dtype, seed * 131 + 7 * t + 1000 * rank);
      }
    }
    k_ = cached("k", seed);
    v_ = cached("v", seed + 1);
    for (double& page : in("pages")) page = static_cast<double>(below(d.num_pages));
    // None, one, all, or any number; some of the first, so that every launch has a result.
    for (double& tokens : in("tokens")) {
      std::int64_t kind = below(5);
      tokens = static_cast<double>(kind < 2    ? kind
                                   : kind == 2 ? d.max_tokens
                                               : below(d.max_tokens));
    }
    if (in("tokens")[0] == 0) in("tokens")[0] = 1;
  }

  void run(std::int64_t m) {
    scale("out");
    if (d_.lse) scale("lse");
    for (std::int64_t s = 0; s < m; ++s) {
      for (std::int64_t head = 0; head < d_.num_heads; ++head) attend(s, head);
    }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  Values& in(const std::string& name) { return c_.inputs[r_][at(c_.program.find_tensor(name))]; }
  Values& out(const char* name) { return c_.expected[r_][at(c_.program.find_tensor(name))]; }
  Values& scale(const char* name) {
    std::vector<Values>& of_ranks = c_.scales[name];
    of_ranks.resize(c_.expected.size());
    of_ranks[r_].resize(out(name).size(), 0.0);
    return of_ranks[r_];
  }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }

  // What the cache stands for.
  Values cached(const std::string& kind, std::uint64_t seed) {
    const Values& pages = in(kind + "_pages");
    if (!d_.fp8) return pages;
    Values& scales = in(kind + "_scales");
    scales = random_scales(scales.size(), seed * 31 + r_);
    return scaled_rows(pages, scales, d_.head_dim, d_.dtype);
  }

  void attend(std::int64_t s, std::int64_t head) {
    std::int64_t kv = head / (d_.num_heads / d_.num_kv_heads);
    std::size_t query = at((s * d_.num_heads + head) * d_.head_dim), dim = at(d_.head_dim);
    auto tokens = static_cast<std::int64_t>(in("tokens")[at(s)]);
    if (tokens == 0) return;  // not numbers, and not compared
    Values sum(dim);
    // Scales of pages make what a head sees of many magnitudes.
    double total = 0, most_score = 0, most_value = 0;
    std::int64_t begin = d_.window > 0 ? std::max<std::int64_t>(tokens - d_.window, 0) : 0;
    for (std::int64_t t = begin; t < tokens; ++t) {
      auto page =
          static_cast<std::int64_t>(in("pages")[at(s * d_.pages_per_sequence() + t / d_.page)]);
      std::size_t from = at(((page * d_.num_kv_heads + kv) * d_.page + t % d_.page) * d_.head_dim);
      double score = 0, squares = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        const double term = in("q")[query + i] * k_[from + i];
        score += term, squares += term * term;
      }
      const double root = std::sqrt(static_cast<double>(d_.head_dim));
      double weight = std::exp(score / root);
      total += weight;
      most_score = std::max(most_score, 3 * std::sqrt(squares) / root);
      for (std::size_t i = 0; i < dim; ++i) {
        sum[i] += weight * v_[from + i];
        most_value = std::max(most_value, std::fabs(v_[from + i]));
      }
    }
    for (std::size_t i = 0; i < dim; ++i) {
      out("out")[query + i] = sum[i] / total;
      scale("out")[query + i] = most_value;
    }
    if (!d_.lse) return;
    out("lse")[at(s * d_.num_heads + head)] = std::log(total);
    scale("lse")[at(s * d_.num_heads + head)] = most_score;
  }

  OpCase& c_;
  std::size_t r_;
  const PagedDecodeDesc& d_;
  Values k_, v_;
  std::mt19937_64 random_;
};

OpCase paged_decode_case(const OpShape& s, std::uint64_t seed, bool fp8) {
  PagedDecodeDesc d = paged_decode_desc(s, fp8);
  OpCase c;
  c.program = paged_decode_program(s, fp8);
  std::int64_t m = s.rows.value_or(seed % 4 == 3 ? d.m / 2 : d.m);
  c.extents = {m};
  c.config = fmt::format("{} {} m={}", c.program.name, to_string(d), m);
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  c.tolerance = sum_tolerance(d.dtype, d.max_tokens) * 4;
  for (std::size_t r = 0; r < c.inputs.size(); ++r) PagedDecodeReference(c, r, d, seed).run(m);
  return c;
}

}  // namespace

std::vector<OperatorCase> paged_decode_cases() {
  auto of = [](bool fp8) {
    return [fp8](const OpShape& s, std::uint64_t seed) { return paged_decode_case(s, seed, fp8); };
  };
  return {{"paged_decode", of(false)}, {"paged_decode_fp8", of(true)}};
}

}  // namespace stretto
