// A wrong conversion here silently changes every weight and every activation of a 16-bit model.
#include "stretto/base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A small float by its definition, in double; the reference that the conversions are compared with.
struct Format {
  const char* name;
  DType dtype;
  int mantissa_bits;
  int exponent_bits;
  bool ieee;  // the top exponent is infinity and NaN; else only its last mantissa is (NaN), and
              // overflow saturates

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned sign_bit() const { return 1u << (mantissa_bits + exponent_bits); }
  unsigned max_finite() const {
    return ieee ? (((1u << exponent_bits) - 1) << mantissa_bits) - 1 : sign_bit() - 2;
  }
  double decode(unsigned code) const {
    unsigned magnitude = code & (sign_bit() - 1);
    double sign = (code & sign_bit()) != 0 ? -1 : 1;
    if (magnitude > max_finite())
      return ieee && magnitude == max_finite() + 1 ? sign * kInfinity : NAN;
    int exponent = static_cast<int>(magnitude >> mantissa_bits);
    double mantissa = magnitude & ((1u << mantissa_bits) - 1);
    if (exponent > 0) mantissa += 1u << mantissa_bits;
    return sign * std::ldexp(mantissa, std::max(exponent, 1) - bias() - mantissa_bits);
  }
};

const Format kF16 = {"f16", DType::kF16, 10, 5, true};
const Format kBF16 = {"bf16", DType::kBF16, 7, 8, true};
const Format kE4M3 = {"f8e4m3", DType::kF8E4M3, 3, 4, false};

class Reference {
 public:
  explicit Reference(const Format& format) : format_(format) {
    for (unsigned code = 0; code <= format.max_finite(); ++code)
      values_.push_back(format.decode(code));
  }
  const std::vector<double>& values() const { return values_; }

  // Nearest code, ties to the even one; `value` is not NaN.
  unsigned encode(double value) const {
    unsigned sign = std::signbit(value) ? format_.sign_bit() : 0;
    double magnitude = std::fabs(value);
    unsigned top = format_.max_finite();
    double step = values_[top] - values_[top - 1];
    if (magnitude >= values_[top]) {
      bool overflows = format_.ieee && magnitude >= values_[top] + step / 2;
      return sign | (overflows ? top + 1 : top);
    }
    auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    auto high = static_cast<unsigned>(above - values_.begin());
    double to_low = magnitude - values_[high - 1];
    double to_high = values_[high] - magnitude;
    if (to_low == to_high) return sign | (high % 2 == 0 ? high : high - 1);
    return sign | (to_low < to_high ? high - 1 : high);
  }

 private:
  Format format_;
  std::vector<double> values_;
};

unsigned encode(const Format& format, float value) {
  if (format.dtype == DType::kF16) return f32_to_f16(value);
  return format.dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f8e4m3(value);
}

float decode(const Format& format, unsigned code) {
  if (format.dtype == DType::kF16) return f16_to_f32(static_cast<std::uint16_t>(code));
  if (format.dtype == DType::kBF16) return bf16_to_f32(static_cast<std::uint16_t>(code));
  return f8e4m3_to_f32(static_cast<std::uint8_t>(code));
}

unsigned store(const Format& format, double value) {
  std::uint16_t code = 0xdead;
  if (size_bytes(format.dtype) == 1) code = 0;
  store_element(format.dtype, &code, value);
  return code;
}

class SmallFloat : public testing::TestWithParam<Format> {};

TEST_P(SmallFloat, EveryCodeDecodesExactlyAndComesBack) {
  const Format& format = GetParam();
  for (unsigned code = 0; code < 2 * format.sign_bit(); ++code) {
    double want = format.decode(code);
    float got = decode(format, code);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << code;
      ASSERT_TRUE(std::isnan(format.decode(encode(format, got)))) << code;
      continue;
    }
    ASSERT_EQ(want, got) << code;
    ASSERT_EQ(std::signbit(want), std::signbit(got)) << code;
    ASSERT_EQ(load_element(format.dtype, &code), want) << code;
    ASSERT_EQ(encode(format, got), code) << got;
  }
}

TEST_P(SmallFloat, RoundsToNearestEvenAroundEveryTie) {
  const Format& format = GetParam();
  Reference reference(format);
  const std::vector<double>& values = reference.values();
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    double tie = (values[i] + values[i + 1]) / 2;
    for (double sign : {1.0, -1.0}) {
      auto at = static_cast<float>(sign * tie);
      for (float v : {at, std::nextafter(at, 0.0f), std::nextafter(at, 2 * at)}) {
        ASSERT_EQ(encode(format, v), reference.encode(v)) << std::hexfloat << v;
      }
      // Differences far below a float's precision still decide: the double is rounded once.
      for (double v : {sign * tie, std::nextafter(sign * tie, 0.0),
                       std::nextafter(sign * tie, sign * 2 * tie)}) {
        ASSERT_EQ(store(format, v), reference.encode(v)) << std::hexfloat << v;
      }
    }
  }
}

TEST_P(SmallFloat, RandomBitPatternsAgreeWithTheReference) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const Format& format = GetParam();
  Reference reference(format);
  for (int i = 0; i < 300000; ++i) {
    auto v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(v)) {
      ASSERT_TRUE(std::isnan(format.decode(encode(format, v))));
    } else {
      ASSERT_EQ(encode(format, v), reference.encode(v)) << std::hexfloat << v;
    }
  }
}

TEST_P(SmallFloat, ExtremesKeepTheirMeaning) {
  const Format& format = GetParam();
  Reference reference(format);
  double largest = reference.values().back();
  for (double v : {0.0, 1e-320, 1e-46, 1e39, 1e300, kInfinity, largest, largest * 1.0001, 5e-324}) {
    for (double signed_v : {v, -v})
      EXPECT_EQ(store(format, signed_v), reference.encode(signed_v)) << signed_v;
  }
  EXPECT_TRUE(std::isnan(format.decode(store(format, NAN))));
  // A NaN whose payload lies in the dropped bits must not turn into infinity.
  EXPECT_TRUE(std::isnan(format.decode(encode(format, std::bit_cast<float>(0x7f800001u)))));
}

INSTANTIATE_TEST_SUITE_P(All, SmallFloat, testing::Values(kF16, kBF16, kE4M3),
                         [](const auto& info) { return info.param.name; });

TEST(DType, BothSpellingsAreAcceptedAndOthersAreListed) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF64,
                      DType::kI32, DType::kI64, DType::kU8, DType::kBool, DType::kI8}) {
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    EXPECT_EQ(parse_dtype(short_name(dtype)), dtype);
  }
  try {
    parse_dtype("float128");
    FAIL() << "float128 was accepted";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("'float128'"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("bfloat16 (bf16)"), std::string::npos) << e.what();
  }
}

TEST(DType, IntegersTruncateAndSaturateInsteadOfBeingUndefined) {
  auto stored = [](DType dtype, double value) {
    std::int64_t cell = 0;
    store_element(dtype, &cell, value);
    return load_element(dtype, &cell);
  };
  EXPECT_EQ(stored(DType::kI32, -2.9), -2);
  EXPECT_EQ(stored(DType::kI32, 1e300), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(stored(DType::kI32, -kInfinity), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(stored(DType::kI64, 0x1p53), 0x1p53);
  EXPECT_EQ(stored(DType::kI64, -1e30), -0x1p63);
  EXPECT_EQ(stored(DType::kI64, 1e30), 0x1p63);  // 2^63-1, as double
  EXPECT_EQ(stored(DType::kU8, -1), 0);
  EXPECT_EQ(stored(DType::kU8, 256), 255);
  EXPECT_EQ(stored(DType::kU8, NAN), 0);
  for (int v = -128; v <= 127; ++v) EXPECT_EQ(stored(DType::kI8, v), v);
  EXPECT_EQ(stored(DType::kI8, -2.9), -2);
  EXPECT_EQ(stored(DType::kI8, 127.5), 127);
  EXPECT_EQ(stored(DType::kI8, -1000), -128);
  EXPECT_EQ(stored(DType::kI8, kInfinity), 127);
  EXPECT_EQ(stored(DType::kI8, NAN), 0);
  EXPECT_EQ(stored(DType::kBool, 0.25), 1);
  EXPECT_EQ(stored(DType::kF32, 0.1), static_cast<double>(0.1f));
  EXPECT_EQ(stored(DType::kF64, 0.1), 0.1);
}

}  // namespace
}  // namespace stretto
