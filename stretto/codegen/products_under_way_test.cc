// Waits for products as CUDA text. A user who loses this has the tensor core write sums that are
// read already, or read slots that are filled again.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::products_under_way_test {
namespace {

constexpr std::int64_t kInner = 512;

// Of two sums in one loop, `first` of matrix instructions that may leave rows out.
struct Sums {
  bool first_leaves_out = false, second_leaves_out = false;
  DType second = DType::kBF16;  // f32: by threads
  bool by_step = false;         // the rows that are left out
};

std::string text_of(const Sums& s, bool two = true) {
  ProgramBuilder p("sums", 1);
  auto a = p.input("a", DType::kBF16, {128, kInner}), b = p.input("b", DType::kBF16, {64, kInner});
  auto d = p.input("d", s.second, {128, kInner}), e = p.input("e", s.second, {64, kInner});
  auto c = p.output("c", DType::kF32, {128, 64}), f = p.output("f", DType::kF32, {128, 64});
  auto rows_in = p.extent("rows", 128);
  p.role("multiply", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 128, 64), other = p.zeros(DType::kF32, 128, 64);
    p.loop(kInner / 64, [&](const Index& i) {
      auto multiply = [&](const Value& sum, const TensorRef& x, const TensorRef& y, bool some) {
        Index rows = s.by_step ? min(rows_in, i * 16) : Index(rows_in);
        Slice left = x.tile({0, i * 64}, 128, 64);
        Value right = p.load(y.tile({0, i * 64}, 64, 64)).T();
        return some ? dot(sum, p.load(left.until_row(rows)), right, rows)
                    : dot(sum, p.load(left), right);
      };
      acc = multiply(acc, a, b, s.first_leaves_out);
      if (two) other = multiply(other, d, e, s.second_leaves_out);
    });
    p.store(c.tile({0, 0}, 128, 64), acc);
    p.store(f.tile({0, 0}, 128, 64), other);
  });
  return generate(p.finish()).source;
}

// What the loop leaves under way: the last wait is for all.
std::string kept(const std::string& text) {
  std::size_t at = text.find("wgmma_wait<");
  return at == std::string::npos ? "none" : text.substr(at + 11, 1);
}

TEST(ProductsUnderWay, OfTheTensorCoreAlone) {
  EXPECT_EQ(kept(text_of({}, false)), "1");
  EXPECT_EQ(kept(text_of({})), "2");
}

TEST(ProductsUnderWay, NotThoseByThreads) {
  std::string text = text_of({.second = DType::kF32});
  EXPECT_NE(text.find("dot_simt<"), std::string::npos);
  EXPECT_EQ(kept(text), "1");
}

// Where a warpgroup leaves out all or none, what it waits for is the same.
TEST(ProductsUnderWay, WhereAllLeaveOutTheSameRows) {
  EXPECT_EQ(kept(text_of({.first_leaves_out = true}, false)), "1");
  EXPECT_EQ(kept(text_of({.first_leaves_out = true, .second_leaves_out = true})), "2");
}

TEST(ProductsUnderWay, NotThoseThatMayHaveBeenLeftOut) {
  EXPECT_EQ(kept(text_of({.first_leaves_out = true})), "1");
  EXPECT_EQ(kept(text_of({.second_leaves_out = true})), "1");
  EXPECT_EQ(kept(text_of({.first_leaves_out = true, .by_step = true}, false)), "0");
}

}  // namespace
}  // namespace stretto::products_under_way_test
