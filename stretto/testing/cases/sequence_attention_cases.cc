// Plain fp64 reference of attention whose tokens are spread over the ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/sequence_cases.h"

namespace stretto {
namespace {

// The rank and the row of its tensors that hold a token.
struct Place {
  std::size_t rank;
  std::int64_t row;
};

class SequenceReference {
 public:
  SequenceReference(const SequenceAttentionDesc& d, Program program, const OpShape& s,
                    std::uint64_t seed)
      : d_(d) {
    c_.program = std::move(program);
    m_ = s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
    chunk_ = ceil_div(m_, std::int64_t{d.contiguous ? 1 : 2} * d.world_size);
    c_.extents = {m_};
    c_.config = fmt::format("{} {} m={}", c_.program.name, to_string(d), m_);
    c_.inputs = no_values(c_.program);
    c_.expected = no_values(c_.program);
    c_.tolerance = sum_tolerance(d.dtype, d.m) * 4;
    for (std::size_t r = 0; r < c_.inputs.size(); ++r) {
      for (std::size_t t = 0; t < c_.program.tensors.size(); ++t) {
        const Tensor& tensor = c_.program.tensors[t];
        auto count =
            static_cast<std::size_t>(num_elements(bound_shape(c_.program, static_cast<int>(t))));
        if (tensor.kind == TensorKind::kOutput) c_.expected[r][t].assign(count, kUnchecked);
        if (tensor.kind == TensorKind::kInput) {
          c_.inputs[r][t] = random_values(count, tensor.dtype, seed * 131 + 7 * t + 1000 * r);
        }
      }
    }
  }

  OpCase run() {
    for (std::int64_t token = 0; token < m_; ++token) {
      for (std::int64_t head = 0; head < d_.num_heads; ++head) attend(token, head);
    }
    return std::move(c_);
  }

 private:
  Place place_of(std::int64_t token) const {
    std::int64_t chunk = token / chunk_, in_chunk = token % chunk_;
    if (d_.contiguous) return {static_cast<std::size_t>(chunk), in_chunk};
    bool low = chunk < d_.world_size;
    return {static_cast<std::size_t>(low ? chunk : 2 * d_.world_size - 1 - chunk),
            low ? in_chunk : chunk_ + in_chunk};
  }

  std::size_t idx(const char* name) const {
    return static_cast<std::size_t>(c_.program.find_tensor(name));
  }
  double in(const char* name, std::int64_t token, std::int64_t cols, std::int64_t col) const {
    Place at = place_of(token);
    return c_.inputs[at.rank][idx(name)][static_cast<std::size_t>(at.row * cols + col)];
  }

  void attend(std::int64_t token, std::int64_t head) {
    std::int64_t q_cols = d_.num_heads * d_.head_dim, kv_cols = d_.num_kv_heads * d_.head_dim;
    std::int64_t kv = head / (d_.num_heads / d_.num_kv_heads);
    Values sum(static_cast<std::size_t>(d_.head_dim));
    double total = 0;
    std::int64_t begin = d_.window > 0 ? std::max<std::int64_t>(token + 1 - d_.window, 0) : 0;
    for (std::int64_t t = begin; t < (d_.causal ? token + 1 : m_); ++t) {
      double score = 0;
      for (std::int64_t i = 0; i < d_.head_dim; ++i) {
        score += in("q", token, q_cols, head * d_.head_dim + i) *
                 in("k", t, kv_cols, kv * d_.head_dim + i);
      }
      double weight = std::exp(score / std::sqrt(static_cast<double>(d_.head_dim)));
      total += weight;
      for (std::int64_t i = 0; i < d_.head_dim; ++i) {
        sum[static_cast<std::size_t>(i)] += weight * in("v", t, kv_cols, kv * d_.head_dim + i);
      }
    }
    Place at = place_of(token);
    Values& out = c_.expected[at.rank][idx("out")];
    for (std::int64_t i = 0; i < d_.head_dim; ++i) {
      out[static_cast<std::size_t>(at.row * q_cols + head * d_.head_dim + i)] =
          sum[static_cast<std::size_t>(i)] / total;
    }
    if (!d_.lse) return;
    std::int64_t rows = d_.contiguous ? ceil_div(d_.m, std::int64_t{d_.world_size})
                                      : 2 * ceil_div(d_.m, std::int64_t{2} * d_.world_size);
    c_.expected[at.rank][idx("lse")][static_cast<std::size_t>(head * rows + at.row)] =
        std::log(total);
  }

  const SequenceAttentionDesc& d_;
  OpCase c_;
  std::int64_t m_, chunk_;
};

}  // namespace

OpCase sequence_case(const std::string& name, const SequenceAttentionDesc& d, const OpShape& s,
                     std::uint64_t seed) {
  if (name == "ring_attention") return ring_case(d, ring_slots(d, s), s, seed);
  return SequenceReference(d, sequence_program(name, d, s.target), s, seed).run();
}

OpCase ring_case(const SequenceAttentionDesc& d, int num_slots, const OpShape& s,
                 std::uint64_t seed) {
  return SequenceReference(d, ring_program(d, s.target, num_slots), s, seed).run();
}

std::vector<OperatorCase> sequence_attention_cases() {
  std::vector<OperatorCase> cases;
  for (const char* name : {"sequence_attention", "ring_attention", "token_ring"}) {
    cases.push_back({name, [name](const OpShape& s, std::uint64_t seed) {
                       return sequence_case(name, sequence_desc(s), s, seed);
                     }});
  }
  return cases;
}

}  // namespace stretto
