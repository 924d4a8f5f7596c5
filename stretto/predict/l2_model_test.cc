// If these fail, predictions count weights as read once that few rows of several ranks read once
// per rank, and the chooser takes what is slower.
#include "stretto/predict/l2_model.h"

#include <gtest/gtest.h>

namespace stretto::predict {
namespace {

constexpr double kCacheBytes = 1000;
constexpr int kHbm = 3;

// What comes from HBM where two tiles of a wave read the same `bytes`.
double fetched(std::int64_t bytes, bool second_waits) {
  Program program;
  program.tensors.push_back({.name = "weights", .dtype = DType::kF8E4M3});
  Box box;
  box.hi.fill(1);
  box.hi[0] = bytes;
  std::vector<Read> reads = {{.tensor = 0, .box = box, .bytes = static_cast<double>(bytes)}};
  L2Model cache(kCacheBytes, 2);
  std::vector<Work> works(2);
  cache.add({.tile = 0, .work = 0}, reads, program);
  cache.add({.tile = 1, .work = 1, .waited = second_waits}, reads, program);
  cache.charge(kHbm, works);
  double sum = 0;
  for (const Work& work : works) {
    for (const Demand& d : work.demands) sum += d.resource == kHbm ? d.amount : 0;
  }
  return sum;
}

TEST(L2Model, TilesInStepReadOnce) {
  for (std::int64_t bytes : {400, 600, 4000})
    EXPECT_EQ(fetched(bytes, false), static_cast<double>(bytes));
}

TEST(L2Model, TilesBehindReadAgainWhatHalfTheCacheDoesNotHold) {
  EXPECT_EQ(fetched(400, true), 400.0);
  EXPECT_EQ(fetched(600, true), 1200.0);
  EXPECT_EQ(fetched(4000, true), 8000.0);
}

// A mixture of experts has weights of the same place in several tensors.
TEST(L2Model, TensorsAreToldApart) {
  constexpr int kTensors = 6, kExperts = 64;
  Program program;
  program.tensors.resize(kTensors, {.name = "weights", .dtype = DType::kF8E4M3});
  L2Model cache(1e9, kTensors * kExperts);
  std::vector<Work> works(kTensors * kExperts);
  for (int i = 0; i < kTensors * kExperts; ++i) {
    Box box;
    box.hi.fill(1);
    box.lo[0] = i % kExperts;
    box.hi[0] = box.lo[0] + 1;
    cache.add({.tile = i, .work = i}, {{.tensor = i / kExperts, .box = box, .bytes = 1}}, program);
  }
  cache.charge(kHbm, works);
  double sum = 0;
  for (const Work& work : works) {
    for (const Demand& d : work.demands) sum += d.amount;
  }
  EXPECT_DOUBLE_EQ(sum, kTensors * kExperts);
}

}  // namespace
}  // namespace stretto::predict
