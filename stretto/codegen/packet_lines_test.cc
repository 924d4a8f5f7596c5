// Which packets go in lines. A user who loses this sends nearly twice the bytes, or reads payload
// as tags: who stores and who loads must have a buffer in the same form.
#include "stretto/codegen/packet_lines.h"

#include <string>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

struct Packets {
  DType dtype = DType::kBF16;
  std::int64_t width = 512;   // of the buffer
  std::int64_t stored = 256;  // columns at a time
  std::int64_t loaded = 256;
  std::int64_t first = 0;  // column
  bool until_col = false;
  int threads = 128;
};

GeneratedKernel exchanged(const Packets& c) {
  ProgramBuilder p("exchanged", 2);
  Index m = p.extent("m", 8);
  auto x = p.input("x", c.dtype, {m, c.width});
  auto y = p.output("y", c.dtype, {m, c.width});
  auto box = p.buffer("box", c.dtype, {8, c.width},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto by = [&](std::int64_t cols, const auto& visit) {
    p.loop((c.width - c.first) / cols, [&](const Index& i) { visit(i * cols + c.first, cols); });
  };
  p.role("work", Resource::sms(1), p.range(4), [&](const Tile& t) {
    auto part = [&](const TensorRef& tensor, const Index& col, std::int64_t cols) {
      return tensor.tile({t.index * 2, col}, 2, cols);
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
  expect_form("Lines<float>", {.dtype = DType::kF32, .width = 256, .stored = 128, .loaded = 256});
}

// One who cannot keeps all others from it.
TEST(PacketLines, ElseAllHaveWords) {
  expect_form("Words<bf16, 2>", {.stored = 128});
  expect_form("Words<bf16, 2>", {.loaded = 64});
  expect_form("Words<bf16, 2>", {.width = 640, .stored = 256, .loaded = 256, .first = 128});
  expect_form("Words<bf16, 2>", {.width = 320, .stored = 320, .loaded = 320});
  expect_form("Words<bf16, 2>", {.until_col = true});
  expect_form("Words<float, 2>", {.dtype = DType::kF32, .width = 64, .stored = 64, .loaded = 64});
}

}  // namespace
}  // namespace stretto
