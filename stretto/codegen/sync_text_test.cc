// Waits as CUDA text. If these fail, a kernel waits for what never comes.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/ir/parser.h"
#include "stretto/lang/program_builder.h"

namespace stretto::sync_text_test {
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

// The notify lets another rank write again what the threads of the producer copy asynchronously.
TEST(SyncText, ProducersHaveReadWhatTheyCopyBeforeTheyNotify) {
  Program program = parse(R"(program "told" world 2 level schedule {
  rank %rank
  tile %t
  buffer @inbox : f32[64, 33] symmetric
  output @out : f32[4, 64, 33]
  signal free channels 2 per_source
  role use sms 1 tiles %t < 4 {
    pipe box : f32[64, 33] slots 4 swizzle b128 producer ld consumer math
    barrier read arrivals 2
    agent ld producer {
      pipe_put box = @inbox[0, 0] tile [64, 33]
      notify free[%rank] on 1 - %rank by 1
      arrive read
    }
    agent math consumer threads 128 {
      values $0: f32[64, 33]
      barrier_sync read
      $0 = pipe_get box
      store $0 to @out[%t, 0, 0] tile [64, 33]
      pipe_release box
    }
  }
})",
                          "told.ir", MissingLocs::kFill);
  const char* copied = "mbarrier_wait_acquire_cta(&full0[(ring0.slot() + 3) % 4], ring0.round() ^ ";
  expect_lines(generate_kernel(program).source,
               {"mbarrier_arrive_after_copies(&full0", "ring0.next();", copied,
                "named_barrier_sync(team.barrier, 128);", "add_release_sys(", copied,
                "named_barrier_arrive(", "named_barrier_sync(", "&full0[ring0.slot()]"});
}

}  // namespace
}  // namespace stretto::sync_text_test
