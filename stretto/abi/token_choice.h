// How a token is chosen from a row of logits: what a kernel is told of each row, what it answers,
// and the arithmetic that it shares with the definition (model/choice/token_choice.h). Plain data
// and pure functions, the same on host and device: neither multiplies and adds in one rounding, so
// both compute the same bits.
#pragma once

#ifdef __CUDACC__
#define STRETTO_HOST_DEVICE __device__ __forceinline__
#else
#define STRETTO_HOST_DEVICE inline
#endif

// A change of one token's logit. A row has at most one for each token.
struct ChoiceEdit {
  unsigned token = 0;
  float bias = 0;      // added first
  float minus = 0;     // taken away last
  unsigned kinds = 0;  // kChoiceRepeated, kChoiceDropped
};
constexpr unsigned kChoiceRepeated = 1;  // the repetition penalty is for it
constexpr unsigned kChoiceDropped = 2;   // it is not chosen

constexpr int kMostChoiceTop = 32;  // alternatives that a kernel finds
constexpr unsigned long long kNoTopP = ~0ull;

struct ChoiceRow {
  unsigned long long random = 0;       // for the draw, uniform
  unsigned long long top_p = kNoTopP;  // in 2^-64
  unsigned long long min_weight = 0;   // as choice_weight(); less is dropped
  float inverse_temperature = 0;       // 0: the largest logit is the choice
  float repetition_penalty = 1;
  unsigned top_k = 0;  // 0: all
  int num_top = -1;    // alternatives with their logits; -1: not even the token's own
  // Which of the tables beside the rows; who launches fills it in. -1: all tokens are allowed.
  int mask = -1;
  unsigned first_edit = 0, num_edits = 0, unused = 0;
};
static_assert(sizeof(ChoiceRow) == 56);

enum class ChoiceStatus : unsigned {
  kChosen,
  kNotNumbers,  // a logit is NaN or +inf
  kNothing,     // every token that is allowed has -inf
  kElsewhere,   // so many tokens tie with the alternatives that they do not fit
};

struct ChoiceTop {
  unsigned token = 0;
  float logit = 0;
};
// With num_top >= 0 the rest tells of the row as it was before any change.
struct ChoiceResult {
  ChoiceStatus status = ChoiceStatus::kChosen;
  unsigned token = 0;
  unsigned long long total = 0;  // the sum of choice_weight(logit - best)
  float logit = 0, best = 0;     // the token's, and the largest
  unsigned rank = 0;             // 1 + how many are larger
  unsigned num_top = 0;
  ChoiceTop top[kMostChoiceTop];  // largest first, of equals the lowest token
};

STRETTO_HOST_DEVICE unsigned choice_bits(float v) {
#ifdef __CUDACC__
  return __float_as_uint(v);
#else
  return __builtin_bit_cast(unsigned, v);
#endif
}
STRETTO_HOST_DEVICE float choice_float(unsigned bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
STRETTO_HOST_DEVICE float choice_dropped() { return choice_float(0xff800000u); }  // -inf

// Numbers in the order of the logits; zeros of both signs have the same. Never 0.
STRETTO_HOST_DEVICE unsigned choice_key(float logit) {
  const unsigned bits = choice_bits(logit + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
STRETTO_HOST_DEVICE float choice_logit(unsigned key) {
  return choice_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
// The larger the number, the sooner the token: larger logits first, among equals the lower token.
STRETTO_HOST_DEVICE unsigned long long choice_order(float logit, unsigned token) {
  return static_cast<unsigned long long>(choice_key(logit)) << 32 | (0xffffffffu - token);
}
STRETTO_HOST_DEVICE unsigned choice_token(unsigned long long order) {
  return 0xffffffffu - static_cast<unsigned>(order);
}

// exp(x) of x <= 0 in units of 2^-39, cut off: whole numbers, whose sums are the same in any order.
// 2^24 of them do not overflow. A series for 2^f, |f| <= 0.5, is 1.2e-7 off at most.
constexpr unsigned long long kChoiceOne = 1ull << 39;
STRETTO_HOST_DEVICE unsigned long long choice_weight(float x) {
  const float y = x * 1.44269504f;              // log2(e)
  const float bounded = y > -60.f ? y : -60.f;  // 2^-39 is more; also of NaN
  const float n = bounded + 12582912.f;         // 1.5 * 2^23: rounds to a whole number
  const float f = bounded - (n - 12582912.f);
  float p = 1.54035304e-4f;
  p = p * f + 1.33335581e-3f;
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.f;
  // Adds n + 39 to the exponent, which multiplies by 2^(n + 39); then cuts off to a whole number.
  const float units = choice_float(choice_bits(p) + ((choice_bits(n) - (0x4b400000u - 39)) << 23));
  return static_cast<unsigned long long>(static_cast<long long>(units));
}

// What the distribution is made of: relative to the best logit.
STRETTO_HOST_DEVICE float choice_scaled(float logit, float best, float inverse_temperature) {
  return (logit - best) * inverse_temperature;
}

// Finite stays finite: a penalty that overflows must not turn into a NaN later.
STRETTO_HOST_DEVICE float choice_edited(float logit, const ChoiceEdit& edit, float penalty) {
  if ((edit.kinds & kChoiceDropped) != 0) return choice_dropped();
  logit = logit + edit.bias;
  if ((edit.kinds & kChoiceRepeated) != 0 && logit - logit == 0.f) {
    constexpr float kMost = 3.402823466e+38f;
    const float changed = logit < 0.f ? logit * penalty : logit / penalty;
    logit = changed > kMost ? kMost : changed < -kMost ? -kMost : changed;
  }
  return logit - edit.minus;
}
