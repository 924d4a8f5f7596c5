// The text of a config or a desc says all of it, and a config's is read back. If this fails, two
// of them are taken for one, or a kept choice for another; of a desc, Python cannot ask for what
// its list leaves out.
#include "stretto/ops/operator/named_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/ops/ag_gemm/ag_columns_gemm.h"
#include "stretto/ops/ag_gemm/ag_gemm_sm90.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/paged_write.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/gemm/gemm_sm90.h"
#include "stretto/ops/gemm/quantize_fp8.h"
#include "stretto/ops/gemm_ag/gemm_ag.h"
#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"
#include "stretto/ops/gemm_rs/gemm_rs_sm90.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"
#include "stretto/ops/norm/norm.h"
#include "stretto/ops/ulysses/ulysses.h"
#include "stretto/testing/cases/case_testing.h"

namespace stretto {
namespace {

// Each field has another value than by default among these.
constexpr const char* kValues[] = {"7",   "1",       "0",      "bfloat16", "row-wise",
                                   "max", "sigmoid", "masked", "best",     "int8"};

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

// Stands for a value of any type but those by which an optional has several constructors.
struct Any {
  template <typename T>
  requires(!std::is_same_v<T, std::nullopt_t> && !std::is_same_v<T, double>) operator T() const;
};
struct AnyNumber {
  template <typename T>
  operator T() const;
};

// How many fields a struct has.
template <typename Struct, typename... Values>
constexpr std::size_t num_fields() {
  static_assert(sizeof...(Values) < 40);
  if constexpr (requires { Struct{Values{}..., Any{}}; }) {
    return num_fields<Struct, Values..., Any>();
  } else if constexpr (requires { Struct{Values{}..., AnyNumber{}}; }) {
    return num_fields<Struct, Values..., AnyNumber>();
  } else {
    return sizeof...(Values);
  }
}

template <typename Desc>
std::string text(const Desc& d) {
  if constexpr (requires { to_string(d); }) {
    return to_string(d);
  } else {
    return text_of(d);
  }
}

bool takes(const NamedField& field, const char* value) {
  try {
    return field.set(value);
  } catch (const UserError&) {  // no dtype
    return false;
  }
}

// Every field of the struct is in the list, and has a part in the text.
template <typename Desc>
void expect_all_said(const char* name) {
  SCOPED_TRACE(name);
  const Desc usual;
  Desc d;
  const std::size_t count = fields_of(d).size();
  std::size_t expected = num_fields<Desc>();
  if constexpr (requires { d.gate; }) expected += num_fields<decltype(d.gate)>() - 1;
  EXPECT_EQ(count, expected);
  for (std::size_t i = 0; i < count; ++i) {
    Desc changed;
    NamedFields fields = fields_of(changed);
    const NamedField& field = fields[i];
    bool said = std::any_of(std::begin(kValues), std::end(kValues), [&](const char* value) {
      return takes(field, value) && text(changed) != text(usual);
    });
    EXPECT_TRUE(said) << field.name() << " has no part in: " << text(usual);
  }
}

TEST(DescFields, AllAreListedAndSaid) {
  expect_all_said<GemmDesc>("GemmDesc");
  expect_all_said<AgGemmDesc>("AgGemmDesc");
  expect_all_said<AgColumnsDesc>("AgColumnsDesc");
  expect_all_said<GemmAgDesc>("GemmAgDesc");
  expect_all_said<GemmRsDesc>("GemmRsDesc");
  expect_all_said<GemmArDesc>("GemmArDesc");
  expect_all_said<UlyssesDesc>("UlyssesDesc");
  expect_all_said<QuantizeDesc>("QuantizeDesc");
  expect_all_said<CollectiveDesc>("CollectiveDesc");
  expect_all_said<NormDesc>("NormDesc");
  expect_all_said<VocabDesc>("VocabDesc");
  expect_all_said<AttentionDesc>("AttentionDesc");
  expect_all_said<SequenceAttentionDesc>("SequenceAttentionDesc");
  expect_all_said<FlashDecodeDesc>("FlashDecodeDesc");
  expect_all_said<PackedAttentionDesc>("PackedAttentionDesc");
  expect_all_said<PagedDecodeDesc>("PagedDecodeDesc");
  expect_all_said<PagedWriteDesc>("PagedWriteDesc");
  expect_all_said<RouteDesc>("RouteDesc");
  expect_all_said<GroupedDesc>("GroupedDesc");
  expect_all_said<CombineDesc>("CombineDesc");
  expect_all_said<ExpertTiles>("ExpertTiles");
  expect_all_said<AgGroupedDesc>("AgGroupedDesc");
  expect_all_said<GroupedRsDesc>("GroupedRsDesc");
  expect_all_said<MoeLayerDesc>("MoeLayerDesc");
  expect_all_said<EpDesc>("EpDesc");
  expect_all_said<EpMoeLayerDesc>("EpMoeLayerDesc");
}

// Choices are kept under these texts, and results are known by them.
TEST(DescFields, TextsStay) {
  auto bf16 = [](auto d) {
    d.a_dtype = d.b_dtype = DType::kBF16;
    return to_string(d);
  };
  EXPECT_EQ(
      bf16(GemmDesc{
          .world_size = 2, .m = 8, .n = 16, .k = 32, .bias = true, .residual = true, .b_kn = true}),
      "gemm P=2 m=8 n=16 k=32 a=bf16 b=bf16 c=f32 bias residual b[k,n]");
  EXPECT_EQ(to_string(AgGemmDesc{.world_size = 4,
                                 .m = 8,
                                 .n = 16,
                                 .k = 32,
                                 .swiglu = true,
                                 .scaling = Scaling::kRowWise,
                                 .gathered = true}),
            "ag_gemm P=4 m=8 n=16 k=32 a=f32 b=f32 c=f32 swiglu row-wise gathered");
  EXPECT_EQ(
      bf16(GemmRsDesc{
          .world_size = 2, .m = 8, .n = 16, .k = 32, .average = true, .scaling = Scaling::kBlock}),
      "gemm_rs P=2 m=8 n=16 k=32 a=bf16 b=bf16 out=f32 average block");
  EXPECT_EQ(bf16(GemmArDesc{.world_size = 2, .m = 8, .n = 16, .k = 32}),
            "gemm_ar P=2 m=8 n=16 k=32 a=bf16 b=bf16 out=f32");
  EXPECT_EQ(bf16(AgGroupedDesc{.world_size = 2,
                               .m = 8,
                               .top_k = 2,
                               .num_experts = 6,
                               .n = 16,
                               .k = 32,
                               .swiglu = true,
                               .gathers = false}),
            "ag_grouped_gemm P=2 m=8 top 2 of 6 experts n=16 k=32 a=bf16 b=bf16 c=f32 swiglu "
            "all tokens there");
  EXPECT_EQ(bf16(GroupedRsDesc{.world_size = 2,
                               .m = 8,
                               .top_k = 2,
                               .num_experts = 6,
                               .n = 16,
                               .k = 32,
                               .residual = true,
                               .all_reduce = true}),
            "grouped_gemm_ar P=2 m=8 top 2 of 6 experts n=16 k=32 a=bf16 b=bf16 out=f32 residual");
  EXPECT_EQ(
      to_string(CollectiveDesc{
          .dtype = DType::kF16, .m = 8, .n = 16, .world_size = 2, .reduction = Reduction::kMax}),
      "[8, 16] f16 P=2 max");
  EXPECT_EQ(to_string(CollectiveDesc{.m = 8, .n = 16, .world_size = 2, .payload = Payload::kInt8}),
            "[8, 16] f32 P=2 as int8");
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
