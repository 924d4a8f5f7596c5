// Rows of scales that are read around the next product. A user who loses this gets scaled products
// that wait for their scales behind matrix instructions, or kernels that spill.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::spread_text_test {
namespace {

struct Sample {
  std::int64_t cols = 128;    // of a tile
  bool row_of_scales = true;  // one for each column, else one for all of them
  std::int64_t step = 128;    // of k, with a scale each
  DType dtype = DType::kF8E4M3;
};

// c = a * b^T in steps along k, each with scales of rows and of columns.
Program scaled(const Sample& s) {
  constexpr std::int64_t kRows = 128, kSteps = 16;
  ProgramBuilder p("scaled", 1);
  auto a = p.input("a", s.dtype, {256, kSteps * s.step});
  auto b = p.input("b", s.dtype, {2 * s.cols, kSteps * s.step});
  auto of_a = p.input("of_a", DType::kF32, {256, kSteps});
  auto of_b = p.input("of_b", DType::kF32, {kSteps, 2 * s.cols});
  auto c = p.output("c", DType::kBF16, {256, 2 * s.cols});
  p.role("multiply", Resource::sms(2).pipelined(3), p.grid(c, kRows, s.cols), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kRows, s.cols);
    p.loop(kSteps, [&](const Index& i) {
      Value rows = p.load(of_a.tile({t.row, i}, kRows, 1));
      Value cols = s.row_of_scales ? p.load(of_b.tile({i, t.col}, 1, s.cols))
                                   : broadcast(p.load(of_b.tile({i, t.col}, 1, 1)), 1, s.cols);
      acc = dot_scaled(acc, p.load(a.tile({t.row, i * s.step}, kRows, s.step)),
                       p.load(b.tile({t.col, i * s.step}, s.cols, s.step)).T(), {rows, cols});
    });
    p.store(c.tile({t.row, t.col}, kRows, s.cols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

bool has(const GeneratedKernel& kernel, const char* text) {
  return kernel.source.find(text) != std::string::npos;
}

TEST(SpreadReads, HalfComeBeforeAProductAndHalfBehindIt) {
  for (DType dtype : {DType::kF8E4M3, DType::kBF16}) {
    const std::int64_t step = dtype == DType::kBF16 ? 64 : 128;
    GeneratedKernel kernel = generate(scaled({.step = step, .dtype = dtype}));
    const std::string product = fmt::format("dot_async<128, {}, true", step);
    expect_lines(kernel.source,
                 {"// consumer", product, "wgmma_wait<0>();", "(&empty", "load_smem<",
                  "load_columns<", ", 0, 16>(", "(&full", product, "if (always(origin)) {",
                  "load_columns<", ", 16, 32>(", "Mul());", "Add());", "}", "wgmma_wait<0>();"});
    expect_clean_build(kernel);
  }
}

// They are read before the next product, while the last is under way.
TEST(SpreadReads, ScalesThatFitBesideTwoProductsAreReadWhole) {
  for (const Sample& s : {Sample{.cols = 64}, Sample{.row_of_scales = false}}) {
    GeneratedKernel kernel = generate(scaled(s));
    expect_lines(kernel.source, {"// consumer", "dot_async<", "load_smem<", "load_smem<",
                                 "dot_async<", "wgmma_wait<1>();", "Mul());"});
    EXPECT_FALSE(has(kernel, "load_columns<")) << kernel.source;
    EXPECT_FALSE(has(kernel, "always(")) << kernel.source;
    expect_clean_build(kernel);
  }
}

}  // namespace
}  // namespace stretto::spread_text_test
