// The choice of the next token on the device. A user who loses this reads other text from a GPU
// than greedy decoding gives, or text made of logits that are not numbers.
#include "stretto/ops/greedy/greedy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

constexpr double kInf = HUGE_VAL;

// By a plain loop, which knows nothing of tiles.
int reference(const Values& logits) {
  int best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == kInf) return kNoToken;
    if (logits[i] == -kInf) continue;
    if (best < 0 || logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<int>(i);
  }
  return best;
}

OpCase make_case(const GreedyDesc& d, const GreedyConfig& config, const Values& logits,
                 std::int64_t past) {
  OpCase c{.program = greedy_token(d, config), .extents = {past}};
  c.config = fmt::format("vocab={} past={} tile={}", d.vocab, past, config.tile_vocab);
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  int token = reference(logits);
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    auto at = [&](const char* name) {
      return static_cast<std::size_t>(c.program.find_tensor(name));
    };
    c.inputs[r][at("logits")] = logits;
    Values history(static_cast<std::size_t>(d.max_tokens), -7);
    c.inputs[r][at("history")] = history;
    history[static_cast<std::size_t>(past)] = token;
    c.expected[r][at("history")] = history;
    c.expected[r][at("token")] = {static_cast<double>(std::max(token, 0))};
    c.expected[r][at("next_past")] = {static_cast<double>(past + 1), 0};
  }
  return c;
}

void expect_runs(const OpCase& c, const std::string& what) {
  EXPECT_EQ(run_case(c, {.launches = 2, .waiver = {}}), "") << what << " " << c.config;
  if (cuda::num_devices() < c.program.world_size) return;
  GpuWorld world({.size = c.program.world_size});
  EXPECT_EQ(run_gpu_case(world, c), "") << what << " " << c.config;
}

TEST(GreedyToken, IsTheFirstOfTheLargest) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 bits(seed);
  for (std::int64_t vocab : {1, 7, 256, 2048, 2049, 6000}) {
    for (Target target : {Target::kCpu, Target::kCuda}) {
      GreedyDesc d{.vocab = vocab, .max_tokens = 20, .world_size = vocab == 256 ? 2 : 1};
      GreedyConfig config = default_config(d, target);
      if (target == Target::kCpu) config.tile_vocab = std::min<std::int64_t>(vocab, 96);
      Values logits = random_values(static_cast<std::size_t>(vocab), DType::kF32, bits());
      auto past = static_cast<std::int64_t>(bits() % 20);
      expect_runs(make_case(d, config, logits, past), "random");
      // Equal ones, in other tiles as well, all below zero.
      for (double& x : logits) x = -1 - std::floor(std::abs(x) * 4);
      expect_runs(make_case(d, config, logits, past), "ties");
    }
  }
}

TEST(GreedyToken, NamesNoTokenOfWhatIsNoDistribution) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 bits(seed);
  GreedyDesc d{.vocab = 5000, .max_tokens = 4};
  GreedyConfig config = default_config(d, Target::kCuda);
  Values plain = random_values(5000, DType::kF32, bits());
  std::size_t at = bits() % plain.size();
  for (double bad : {static_cast<double>(NAN), kInf}) {
    Values logits = plain;
    logits[at] = bad;
    ASSERT_EQ(reference(logits), kNoToken);
    expect_runs(make_case(d, config, logits, 0), "broken");
  }
  expect_runs(make_case(d, config, Values(5000, -kInf), 3), "all -inf");
  Values one(5000, -kInf);  // and one that is not
  one[at] = -1e30;
  expect_runs(make_case(d, config, one, 3), "one left");
}

TEST(GreedyToken, IsACleanKernelWhoseBlocksNeedNotAllBeThere) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  GreedyDesc d{.vocab = 128256, .max_tokens = 8192};
  GpuCode code = generate(lower(greedy_token(d, default_config(d, Target::kCuda))));
  for (const cuda::KernelReport& r : cuda::kernel_reports(code.image.log)) {
    EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0);
  }
  EXPECT_FALSE(code.kernel.launch.cooperative);
}

}  // namespace
}  // namespace stretto
