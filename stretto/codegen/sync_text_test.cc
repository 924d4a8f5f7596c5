// Waits as CUDA text. If these fail, a kernel waits for what never comes.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

// A stream through two slots: the first tiles find theirs free.
std::string stream(bool from_zero) {
  constexpr std::int64_t kSlots = 2, kTiles = 8;
  ProgramBuilder p("stream", 1);
  auto in = p.input("in", DType::kF32, {kTiles * 16, 64});
  auto box = p.buffer("box", DType::kF32, {kSlots, 16, 64});
  auto out = p.output("out", DType::kF32, {kTiles * 16, 64});
  auto free = p.signal("free", 1), full = p.signal("full", 1);
  p.role("make", Resource::sms(1), p.grid(in, 16, 64), [&](const Tile& t) {
    Index others = t.index - (kSlots - 1);
    p.wait(free[0], from_zero ? max(others, 0) : others);
    p.store(box.tile({t.index % kSlots, 0, 0}, 16, 64), p.load(in.tile({t.row, 0}, 16, 64)));
    p.notify(full[0], p.rank());
  });
  p.role("take", Resource::sms(1), p.grid(out, 16, 64), [&](const Tile& t) {
    p.wait(full[0], t.index + 1);
    p.store(out.tile({t.row, 0}, 16, 64), p.load(box.tile({t.index % kSlots, 0, 0}, 16, 64)));
    p.notify(free[0], p.rank());
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_clean_build(kernel);
  return kernel.source;
}

// Counters have no sign: a threshold below zero would be one of 2^64.
TEST(SyncText, ThresholdsBelowZeroAreZero) {
  std::string source = stream(/*from_zero=*/false);
  expect_lines(source, {"wait_acquire_sys(", "u64(max((x1_make_tile - 1), 0))", "wait_acquire_sys(",
                        "u64((x2_take_tile + 1))"});
  source = stream(/*from_zero=*/true);
  EXPECT_EQ(source.find("u64(max(max("), std::string::npos) << source;
}

}  // namespace
}  // namespace stretto
