// Loads, stores and copies of regions as text. A user who loses this has kernels that move two
// bytes at a time, to the other ranks as well, or copies that wait for local memory.
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::memory_text_test {
namespace {

GeneratedKernel named_columns(std::int64_t step) {
  ProgramBuilder p("named_columns", 1);
  auto x = p.input("x", DType::kBF16, {8, 256});
  auto y = p.output("y", DType::kBF16, {8, 256});
  p.role("work", Resource::sms(1), p.range(2), [&](const Tile& t) {
    Index block = p.let("block", t.index * 2), col = p.let("col", block * step + 64);
    p.store(y.tile({0, col}, 8, 64), p.load(x.tile({0, col}, 8, 64)));
  });
  return generate(p.finish());
}

// A name for an index is no reason to move elements one by one.
TEST(MemoryText, NamedColumnsAreMovedInWholeRuns) {
  expect_lines(named_columns(4).source,
               {"load_box<L0, 8, true>(", "store_box<L0, 8, false, true>("});
  expect_lines(named_columns(1).source,
               {"load_box<L0, 2, true>(", "store_box<L0, 2, false, true>("});
  expect_clean_build(named_columns(4));
}

GeneratedKernel columns_until(std::int64_t end) {
  ProgramBuilder p("columns_until", 1);
  auto x = p.input("x", DType::kBF16, {8, 256});
  auto y = p.output("y", DType::kBF16, {8, 256});
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(y.tile({0, 0}, 8, 256).until_col(end), p.load(x.tile({0, 0}, 8, 256)));
  });
  return generate(p.finish());
}

// Code for the rest of a run, for every run of a tile, is most of what a product of wide tiles
// takes to compile.
TEST(MemoryText, ColumnsThatEndAmidARunAreStoredOneByOne) {
  expect_lines(columns_until(96).source,
               {"load_box<L0, 8, true>(", "store_box<L0, 8, false, true>("});
  expect_lines(columns_until(100).source, {"load_box<L0, 8, true>(", "store_box<L0, 8>("});
  expect_clean_build(columns_until(100));
}

// What goes to another rank goes 16 bytes at a time: the compiler takes apart what it may.
TEST(MemoryText, RunsForAnotherRankStayWhole) {
  ProgramBuilder p("to_peer", 2);
  auto x = p.input("x", DType::kBF16, {8, 2048});
  auto inbox = p.state("inbox", DType::kBF16, {8, 2048}, Space::kSymmetric);
  auto y = p.output("y", DType::kBF16, {8, 2048});
  p.role("work", Resource::sms(1), p.range(8), [&](const Tile& t) {
    Value row = p.load(x.tile({t.index, 0}, 1, 2048));
    p.store(y.tile({t.index, 0}, 1, 2048), row);
    p.store(inbox.on(1 - p.rank()).tile({t.index, 0}, 1, 2048), row);
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source, {"store_box<L0, 8, false, true>(", "store_box<L0, 8, true, true>("});
  expect_clean_build(kernel);
}

// Rows of the next rank, of which the last tile has fewer than the others.
GeneratedKernel fetched(int threads) {
  ProgramBuilder p("fetched", 2);
  auto x = p.input("x", DType::kBF16, {30, 4096}, Space::kSymmetric);
  auto y = p.output("y", DType::kBF16, {30, 4096});
  p.role("copy", Resource::sms(4), p.range(4), [&](const Tile& t) {
    Slice from = x.on((p.rank() + 1) % 2).tile({t.index * 8, 0}, 8, 4096);
    p.copy(y.tile({t.index * 8, 0}, 8, 4096), from.until_row(30 - p.rank()));
  });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = threads;
  return generate(program);
}

TEST(MemoryText, CopiesUnderWayFitTheRegistersOfAThread) {
  GeneratedKernel few = fetched(512), many = fetched(1024);
  expect_lines(few.source, {"__launch_bounds__(512", "copy_box<8>(", "team, 512);"});
  expect_lines(many.source, {"__launch_bounds__(1024", "copy_box<8, 4>(", "team, 1024);"});
  expect_clean_build(few);
  expect_clean_build(many);
}

// Of a box that begins before its tensor only the last row is there.
TEST(MemoryText, BoxesMayBeginBeforeTheirTensor) {
  ProgramBuilder p("last_row", 1);
  auto x = p.input("x", DType::kF32, {8, 32});
  auto y = p.output("y", DType::kF32, {1, 32});
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(y.tile({-7, 0}, 8, 32), p.load(x.tile({0, 0}, 8, 32)));
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source, {"1 - -7), min(32, 32 - 0), 7, 0}"});
  expect_clean_build(kernel);
}

// Behind the last plane of a slot the view has the next slot's first.
TEST(MemoryText, StoresByTmaStayWithinTheirSlot) {
  auto text = [](std::int64_t beyond, int slots) {
    ProgramBuilder p("planes", 1);
    auto a = p.input("a", DType::kBF16, {64, 64}), b = p.input("b", DType::kBF16, {64, 64});
    auto box = p.buffer("box", DType::kBF16, {3, 64, 64}, {.num_slots = slots});
    auto out = p.output("out", DType::kBF16, {64, 64});
    p.role("multiply", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile& t) {
      Value acc = p.zeros(DType::kF32, 64, 64);
      p.loop(2, [&](const Index&) {
        acc = dot(acc, p.load(a.tile({0, 0}, 64, 64)), p.load(b.tile({0, 0}, 64, 64)));
      });
      p.store(box.tile({t.index + beyond, 0, 0}, 64, 64), cast(acc, DType::kBF16));
      p.worker_fence();
      p.store(out.tile({0, 0}, 64, 64), p.load(box.tile({2, 0, 0}, 64, 64)));
    });
    return generate(p.finish()).source;
  };
  expect_lines(text(2, 2),
               {"if ((x1_multiply_tile + 2) < 3) {", "store_tma<", "} else {", "store_box<"});
  EXPECT_EQ(text(2, 1).find("< 3) {"), std::string::npos) << "TMA knows the end of the tensor";
}

}  // namespace
}  // namespace stretto::memory_text_test
