// The text of a config says all of it, and is read back. If this fails, two configs are taken for
// one, or a kept choice for another.
#include "stretto/ops/operator/config_fields.h"

#include <gtest/gtest.h>

#include "stretto/ops/ag_gemm/ag_gemm_sm90.h"
#include "stretto/ops/gemm/gemm_sm90.h"
#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"
#include "stretto/ops/gemm_rs/gemm_rs_sm90.h"
#include "stretto/testing/cases/case_testing.h"

namespace stretto {
namespace {

template <typename Config>
void expect_read_back(const std::vector<Config>& configs) {
  ASSERT_FALSE(configs.empty());
  for (const Config& config : configs) {
    Config other;
    std::set<std::string> named = read_config(to_string(config), fields_of(other));
    EXPECT_EQ(to_string(other), to_string(config));
    EXPECT_TRUE(named.contains("tile"));
  }
}

template <typename Desc>
Desc halves(std::int64_t m) {
  Desc d{.world_size = 4, .m = m, .n = 4096, .k = 4096};
  d.a_dtype = d.b_dtype = DType::kBF16;
  return d;
}

TEST(ConfigFields, CandidatesAreReadBack) {
  for (std::int64_t m : {8, 512, 4096}) {
    expect_read_back(gpu_configs(halves<GemmDesc>(m), {}));
    for (Scatter scatter : {Scatter::kEpilogue, Scatter::kCopyEngine}) {
      expect_read_back(gpu_configs(halves<GemmRsDesc>(m), scatter, {}));
    }
    for (ReduceShots shots : {ReduceShots::kOne, ReduceShots::kTwo, ReduceShots::kShared}) {
      expect_read_back(gpu_configs(halves<GemmArDesc>(m), shots, {}));
    }
    for (Gather gather : {Gather::kPull, Gather::kSend, Gather::kPush}) {
      expect_read_back(gpu_configs(halves<AgGemmDesc>(m), gather, {}));
    }
  }
}

// Every field of the loop, in configs whose texts have few of them as a rule.
TEST(ConfigFields, NoFieldOfTheLoopIsLeftOut) {
  const std::string rest =
      "consumers=2 cluster=2 stagger=3 products=in_turn store_slots=4 load_slots=5";
  GemmArConfig ar;
  read_config("tile=1x2x3 raster=6 stages=7 compute=8 " + rest, fields_of(ar));
  const MainLoop& loop = ar.loop;
  EXPECT_EQ(loop.tile.bm, 1);
  EXPECT_EQ(loop.tile.bn, 2);
  EXPECT_EQ(loop.tile.bk, 3);
  EXPECT_EQ(loop.raster, 6);
  EXPECT_EQ(loop.num_stages, 7);
  EXPECT_EQ(loop.num_compute_sms, 8);
  EXPECT_EQ(loop.num_consumers, 2);
  EXPECT_EQ(loop.cluster_size, 2);
  EXPECT_EQ(loop.stagger, 3);
  EXPECT_EQ(loop.products, ProductOrder::kInTurn);
  EXPECT_EQ(loop.store_slots, 4);
  EXPECT_EQ(loop.load_slots, 5);
  EXPECT_TRUE(to_string(ar).ends_with("raster=6 " + rest)) << to_string(ar);
}

TEST(ConfigFields, WhatIsNoFieldOrNoValueIsRefused) {
  auto refused = [](const char* text, const char* key) {
    GemmRsConfig c;
    expect_user_error([&] { read_config(text, fields_of(c)); },
                      std::string("'") + key + "' is not understood here");
  };
  refused("tile=1x2", "tile");
  refused("tile=1x2x3x", "tile");
  refused("tile=1x2x3x4", "tile");
  refused("compute=1.5", "compute");
  refused("compute=99999999999", "compute");
  refused("slots=", "slots");
  refused("scatter=push", "scatter");
  refused("across=2", "across");
  refused("stages=2 stage=3", "stage");
}

}  // namespace
}  // namespace stretto
