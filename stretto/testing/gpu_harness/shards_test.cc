// Products whose ranks' rows are seldom whole tiles, on GPUs or simulated ones, beside the fp64
// reference. What tiles have past the end of a rank's rows is not made zero (passes/unseen_rows.h,
// ops/gemm_rs/partial_sums.cc); a user who loses this finds another rank's rows in it, or padding
// that is not zero.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/testing/cases/ag_columns_case.h"
#include "stretto/testing/cases/gemm_ar_case.h"
#include "stretto/testing/cases/gemm_rs_case.h"
#include "stretto/testing/cases/ulysses_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto::shards_test {
namespace {

constexpr std::int64_t kRows = 300, kCols = 72, kInner = 128;
constexpr GemmTile kTile = {.bm = 128, .bn = 64, .bk = 64};

class Shards : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < GetParam()) {
      GTEST_SKIP() << "needs " << GetParam() << " GPUs";
    }
  }

  // A launch of all rows, one whose shards end somewhere, and few rows, of which the last ranks
  // have none.
  std::vector<std::int64_t> rows() {
    auto between = [&](std::int64_t least, std::int64_t most) {
      return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
    };
    return {kRows, between(130, kRows - 1), between(1, 5)};
  }

  template <typename Desc, typename Config, typename Make>
  void expect_right(const Desc& d, const Config& config, Make make) {
    std::string label = to_string(d) + " | " + to_string(config);
    if (!is_drawn(label, 16)) return;
    std::vector<OpCase> cases;
    for (std::int64_t m : rows()) cases.push_back(make(d, config, m, seed_));
    GpuRunResult result = run_gpu_cases(world(), cases, {.launches = 2, .seed = seed_});
    EXPECT_EQ(result.found, "") << label << "\nSTRETTO_TEST_SEED=" << seed_;
  }

  template <typename Desc>
  static Desc sized(DType factors, Scaling scaling) {
    Desc d;
    d.world_size = GetParam(), d.m = kRows, d.n = kCols, d.k = kInner;
    d.a_dtype = d.b_dtype = factors;
    d.scaling = scaling;
    return d;
  }

  GpuWorld& world() {
    if (!world_) world_.emplace(GpuWorldOptions{.size = GetParam()});
    return *world_;
  }

  const std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  std::optional<GpuWorld> world_;
};

struct Factors8Or16 {
  DType dtype;
  Scaling scaling;
};
constexpr Factors8Or16 kFactors[] = {{DType::kBF16, Scaling::kNone},
                                     {DType::kF8E4M3, Scaling::kRowWise},
                                     {DType::kF8E4M3, Scaling::kBlock}};

TEST_P(Shards, OfGemmRs) {
  for (const auto& [dtype, scaling] : kFactors) {
    auto d = sized<GemmRsDesc>(dtype, scaling);
    d.out_dtype = DType::kBF16;
    d.average = d.residual = random_() % 2 == 0;
    GemmRsConfig stored{.loop = {.tile = kTile, .num_compute_sms = 4, .raster = 8, .num_stages = 3},
                        .num_reduce_sms = 0};
    expect_right(d, fitted(d, stored), gemm_rs_case);
    GemmRsConfig reduced = stored;
    reduced.num_reduce_sms = 2, reduced.num_slots = 1, reduced.channels_per_rank = 2;
    expect_right(d, fitted(d, reduced), gemm_rs_case);
    GemmRsConfig copied = stored;
    copied.scatter = Scatter::kCopyEngine, copied.num_slots = 1, copied.channels_per_rank = 2;
    expect_right(d, fitted(d, copied), gemm_rs_case);
    if (dtype != DType::kBF16) continue;
    copied.loop.store_slots = 2;
    expect_right(d, fitted(d, copied), gemm_rs_case);
    stored.loop.store_slots = 2;
    expect_right(d, fitted(d, stored), gemm_rs_case);
  }
}

TEST_P(Shards, OfGemmAr) {
  for (const auto& [dtype, scaling] : kFactors) {
    auto d = sized<GemmArDesc>(dtype, scaling);
    d.out_dtype = DType::kBF16;
    d.residual = random_() % 2 == 0;
    GemmArConfig stored{.loop = {.tile = kTile, .num_compute_sms = 4, .num_stages = 3},
                        .shots = ReduceShots::kTwo,
                        .num_reduce_sms = 0};
    expect_right(d, fitted(d, stored), gemm_ar_case);
    GemmArConfig copied = stored;
    copied.scatter = copied.gather = Scatter::kCopyEngine, copied.channels = 2;
    expect_right(d, fitted(d, copied), gemm_ar_case);
    if (dtype != DType::kBF16) continue;
    copied.gather = Scatter::kEpilogue, copied.loop.store_slots = 2;
    expect_right(d, fitted(d, copied), gemm_ar_case);
  }
}

TEST_P(Shards, OfGatheredColumns) {
  for (const auto& [dtype, scaling] : kFactors) {
    auto d = sized<AgColumnsDesc>(dtype, scaling);
    d.k = kInner * GetParam();
    d.c_dtype = DType::kBF16;
    for (Gather gather : {Gather::kSend, Gather::kPush}) {
      AgColumnsConfig config{
          .loop = {.tile = kTile, .num_compute_sms = 4, .raster = 8, .num_stages = 3},
          .gather = gather,
          .comm_rows = 64};
      expect_right(d, config, ag_columns_case);
    }
  }
}

TEST_P(Shards, OfTokensThatAreSent) {
  for (bool bias : {false, true}) {
    UlyssesDesc d{.world_size = GetParam(), .m = kRows, .n = kCols, .k = kInner * GetParam()};
    d.dtype = d.weight_dtype = random_() % 2 == 0 ? DType::kBF16 : DType::kF16;
    d.bias = bias;
    d.residual = random_() % 2 == 0;
    UlyssesConfig config{
        .loop = {.tile = kTile, .num_compute_sms = 4, .raster = 8, .num_stages = 3},
        .comm_rows = kTile.bm,
        .num_queues = 2};
    expect_right(d, config, a2a_gemm_case);
    config.loop.store_slots = 2;
    expect_right(d, config, a2a_gemm_case);
    config.loop.store_slots = config.loop.num_stages = 0;
    expect_right(d, config, a2a_gemm_case);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Shards, testing::Values(2, 3, 4));

}  // namespace
}  // namespace stretto::shards_test
