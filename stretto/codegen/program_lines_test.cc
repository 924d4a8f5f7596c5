// Kernels whose instructions profilers show at the lines of the tile program. A user who loses this
// sees in a profile where time goes in generated text, not in what was written.
#include "stretto/codegen/program_lines.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <sstream>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::program_lines_test {
namespace {

constexpr int kRoleLine = __LINE__ + 6;
Program gemm() {
  constexpr std::int64_t kM = 256, kN = 512, kK = 1024;
  ProgramBuilder p("gemm", 1);
  auto a = p.input("a", DType::kBF16, {kM, kK}), b = p.input("b", DType::kBF16, {kN, kK});
  auto c = p.output("c", DType::kBF16, {kM, kN});
  p.role("gemm", Resource::sms(4).pipelined(4), p.grid(c, 128, 256), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 128, 256);
    p.loop(kK / 64, [&](const Index& i) {
      Value left = p.load(a.tile({t.row, i * 64}, 128, 64));
      acc = dot(acc, left, p.load(b.tile({t.col, i * 64}, 256, 64)).T());
    });
    p.store(c.tile({t.row, t.col}, 128, 256), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// "file:line" of the first line of `text` that holds `what`, as a profiler counts: from the last
// #line on.
std::string place_in(const std::string& text, const std::string& what) {
  std::istringstream in(text);
  std::string file = "none";
  int number = 0;
  for (std::string line; std::getline(in, line); ++number) {
    if (line.starts_with("#line ")) {
      std::size_t quote = line.find('"');
      number = std::stoi(line.substr(6)) - 1;
      file = line.substr(quote + 1, line.size() - quote - 2);
      file = file.substr(file.rfind('/') + 1);
    } else if (line.find(what) != std::string::npos) {
      return fmt::format("{}:{}", file, number);
    }
  }
  return what + " is not there";
}

TEST(ProgramLines, EveryOperationIsAtItsPlace) {
  GeneratedKernel kernel = generate(gemm());
  auto place = [&](const std::string& what) { return place_in(kernel.expanded, what); };
  auto here = [&](int line) { return fmt::format("program_lines_test.cc:{}", kRoleLine + line); };
  EXPECT_EQ(place("const int num_tiles"), here(0)) << kernel.expanded;
  EXPECT_EQ(place("for (int first_"), here(2));
  EXPECT_EQ(place("  tma_load_3d(smem"), here(3));
  EXPECT_EQ(place("  dot_async<"), here(4));
  EXPECT_EQ(place("  store_tma<"), here(6));
  expect_clean_build(kernel);
}

TEST(ProgramLines, WhatFollowsAnAgentIsOfTheKernel) {
  Program program = gemm();
  GeneratedKernel kernel = generate(program);
  EXPECT_EQ(place_in(kernel.expanded, "// consumer").rfind("stretto_gemm.cu:", 0), 0u);
}

TEST(ProgramLines, PeopleReadTheTextWithoutThem) {
  EXPECT_EQ(generate(gemm()).source.find("#line"), std::string::npos);
  EXPECT_EQ(without_program_lines("a\n#line 3 \"x\"\n  b\n#line 4 \"x\"\nc"), "a\n  b\nc");
  EXPECT_EQ(without_program_lines("#line 3 \"x\"\n"), "");
  EXPECT_EQ(without_program_lines(""), "");
}

TEST(ProgramLines, NamesOfFilesAreQuoted) {
  EXPECT_EQ(program_line_text({.file = "a \"b\"\\c.cc", .line = 12}),
            "#line 12 \"a \\\"b\\\"\\\\c.cc\"\n");
  EXPECT_EQ(program_line_text({}), "");
}

}  // namespace
}  // namespace stretto::program_lines_test
