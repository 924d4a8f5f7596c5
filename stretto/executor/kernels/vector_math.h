// Elementary functions of one float or double. Those of a float take no branches, written so that a
// loop of them becomes vector instructions, and without FMA, so that every instruction set gives
// the same bits. Internal to the kernels.
//
// Each states its largest relative error against the exact value over all inputs; the test measures
// it. Polynomials are Taylor series, whose truncation at these intervals is below a float's step,
// except where noted.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "stretto/executor/kernels/dispatch.h"

namespace stretto::kernels::math {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// 2^n for -126 <= n <= 127.
STRETTO_INLINED inline float power_of_two(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

// e^r for |r| <= 0.35.
STRETTO_INLINED inline float exp_near_zero(float r) {
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p * (r * r) + r + 1.0f;
}

// p * 2^n in two steps, so that results below 2^-126 come out as denormals, rounded once.
STRETTO_INLINED inline float scale(float p, float n) {
  std::int32_t whole = static_cast<std::int32_t>(n), half = whole >> 1;
  return p * power_of_two(half) * power_of_two(whole - half);
}

// Adding and subtracting it rounds |x| < 2^22 to an integer.
inline constexpr float kRoundToInt = 0x1.8p23f;

// Error below 2.5e-7.
STRETTO_INLINED inline float exp(float x) {
  float clamped = x < -105.0f ? -105.0f : (x > 89.0f ? 89.0f : x);
  float n = (clamped * 0x1.715476p+0f + kRoundToInt) - kRoundToInt;
  // ln 2 in two parts; n times the first is exact.
  float r = (clamped - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  float y = scale(exp_near_zero(r), n);
  return x != x ? x : (x > 88.73f ? kInf : y);
}

// Error below 2.5e-7.
STRETTO_INLINED inline float exp2(float x) {
  float clamped = x < -151.0f ? -151.0f : (x > 128.5f ? 128.5f : x);
  float n = (clamped + kRoundToInt) - kRoundToInt;
  float y = scale(exp_near_zero((clamped - n) * 0x1.62e43p-1f), n);
  return x != x ? x : (x >= 128.0f ? kInf : y);
}

// Error below 2e-7.
STRETTO_INLINED inline float log(float x) {
  bool tiny = x < 0x1p-126f;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(tiny ? x * 0x1p23f : x);
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  std::uint32_t shifted = bits - 0x3f3504f3u;
  float e = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23) - (tiny ? 23.0f : 0.0f);
  float f = std::bit_cast<float>((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  // ln(1+f) = 2 atanh(s), s = f / (2+f), written around f to keep its leading bits.
  float s = f / (2.0f + f), z = s * s;
  float p = 2.0f / 11;
  p = p * z + 2.0f / 9;
  p = p * z + 2.0f / 7;
  p = p * z + 2.0f / 5;
  p = p * z + 2.0f / 3;
  float half_square = 0.5f * f * f;
  float y =
      e * 0x1.63p-1f + (f - (half_square - (s * (half_square + p * z) + e * -0x1.bd0106p-13f)));
  float edge = x == 0.0f ? -kInf : std::numeric_limits<float>::quiet_NaN();
  return x > 0.0f ? (x == kInf ? x : y) : edge;
}

// Error below 4e-7.
STRETTO_INLINED inline float sigmoid(float x) {
  float e = exp(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Error below 4e-7; 1e-43 absolute where the result is below 1e-36, since e^x is a denormal there.
STRETTO_INLINED inline float silu(float x) {
  float e = exp(x < 0.0f ? x : -x);
  float y = (x < 0.0f ? x * e : x) / (1.0f + e);
  return x == -kInf ? -0.0f : y;
}

// Error below 4e-7.
STRETTO_INLINED inline float tanh(float x) {
  float a = x < 0.0f ? -x : x;
  float far = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  // x + x^3 P(x^2): the continued fraction of tanh cut after its seventh term, below 0.6.
  float z = a * a;
  float top = 135135.0f + z * (17325.0f + z * (378.0f + z));
  float bottom = 135135.0f + z * (62370.0f + z * (3150.0f + z * 28.0f));
  float near = a * (top / bottom);
  float y = a < 0.6f ? near : far;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) |
                              (std::bit_cast<std::uint32_t>(x) & 0x80000000u));
}

// sin(x + quarter_turns * pi/2). Error below 1.5e-7 for |x| <= kTrigLimit, meaningless beyond.
inline constexpr float kTrigLimit = 0x1p20f;
STRETTO_INLINED inline float sin_shifted(float x, std::int32_t quarter_turns) {
  constexpr double kRound = 0x1.8p52;
  double wide = x;
  double n = (wide * 0x1.45f306dc9c883p-1 + kRound) - kRound;
  double r = (wide - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
  double z = r * r;
  double s = 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  double sine = r + r * z * s;
  double c = 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  double cosine = 1.0 + z * c;
  std::int32_t quadrant = static_cast<std::int32_t>(n) + quarter_turns;
  double y = (quadrant & 1) != 0 ? cosine : sine;
  return static_cast<float>((quadrant & 2) != 0 ? -y : y);
}

STRETTO_INLINED inline double exp(double x) { return std::exp(x); }
STRETTO_INLINED inline double exp2(double x) { return std::exp2(x); }
STRETTO_INLINED inline double log(double x) { return std::log(x); }
STRETTO_INLINED inline double tanh(double x) { return std::tanh(x); }
STRETTO_INLINED inline double sigmoid(double x) {
  double e = std::exp(-std::fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
STRETTO_INLINED inline double silu(double x) {
  double e = std::exp(-std::fabs(x));
  double y = (x < 0 ? x * e : x) / (1 + e);
  return x == -std::numeric_limits<double>::infinity() ? -0.0 : y;
}

}  // namespace stretto::kernels::math
