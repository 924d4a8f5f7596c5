// Wrong angles give fluent text that another library would not have written.
#include "stretto/model/transformer/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

// theta = 3 and head_dim 4: frequencies 1 and 1/sqrt(3).
RopeConfig config_rounded_to(DType dtype) { return {.theta = 3, .frequency_dtype = dtype}; }

void expect_second_frequency(const RopeConfig& rope, double frequency) {
  constexpr std::int64_t kTokens = 600;
  RopeTable table = make_rope_table(rope, 4, kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double angle = static_cast<double>(t) * frequency;
    const auto* c = reinterpret_cast<const float*>(table.cos.row(t));
    const auto* s = reinterpret_cast<const float*>(table.sin.row(t));
    ASSERT_NEAR(c[0], std::cos(static_cast<double>(t)), 1e-6) << t;
    ASSERT_NEAR(c[1], std::cos(angle), 5e-5) << t;  // f32 angles of up to 350
    ASSERT_NEAR(s[1], std::sin(angle), 5e-5) << t;
  }
}

TEST(RopeTable, FrequenciesAreExactOrRoundedAsAsked) {
  double exact = 1 / std::sqrt(3.0);  // 1.0010011110... in binary, times 2^-1
  expect_second_frequency(config_rounded_to(DType::kF32), exact);
  expect_second_frequency(config_rounded_to(DType::kBF16), 0.578125);  // 8 bits
  expect_second_frequency(config_rounded_to(DType::kF16),
                          std::ldexp(std::round(exact * 2048), -11));
}

// Rescaling comes first, as where a framework casts the buffer it has computed.
TEST(RopeTable, RoundsWhatRescalingLeaves) {
  RopeConfig rope = config_rounded_to(DType::kBF16);
  rope.type = RopeConfig::Type::kLinear;
  rope.factor = 3;
  RopeTable table = make_rope_table(rope, 2, 2);  // one frequency: 1/3
  EXPECT_EQ(*reinterpret_cast<const float*>(table.sin.row(1)),
            std::sin(bf16_to_f32(f32_to_bf16(1.0f / 3))));
}

TEST(RopeTable, RefusesToRoundToIntegers) {
  EXPECT_THROW(make_rope_table(config_rounded_to(DType::kI32), 4, 1), InternalError);
}

}  // namespace
}  // namespace stretto
