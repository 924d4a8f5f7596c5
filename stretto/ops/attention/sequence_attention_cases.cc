// Plain fp64 reference of attention whose tokens are spread over the ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/attention/sequence_cases.h"

namespace stretto {
namespace {

constexpr double kUnchecked = std::numeric_limits<double>::quiet_NaN();

// m: tokens of all ranks; n: heads of queries; k: head size.
SequenceAttentionDesc desc_of(const OpShape& s) {
  SequenceAttentionDesc d{.dtype = s.dtype, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 64;
  d.num_heads = s.n > 0 ? static_cast<int>(s.n) : 4;
  d.num_kv_heads = d.num_heads % 4 == 0 ? d.num_heads / 4 : d.num_heads % 2 == 0 ? 2 : 1;
  d.head_dim = s.k > 0 ? s.k : 32;
  d.causal = d.num_heads % 3 != 0;                       // three heads test that all see all
  if (d.causal && d.m % 5 == 0) d.window = d.m / 4 + 1;  // fives a window
  d.lse = d.m % 2 == 1;
  return d;
}

using Default = SequenceAttentionConfig (*)(const SequenceAttentionDesc&, Target);

SequenceAttentionConfig config_of(const SequenceAttentionDesc& d, Target target,
                                  Default default_of) {
  SequenceAttentionConfig c = default_of(d, target);
  if (target == Target::kCuda) return c;
  c.tile_rows = std::min<std::int64_t>(2, c.tile_rows);
  c.tile_kv = std::min<std::int64_t>(3, c.tile_kv);
  c.comm_rows = std::min<std::int64_t>(2, c.comm_rows);
  if (default_of != default_ring_config) c.num_queues = 2;
  c.num_workers = 2;
  c.head_group = d.num_heads % 2 == 0 ? d.num_heads / 2 : 0;
  return c;
}

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 4 * world_size + 3, .n = 3, .k = 4},
          {.world_size = world_size, .m = 14, .n = 4, .k = 16, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 25, .n = 4, .k = 8}};
}

// Four ranks and more also run the form of the ring that is not the default, with a window.
std::vector<OpShape> ring_shapes(int world_size) {
  std::vector<OpShape> all = shapes(world_size);
  OpShape other{.world_size = world_size, .m = 35, .n = 4, .k = 8, .test_config = true};
  if (world_size > 3) all.insert(all.end() - 1, other);
  return all;
}

int num_slots_of(const SequenceAttentionDesc& d, const OpShape& s) {
  int by_default = default_ring_config(d, s.target).num_slots;
  if (!s.test_config) return by_default;
  return by_default == 2 ? d.world_size - 1 : 2;
}

OpShape large() { return {.m = 16384, .n = 32, .k = 128, .dtype = DType::kBF16}; }

// The rank and the row of its tensors that hold a token.
struct Place {
  std::size_t rank;
  std::int64_t row;
};

class Reference {
 public:
  Reference(const SequenceAttentionDesc& d, Program program, const OpShape& s, std::uint64_t seed)
      : d_(d) {
    c_.program = std::move(program);
    m_ = s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
    chunk_ = ceil_div(m_, std::int64_t{2} * d.world_size);
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
    std::int64_t rows = 2 * ceil_div(d_.m, std::int64_t{2} * d_.world_size);
    c_.expected[at.rank][idx("lse")][static_cast<std::size_t>(head * rows + at.row)] =
        std::log(total);
  }

  const SequenceAttentionDesc& d_;
  OpCase c_;
  std::int64_t m_, chunk_;
};

Program program_of(const std::string& name, const SequenceAttentionDesc& d, Target target) {
  return name == "sequence_attention"
             ? sequence_attention(d, config_of(d, target, default_config))
             : token_ring(d, config_of(d, target, default_token_ring_config));
}

Program ring_program(const SequenceAttentionDesc& d, Target target, int num_slots) {
  SequenceAttentionConfig c = config_of(d, target, default_ring_config);
  c.num_slots = num_slots;
  return ring_attention(d, c);
}

OperatorInfo info(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .program = [=](const OpShape& s) { return program_of(name, desc_of(s), s.target); },
          .make_case = [=](const OpShape& s,
                           std::uint64_t seed) { return sequence_case(name, desc_of(s), s, seed); },
          .shapes = shapes,
          .large = large()};
}

}  // namespace

OpCase sequence_case(const std::string& name, const SequenceAttentionDesc& d, const OpShape& s,
                     std::uint64_t seed) {
  if (name == "ring_attention") return ring_case(d, num_slots_of(d, s), s, seed);
  return Reference(d, program_of(name, d, s.target), s, seed).run();
}

OpCase ring_case(const SequenceAttentionDesc& d, int num_slots, const OpShape& s,
                 std::uint64_t seed) {
  return Reference(d, ring_program(d, s.target, num_slots), s, seed).run();
}

OperatorInfo sequence_attention_info() {
  return info("sequence_attention",
              "causal GQA attention of m tokens spread over the ranks, n heads of size k; copy "
              "engines send keys and values");
}

OperatorInfo ring_attention_info() {
  OperatorInfo op = info("ring_attention",
                         "causal GQA attention of m tokens spread over the ranks, n heads of size "
                         "k; keys and values travel around the ring");
  op.program = [](const OpShape& s) {
    SequenceAttentionDesc d = desc_of(s);
    return ring_program(d, s.target, num_slots_of(d, s));
  };
  op.shapes = ring_shapes;
  return op;
}

OperatorInfo token_ring_info() {
  return info("token_ring",
              "causal GQA attention of m tokens spread over the ranks, n heads of size k; queries "
              "go from rank to rank, sums come back");
}

}  // namespace stretto
