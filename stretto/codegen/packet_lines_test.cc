// Which packets go in lines. A user who loses this sends nearly twice the bytes, or reads payload
// as tags: who stores and who loads must have a buffer in the same form.
#include "stretto/codegen/packet_lines.h"

#include <string>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::packet_lines_test {
namespace {

struct Packets {
  DType dtype = DType::kBF16;
  std::int64_t width = 512;   // of the buffer
  std::int64_t stored = 256;  // columns at a time
  std::int64_t loaded = 256;
  std::int64_t first = 0;  // column
  bool until_col = false;
  int threads = 128;
  std::int64_t rows = 2;  // of a tile
  std::int64_t buffer_rows = 16;
};

GeneratedKernel exchanged(const Packets& c) {
  ProgramBuilder p("exchanged", 2);
  Index m = p.extent("m", 8);
  auto x = p.input("x", c.dtype, {m, c.width});
  auto y = p.output("y", c.dtype, {m, c.width});
  auto box = p.buffer("box", c.dtype, {c.buffer_rows, c.width},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto by = [&](std::int64_t cols, const auto& visit) {
    p.loop((c.width - c.first) / cols, [&](const Index& i) { visit(i * cols + c.first, cols); });
  };
  p.role("work", Resource::sms(1), p.range(4), [&](const Tile& t) {
    auto part = [&](const TensorRef& tensor, const Index& col, std::int64_t cols) {
      return tensor.tile({t.index * c.rows, col}, c.rows, cols);
    };
    by(c.stored, [&](const Index& col, std::int64_t cols) {
      Slice to = part(box.on(1 - p.rank()), col, cols).until_row(max(m, 1));
      if (c.until_col) to = to.until_col(m * 64);
      p.store_packet(to, p.load(part(x, col, cols)));
    });
    by(c.loaded, [&](const Index& col, std::int64_t cols) {
      Slice from = part(box, col, cols).until_row(max(m, 1));
      if (c.until_col) from = from.until_col(m * 64);
      p.store(part(y, col, cols), p.load_packet(from));
    });
  });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = c.threads;
  return generate(program);
}

void expect_form(const std::string& form, const Packets& c) {
  GeneratedKernel kernel = exchanged(c);
  expect_lines(kernel.source, {"store_packets<L0, " + form + ">(", form + ">("});
  expect_clean_build(kernel);
}

TEST(PacketLines, WholeWarpsHaveThem) {
  expect_form("Lines<bf16>", {});
  expect_form("Lines<bf16>", {.stored = 512, .loaded = 256});
  expect_form("Lines<bf16>", {.width = 1024, .stored = 512, .loaded = 512, .first = 512});
  expect_form("Lines<bf16>", {.threads = 64});
  expect_form("Lines<bf16>", {.width = 640, .stored = 256, .loaded = 256, .first = 128});
  expect_form("Lines<float>", {.dtype = DType::kF32, .width = 256, .stored = 128, .loaded = 256});
}

// Of fewer columns than a warp holds, where the warp has four rows.
TEST(PacketLines, EightThreadsHaveThemInGroupsOfRows) {
  expect_form("Lines<bf16>", {.stored = 128, .rows = 4});
  expect_form("Lines<bf16>", {.stored = 64, .loaded = 64, .first = 64, .rows = 4});
  expect_form("Lines<float>",
              {.dtype = DType::kF32, .width = 64, .stored = 32, .loaded = 32, .rows = 4});
  expect_form("Words<bf16, 2>", {.stored = 128, .rows = 4, .buffer_rows = 14});
  expect_form("Words<bf16, 2>", {.stored = 128, .rows = 2});
}

// One who cannot keeps all others from it.
TEST(PacketLines, ElseAllHaveWords) {
  expect_form("Words<bf16, 2>", {.stored = 64, .rows = 2});
  expect_form("Words<bf16, 2>", {.loaded = 32, .rows = 4});
  expect_form("Words<bf16, 2>", {.width = 576, .stored = 128, .loaded = 128, .rows = 4});
  expect_form("Words<bf16, 2>", {.stored = 64, .loaded = 64, .first = 32, .rows = 4});
  expect_form("Words<bf16, 2>", {.until_col = true, .rows = 4});
  // Lines that end in the middle of a warp, of the tile and of the buffer.
  expect_form("Words<bf16, 2>", {.width = 896, .stored = 896, .loaded = 896, .threads = 256});
  expect_form("Words<bf16, 2>", {.width = 640, .stored = 512, .loaded = 512, .threads = 256});
  expect_form("Words<float, 2>",
              {.dtype = DType::kF32, .width = 16, .stored = 16, .loaded = 16, .rows = 4});
}

// What a product leaves in fragments goes in lines to who has rows.
GeneratedKernel sums_of_halves(DType dtype, std::int64_t cols, std::int64_t share) {
  ProgramBuilder p("halves", 2);
  auto a = p.input("a", DType::kBF16, {64, 64});
  auto b = p.input("b", DType::kBF16, {cols, 64});
  auto y = p.output("y", dtype, {share, cols});
  auto parts = p.buffer("parts", dtype, {2, share, cols},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  p.role("gemm", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 64, cols);
    p.loop(1, [&](const Index& i) {
      acc =
          dot(acc, p.load(a.tile({0, i * 64}, 64, 64)), p.load(b.tile({0, i * 64}, cols, 64)).T());
    });
    Value mine = cast(acc, dtype);
    p.loop(2, [&](const Index& owner) {
      Slice part = parts.tile({p.rank(), Index(0) - owner * share, 0}, 64, cols);
      p.store_packet(part.until_row(share).on(owner), mine);
    });
    auto of = [&](std::int64_t source) {
      return cast(p.load_packet(parts.tile({source, 0, 0}, share, cols)), DType::kF32);
    };
    p.store(y.tile({0, 0}, share, cols), cast(of(0) + of(1), dtype));
  });
  return generate(p.finish());
}

TEST(PacketLines, FragmentsThatAreStored) {
  GeneratedKernel lines = sums_of_halves(DType::kBF16, 128, 32);
  expect_lines(lines.source, {"MmaLayout<64, 128, 1>", "store_packets<", "Lines<bf16>>(",
                              "load_packets<", "Lines<bf16>>("});
  expect_clean_build(lines);
  EXPECT_NE(sums_of_halves(DType::kBF16, 96, 32).source.find("Words<bf16"), std::string::npos);
  EXPECT_NE(sums_of_halves(DType::kF32, 128, 32).source.find("Words<float"), std::string::npos);
  EXPECT_NE(sums_of_halves(DType::kBF16, 128, 12).source.find("Words<bf16"), std::string::npos);
}

}  // namespace
}  // namespace stretto::packet_lines_test
