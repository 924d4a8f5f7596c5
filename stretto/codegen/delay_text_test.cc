// Kernels that pause at random before waits and notifies: the pauses are where they are asked for
// and nowhere else. Without them the GPU tests see the same order of events again and again.
#include "stretto/codegen/delay_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::delay_text_test {
namespace {

constexpr int kRanks = 2, kCols = 64;

GeneratedKernel delayed(const Program& program) {
  return generate_kernel(run_pipeline(program),
                         {.delays = KernelDelays{.seed = 77, .most_cycles = 500}});
}

// Every rank adds its neighbour's row to its own, and sends the sum on in packets.
Program ring_add() {
  ProgramBuilder p("ring_add", kRanks);
  TensorRef in = p.input("in", DType::kF32, {1, kCols});
  TensorRef inbox = p.buffer("inbox", DType::kF32, {1, kCols}, {.space = Space::kSymmetric});
  TensorRef words = p.buffer("words", DType::kF32, {1, kCols},
                             {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  TensorRef out = p.output("out", DType::kF32, {1, kCols});
  SignalRef free = p.signal("free"), sent = p.signal("sent");
  Index right = (p.rank() + 1) % kRanks, left = (p.rank() + kRanks - 1) % kRanks;
  p.on_start([&] { p.notify(free, left); });
  p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(free, right);
    p.put_signal(inbox.on(right).tile({0, 0}, 1, kCols), in.tile({0, 0}, 1, kCols), sent[p.rank()],
                 right);
  });
  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(sent, left);
    Value sum = p.load(in.tile({0, 0}, 1, kCols)) + p.load(inbox.tile({0, 0}, 1, kCols));
    p.store_packet(words.on(right).tile({0, 0}, 1, kCols), sum);
    p.store(out.tile({0, 0}, 1, kCols), p.load_packet(words.tile({0, 0}, 1, kCols)));
  });
  return p.finish();
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(DelayText, NothingWhereItIsNotAskedFor) {
  std::string text = generate(ring_add()).source;
  for (const char* word : {"pause_at_random", "kDelays", "delay.h"}) {
    EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
}

TEST(DelayText, APauseStandsBeforeEveryWaitNotifyAndPacket) {
  GeneratedKernel kernel = delayed(ring_add());
  expect_lines(
      kernel.source,
      {"#include \"stretto/device/sm90/delay.h\"", "__constant__ const Delays kDelays{77ull, 500};",
       // on_start, send, add
       "pause_at_random(kDelays, rank, epoch, ", "add_release_sys(p.signals[", "// role 'send'",
       "pause_at_random(", "wait_acquire_sys(", "pause_at_random(", "add_release_sys(",
       "// role 'add'", "pause_at_random(", "wait_acquire_sys(", "pause_at_random(",
       "store_packets<", "pause_at_random(", "load_packets<"});
  EXPECT_EQ(count(kernel.source, "pause_at_random("), 6u) << kernel.source;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(count(kernel.source, fmt::format("epoch, {},", i)), 1u) << i;
  }
  expect_clean_build(kernel);
}

TEST(DelayText, OtherSeedsMakeOtherKernelsAndLaunchesAreTheSame) {
  GeneratedKernel plain = generate(ring_add()), slow = delayed(ring_add());
  GeneratedKernel other =
      generate_kernel(run_pipeline(ring_add()), {.delays = KernelDelays{.seed = 78}});
  EXPECT_NE(slow.expanded, other.expanded);
  EXPECT_EQ(slow.launch.grid, plain.launch.grid);
  EXPECT_EQ(slow.launch.sites.size(), plain.launch.sites.size());
  EXPECT_EQ(slow.launch.num_control_words, plain.launch.num_control_words);
}

}  // namespace
}  // namespace stretto::delay_text_test
