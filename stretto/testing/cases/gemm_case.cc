#include "stretto/testing/cases/gemm_case.h"

#include <algorithm>
#include <cmath>

#include "stretto/base/errors.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

// Adds bias[n] to every row.
void add_bias(Values& out, const Values& bias) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += bias[i % bias.size()];
}

}  // namespace

const Values& input_of(const OpCase& c, int rank, std::string_view tensor) {
  int idx = c.program.find_tensor(std::string(tensor));
  STRETTO_CHECK(idx >= 0, "no tensor " + std::string(tensor));
  return c.inputs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(idx)];
}

Values product_reference(const Values& a, const Values& b, const ProductShape& s) {
  Values out(static_cast<std::size_t>(s.m * s.n));
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      const double* x = a.data() + i * s.k;
      const double* y = b.data() + j * s.k;
      double sum = 0;
      for (std::int64_t l = 0; l < s.k; ++l) sum += x[l] * y[l];
      out[static_cast<std::size_t>(i * s.n + j)] = sum;
    }
  }
  return out;
}

void fill_inputs(OpCase& c, std::uint64_t seed) {
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  for (std::size_t rank = 0; rank < c.inputs.size(); ++rank) {
    std::uint64_t num_inputs = 0;
    for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
      const Tensor& tensor = c.program.tensors[t];
      if (tensor.kind != TensorKind::kInput) continue;
      auto count =
          static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(t))));
      Values& values = c.inputs[rank][t];
      values = random_values(count, tensor.dtype, seed * 4099 + rank * 64 + num_inputs++);
      if (tensor.name.starts_with("scale_")) {  // in [0.25, 1.25), exact in f32
        for (double& v : values) v = 0.75 + v / 2;
        values = round_to(values, tensor.dtype);
      }
    }
  }
}

Values scaled_rows(const OpCase& c, int rank, const ProductShape& s) {
  Values a = input_of(c, rank, "a");
  if (s.scaling == Scaling::kNone) return a;
  const Values& scale = input_of(c, rank, "scale_a");
  std::int64_t cols = scale_columns(s.scaling, s.k);
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto row = static_cast<std::int64_t>(i) / s.k, at = static_cast<std::int64_t>(i) % s.k;
    std::int64_t block = s.scaling == Scaling::kBlock ? at / kScaleBlock : 0;
    a[i] *= scale[static_cast<std::size_t>(row * cols + block)];
  }
  return a;
}

Values scaled_weights(const OpCase& c, int rank, const std::string& suffix, const ProductShape& s) {
  Values b = input_of(c, rank, "b" + suffix);
  if (s.b_kn) {
    const Values kn = b;
    for (std::size_t i = 0; i < b.size(); ++i) {
      auto n = static_cast<std::int64_t>(i) / s.k, k = static_cast<std::int64_t>(i) % s.k;
      b[i] = kn[static_cast<std::size_t>(k * s.n + n)];
    }
  }
  if (s.scaling == Scaling::kNone) return b;
  const Values& scale = input_of(c, rank, "scale_b" + suffix);
  std::int64_t cols = scale_columns(s.scaling, s.k);
  for (std::size_t i = 0; i < b.size(); ++i) {
    auto row = static_cast<std::int64_t>(i) / s.k, at = static_cast<std::int64_t>(i) % s.k;
    std::int64_t block = row / kScaleBlock * cols + at / kScaleBlock;
    b[i] *= scale[static_cast<std::size_t>(s.scaling == Scaling::kBlock ? block : row)];
  }
  return b;
}

double factor_tolerance(DType factors, std::int64_t k) {
  if (factors != DType::kF8E4M3) return 0;
  return static_cast<double>(ceil_div(k, std::int64_t{32})) * 0x1p-13;
}

Values linear_reference(const OpCase& c, int rank, const Values& a, const ProductShape& shape) {
  auto side = [&](const std::string& suffix) {
    Values out = product_reference(a, scaled_weights(c, rank, suffix, shape), shape);
    if (c.program.find_tensor("bias" + suffix) >= 0) {
      add_bias(out, input_of(c, rank, "bias" + suffix));
    }
    return out;
  };
  if (c.program.find_tensor("b") >= 0) return side("");
  Values gate = side("_gate"), up = side("_up");
  for (std::size_t i = 0; i < gate.size(); ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
  return up;
}

void expect_product(OpCase& c, const Values& all, const GatheredProduct& p) {
  const ProductShape& s = p.shape;
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  for (int rank = 0; rank < c.program.world_size; ++rank) {
    Values want = linear_reference(c, rank, all, s);
    want.resize(static_cast<std::size_t>(p.bound * s.n), kUnchecked);
    c.expected[static_cast<std::size_t>(rank)][out] = std::move(want);
  }
  bool bytes = p.a_dtype == DType::kF8E4M3;
  c.tolerance = sum_tolerance(p.c_dtype, s.k) + factor_tolerance(p.a_dtype, s.k);
  c.scale = p.c_dtype == sum_dtype(p.c_dtype) || bytes ? std::sqrt(static_cast<double>(s.k)) : 1;
  c.flops = 2.0 * static_cast<double>(s.m * s.n * s.k) * (p.swiglu ? 2 : 1) * c.program.world_size;
  c.comm_bytes = p.elements_received * static_cast<double>(size_bytes(p.a_dtype));
}

OpCase gemm_case(const GemmDesc& d, const GemmConfig& cfg, std::int64_t m, std::uint64_t seed) {
  OpCase c;
  c.program = gemm(d, cfg);
  c.extents = {m};
  c.config = to_string(d) + " | " + to_string(cfg) + " | m=" + std::to_string(m);
  fill_inputs(c, seed);
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  for (int rank = 0; rank < d.world_size; ++rank) {
    ProductShape shape{.m = m, .n = d.n, .k = d.k, .scaling = d.scaling, .b_kn = d.b_kn};
    Values want = linear_reference(c, rank, scaled_rows(c, rank, shape), shape);
    if (d.residual) {
      const Values& residual = input_of(c, rank, "residual");
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += residual[i];
    }
    want.resize(static_cast<std::size_t>(d.m * d.n), kUnchecked);
    c.expected[static_cast<std::size_t>(rank)][out] = std::move(want);
  }
  bool bytes = d.a_dtype == DType::kF8E4M3;
  c.tolerance = sum_tolerance(d.c_dtype, d.k) + factor_tolerance(d.a_dtype, d.k);
  c.scale = d.c_dtype == sum_dtype(d.c_dtype) || bytes ? std::sqrt(static_cast<double>(d.k)) : 1;
  c.flops = 2.0 * static_cast<double>(m * d.n * d.k) * (d.swiglu ? 2 : 1) * d.world_size;
  return c;
}

std::vector<OperatorCase> gemm_cases() {
  return {case_of(gemm_operator(), gemm_case), case_of(gemm_swiglu_operator(), gemm_case),
          case_of(gemm_fp8_operator(), gemm_case), case_of(gemm_fp8_block_operator(), gemm_case),
          case_of(gemm_split_k_operator(), gemm_case)};
}

}  // namespace stretto
