#include "stretto/model/transformer/rope_table.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

double llama3_scaled(const RopeConfig& rope, double inv_freq) {
  double wavelength = 2 * std::numbers::pi / inv_freq;
  auto original = static_cast<double>(rope.original_max_position_embeddings);
  if (wavelength < original / rope.high_freq_factor) return inv_freq;
  if (wavelength > original / rope.low_freq_factor) return inv_freq / rope.factor;
  double blend = (original / wavelength - rope.low_freq_factor) /
                 (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - blend) * inv_freq / rope.factor + blend * inv_freq;
}

float rounded_to(DType dtype, float v) {
  switch (dtype) {
    case DType::kF32:
      return v;
    case DType::kBF16:
      return bf16_to_f32(f32_to_bf16(v));
    case DType::kF16:
      return f16_to_f32(f32_to_f16(v));
    default:
      throw InternalError("rotary frequencies rounded to a dtype that is no float");
  }
}

// Single precision at each step, as the reference implementations compute it.
std::vector<float> inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    double f = 1.0f / static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    if (rope.type == RopeConfig::Type::kLinear) f /= rope.factor;
    if (rope.type == RopeConfig::Type::kLlama3) f = llama3_scaled(rope, f);
    result.push_back(rounded_to(rope.frequency_dtype, static_cast<float>(f)));
  }
  return result;
}

}  // namespace

RopeTable make_rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_tokens) {
  std::vector<float> inv_freq = inverse_frequencies(rope, head_dim);
  auto half = static_cast<std::int64_t>(inv_freq.size());
  RopeTable table{Matrix(DType::kF32, max_tokens, half), Matrix(DType::kF32, max_tokens, half)};
  for (std::int64_t t = 0; t < max_tokens; ++t) {
    auto* c = reinterpret_cast<float*>(table.cos.row(t));
    auto* s = reinterpret_cast<float*>(table.sin.row(t));
    for (std::int64_t i = 0; i < half; ++i) {
      float angle = static_cast<float>(t) * inv_freq[static_cast<std::size_t>(i)];
      c[i] = std::cos(angle);
      s[i] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace stretto
