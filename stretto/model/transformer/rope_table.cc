#include "stretto/model/transformer/rope_table.h"

#include <algorithm>
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

// Of the dimension pair that turns `turns` times within the original positions.
double yarn_pair(const RopeConfig& rope, std::int64_t head_dim, double turns) {
  auto original = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(head_dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// YaRN (arXiv 2309.00071, section 3.2): the share of a pair's frequency that is stretched grows
// from 0 to 1 between two pairs.
double yarn_scaled(const RopeConfig& rope, std::int64_t head_dim, std::int64_t pair,
                   double inv_freq) {
  double low = yarn_pair(rope, head_dim, rope.beta_fast);
  double high = yarn_pair(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  double stretched = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return inv_freq / rope.factor * stretched + inv_freq * (1 - stretched);
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
    if (rope.type == RopeConfig::Type::kYarn) f = yarn_scaled(rope, head_dim, i / 2, f);
    if (rope.type == RopeConfig::Type::kLlama3) f = llama3_scaled(rope, f);
    result.push_back(rounded_to(rope.frequency_dtype, static_cast<float>(f)));
  }
  return result;
}

}  // namespace

RopeTable make_rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_tokens) {
  std::vector<float> inv_freq = inverse_frequencies(rope, head_dim);
  auto scale = static_cast<float>(rope.attention_factor);
  auto half = static_cast<std::int64_t>(inv_freq.size());
  RopeTable table{Matrix(DType::kF32, max_tokens, half), Matrix(DType::kF32, max_tokens, half)};
  for (std::int64_t t = 0; t < max_tokens; ++t) {
    auto* c = reinterpret_cast<float*>(table.cos.row(t));
    auto* s = reinterpret_cast<float*>(table.sin.row(t));
    for (std::int64_t i = 0; i < half; ++i) {
      float angle = static_cast<float>(t) * inv_freq[static_cast<std::size_t>(i)];
      c[i] = std::cos(angle) * scale;
      s[i] = std::sin(angle) * scale;
    }
  }
  return table;
}

}  // namespace stretto
