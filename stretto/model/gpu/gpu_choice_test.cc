// The kernel that chooses tokens beside its definition, on GPUs (simulated ones will do,
// docs/internals). If this fails, a seed gives other text on GPUs than on CPU ranks, or other text
// in company.
#include "stretto/model/gpu/gpu_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/model/choice/choice_testing.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Rows {
  std::size_t vocab = 0;
  std::vector<float> logits;  // [rows, vocab]
  std::vector<OwnWish> wishes;

  std::span<const float> row(std::size_t i) const {
    return std::span(logits).subspan(i * vocab, vocab);
  }
  void add(const std::vector<float>& row, OwnWish wish) {
    logits.insert(logits.end(), row.begin(), row.end());
    wishes.push_back(std::move(wish));
  }
};

class OnGpu {
 public:
  OnGpu() : device_(0), stream_(device_) {}

  std::vector<ChoiceResult> choose(const Rows& rows) {
    GpuChooser chooser(device_, static_cast<std::int64_t>(rows.vocab), std::ssize(rows.wishes));
    const std::size_t bytes = rows.logits.size() * sizeof(float);
    cuda::DeviceMemory memory(device_, bytes);
    stream_.upload(memory.address(), rows.logits.data(), bytes);
    std::vector<ChoiceWish> wishes;
    for (const OwnWish& w : rows.wishes) wishes.push_back(w.wish());
    std::span<const ChoiceResult> got = chooser.choose(stream_, memory.address(), wishes);
    std::vector<float> after(rows.logits.size(), 7.f);
    stream_.download(after.data(), memory.address(), bytes);
    stream_.synchronize();
    EXPECT_EQ(std::memcmp(after.data(), rows.logits.data(), bytes), 0) << "logits were changed";
    return {got.begin(), got.end()};
  }

 private:
  cuda::Device device_;
  cuda::Stream stream_;
};

std::vector<float> normal_row(std::mt19937_64& random, std::size_t vocab, float mean,
                              float spread) {
  std::normal_distribution<float> normal(mean, spread);
  std::vector<float> row(vocab);
  std::generate(row.begin(), row.end(), [&] { return normal(random); });
  return row;
}

// What the definition gives for a row.
ChoiceResult defined(std::span<const float> logits, const OwnWish& w) {
  std::vector<float> changed(logits.begin(), logits.end());
  ChoiceScratch scratch;
  const Choice choice = choose_token(changed, w.wish(), scratch);
  ChoiceResult out{.status = choice.status};
  if (choice.status != ChoiceStatus::kChosen) return out;
  out.token = static_cast<unsigned>(choice.token);
  if (w.row.num_top >= 0) tell_choice(logits, w.row.num_top, out, scratch);
  return out;
}

void expect_defined(const ChoiceResult& got, std::span<const float> logits, const OwnWish& w,
                    int& elsewhere) {
  SCOPED_TRACE(w.to_string());
  const ChoiceResult want = defined(logits, w);
  if (got.status == ChoiceStatus::kElsewhere) {  // alternatives among -inf, or too many that tie
    ASSERT_GT(w.row.num_top, 0);
    ++elsewhere;
    return;
  }
  ASSERT_EQ(got.status, want.status);
  if (got.status != ChoiceStatus::kChosen) return;
  ASSERT_EQ(got.token, want.token);
  if (w.row.num_top < 0) return;
  EXPECT_EQ(got.total, want.total);
  EXPECT_EQ(got.logit, want.logit);
  EXPECT_EQ(got.best, want.best);
  EXPECT_EQ(got.rank, want.rank);
  ASSERT_EQ(got.num_top, want.num_top);
  for (std::size_t i = 0; i < got.num_top; ++i) {
    EXPECT_EQ(got.top[i].token, want.top[i].token) << i;
    EXPECT_EQ(got.top[i].logit, want.top[i].logit) << i;
  }
}

// How many of them are chosen elsewhere.
int expect_defined(const std::vector<ChoiceResult>& got, const Rows& rows) {
  EXPECT_EQ(got.size(), rows.wishes.size());
  int elsewhere = 0;
  for (std::size_t i = 0; i < std::min(got.size(), rows.wishes.size()); ++i) {
    SCOPED_TRACE("row " + std::to_string(i) + " of " + std::to_string(rows.vocab));
    expect_defined(got[i], rows.row(i), rows.wishes[i], elsewhere);
  }
  return elsewhere;
}

class GpuChoiceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  }
};

TEST_F(GpuChoiceTest, AgreesWithTheDefinition) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ChoiceLot lot(seed);
  OnGpu gpu;
  int rows_seen = 0, elsewhere = 0;
  for (std::size_t vocab : {1, 3, 31, 32, 130, 2049, 5003}) {
    Rows rows{.vocab = vocab};
    const int count = vocab > 1000 ? 24 : 40;
    for (int i = 0; i < count; ++i) {
      std::vector<float> logits = lot.logits(vocab);
      rows.add(logits, lot.wish(vocab));
    }
    elsewhere += expect_defined(gpu.choose(rows), rows);
    rows_seen += count;
  }
  EXPECT_LT(elsewhere, rows_seen / 3);
}

// So many tokens in one bin of the histogram that it is taken apart, by count and by weight.
TEST_F(GpuChoiceTest, FlatRowsAreCutWhereTheyShouldBe) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Rows rows{.vocab = 4099};
  for (float spread : {1e-6f, 1e-4f, 1e-2f}) {
    for (unsigned top_k : {0u, 3000u}) {
      for (double top_p : {0.4, 0.97, 1.0}) {
        std::vector<float> logits = normal_row(random, rows.vocab, 1, spread);
        rows.add(logits, {.row = {.random = random(),
                                  .top_p = choice_top_p(top_p),
                                  .inverse_temperature = 1,
                                  .top_k = top_k}});
      }
    }
  }
  expect_defined(OnGpu().choose(rows), rows);
}

// A result is of the row alone: of its neighbours, their number and where it lies nothing is seen.
TEST_F(GpuChoiceTest, ARowIsChosenAloneAsInCompany) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ChoiceLot lot(seed);
  OnGpu gpu;
  Rows together{.vocab = 1003};  // rows begin at any element of a vector
  for (int i = 0; i < 9; ++i) {
    std::vector<float> logits = lot.logits(together.vocab);
    together.add(logits, lot.wish(together.vocab));
  }
  std::vector<ChoiceResult> all = gpu.choose(together);
  for (std::size_t i = 0; i < all.size(); ++i) {
    Rows alone{.vocab = together.vocab,
               .logits = {together.row(i).begin(), together.row(i).end()},
               .wishes = {together.wishes[i]}};
    const ChoiceResult one = gpu.choose(alone)[0];
    ASSERT_EQ(one.status, all[i].status);
    if (one.status != ChoiceStatus::kChosen) continue;
    EXPECT_EQ(one.token, all[i].token);
    if (alone.wishes[0].row.num_top < 0) continue;
    EXPECT_EQ(one.total, all[i].total);
    EXPECT_EQ(one.rank, all[i].rank);
  }
}

// More edits than a launch has room for, and rows whose pieces are of more than a warp's tokens.
TEST_F(GpuChoiceTest, LongRowsAndManyEdits) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Rows rows{.vocab = 270001};
  for (int i = 0; i < 3; ++i) {
    std::vector<float> logits = normal_row(random, rows.vocab, 0, 1);
    OwnWish w{.row = {.random = random(),
                      .top_p = i == 1 ? choice_top_p(0.7) : kNoTopP,
                      .inverse_temperature = 1,
                      .repetition_penalty = 1.3f}};
    for (unsigned t = 0; t < rows.vocab; t += 2) w.edits.push_back({.token = t, .kinds = 1});
    rows.add(logits, std::move(w));
  }
  expect_defined(OnGpu().choose(rows), rows);
}

TEST_F(GpuChoiceTest, WhatIsNoNumberIsToldWhereverItStands) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    Rows rows{.vocab = 70};
    for (std::size_t at = 0; at < rows.vocab; at += 23) {
      for (int kind = 0; kind < 3; ++kind) {
        std::vector<float> logits(rows.vocab, 1.f);
        logits[at] = bad;
        OwnWish w;
        if (kind == 1) w.edits = {{.token = static_cast<unsigned>(at), .kinds = kChoiceDropped}};
        if (kind == 2) w.allowed = {0, 0, 1u << 5};
        rows.add(logits, std::move(w));
      }
    }
    for (const ChoiceResult& r : OnGpu().choose(rows)) {
      EXPECT_EQ(r.status, ChoiceStatus::kNotNumbers);
    }
  }
}

// 256 rows are resident on a GPU at once. What is spilled are a few numbers of a row, no logits.
TEST(GpuChoiceKernel, TwoBlocksFitAMultiprocessor) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "needs NVRTC";
  const cuda::KernelImage image = compile_choice_kernel();
  for (const cuda::KernelReport& r : cuda::kernel_reports(image.log)) {
    EXPECT_LE(r.spill_store_bytes, 96) << image.log;
    EXPECT_LE(r.registers, 64);
    EXPECT_LE(r.static_shared, 48 << 10);
  }
}

}  // namespace
}  // namespace stretto
