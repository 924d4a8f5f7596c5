// The text of a config or a desc says all of it, and a config's is read back. If this fails, two
// of them are taken for one, or a kept choice for another; of a desc, Python cannot ask for what
// its list leaves out.
#include "stretto/ops/operator/named_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/ops/ag_gemm/ag_columns_gemm.h"
#include "stretto/ops/ag_gemm/ag_gemm_sm90.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/decode_attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/paged_write.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/collectives/uneven.h"
#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/gemm/gemm_sm90.h"
#include "stretto/ops/gemm/quantize_fp8.h"
#include "stretto/ops/gemm_ag/gemm_ag.h"
#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"
#include "stretto/ops/gemm_rs/gemm_rs_sm90.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
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

// Calls `f` with every number, flag, type and word of a struct and of the structs in it.
template <typename T, typename F>
void for_each_value(T& at, const F& f) {
  constexpr bool is_struct = std::is_aggregate_v<T>;
  if constexpr (!is_struct) {
    f(at);
  } else {
    auto all = [&](auto&... members) { (for_each_value(members, f), ...); };
    constexpr std::size_t n = num_fields<T>();
    static_assert(n >= 1 && n <= 18);
    if constexpr (n == 1) {
      auto& [a] = at;
      all(a);
    } else if constexpr (n == 2) {
      auto& [a, b] = at;
      all(a, b);
    } else if constexpr (n == 3) {
      auto& [a, b, c] = at;
      all(a, b, c);
    } else if constexpr (n == 4) {
      auto& [a, b, c, d] = at;
      all(a, b, c, d);
    } else if constexpr (n == 5) {
      auto& [a, b, c, d, e] = at;
      all(a, b, c, d, e);
    } else if constexpr (n == 6) {
      auto& [a, b, c, d, e, g] = at;
      all(a, b, c, d, e, g);
    } else if constexpr (n == 7) {
      auto& [a, b, c, d, e, g, h] = at;
      all(a, b, c, d, e, g, h);
    } else if constexpr (n == 8) {
      auto& [a, b, c, d, e, g, h, i] = at;
      all(a, b, c, d, e, g, h, i);
    } else if constexpr (n == 9) {
      auto& [a, b, c, d, e, g, h, i, j] = at;
      all(a, b, c, d, e, g, h, i, j);
    } else if constexpr (n == 10) {
      auto& [a, b, c, d, e, g, h, i, j, k] = at;
      all(a, b, c, d, e, g, h, i, j, k);
    } else if constexpr (n == 11) {
      auto& [a, b, c, d, e, g, h, i, j, k, l] = at;
      all(a, b, c, d, e, g, h, i, j, k, l);
    } else if constexpr (n == 12) {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m);
    } else if constexpr (n == 13) {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m, o] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m, o);
    } else if constexpr (n == 14) {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m, o, p);
    } else if constexpr (n == 15) {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q);
    } else if constexpr (n == 16) {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r);
    } else if constexpr (n == 17) {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s);
    } else {
      auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s, t] = at;
      all(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s, t);
    }
  }
}

// To another value, drawn from few.
template <typename T>
void change(T& value, std::mt19937_64& random) {
  const T before = value;
  const auto drawn = 1 + static_cast<int>(random() % 3);
  if constexpr (std::is_same_v<T, bool>) {
    value = !value;
  } else if constexpr (std::is_same_v<T, DType>) {
    value = value == DType::kBF16 ? DType::kF16 : DType::kBF16;
  } else if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(before == static_cast<T>(0) ? 1 : 0);
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    value = value.value_or(0) + 0.37 * drawn;
  } else if constexpr (std::is_same_v<T, double>) {
    value = (std::isinf(value) ? 0 : value) + 0.1 * drawn;
  } else {
    static_assert(std::is_integral_v<T>);
    value += static_cast<T>(drawn);
  }
}

// Whatever its values are, its text says all of them and is read back.
template <typename Struct>
void expect_round_trips(const char* name) {
  SCOPED_TRACE(name);
  std::mt19937_64 random(test_seed());
  std::size_t count = 0;
  Struct usual{};
  for_each_value(usual, [&](auto&) { ++count; });
  std::map<std::string, Struct> by_text = {{text_of(usual), usual}};
  auto look = [&](const Struct& s) {
    const std::string text = text_of(s);
    SCOPED_TRACE(text);
    Struct back{};
    ASSERT_NO_THROW(read_text(text, fields_of(back)));
    EXPECT_TRUE(back == s) << "is read as " << text_of(back);
    auto [known, is_new] = by_text.emplace(text, s);
    EXPECT_TRUE(known->second == s) << "is the text of two of them";
  };
  look(usual);
  for (std::size_t one = 0; one < count; ++one) {
    Struct changed{};
    std::size_t i = 0;
    for_each_value(changed, [&](auto& value) {
      if (i++ == one) change(value, random);
    });
    ASSERT_FALSE(changed == usual);
    look(changed);
  }
  for (int round = 0; round < 100; ++round) {
    Struct changed{};
    for_each_value(changed, [&](auto& value) {
      if (random() % 3 == 0) change(value, random);
    });
    look(changed);
  }
}

#define STRETTO_ROUND_TRIPS(Struct) expect_round_trips<Struct>(#Struct)

// Every field of the struct is in the list, and has a part in the text.
template <typename Desc>
void expect_all_said(const char* name) {
  SCOPED_TRACE(name);
  const Desc usual;
  Desc d;
  const std::size_t count = fields_of(d).size();
  std::size_t expected = num_fields<Desc>();
  if constexpr (requires { d.gate; }) expected += num_fields<decltype(d.gate)>() - 1;
  if constexpr (requires { d.shape; }) expected += num_fields<decltype(d.shape)>() - 1;
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

TEST(Fields, OfAllDescsAreReadBack) {
  STRETTO_ROUND_TRIPS(GemmDesc);
  STRETTO_ROUND_TRIPS(AgGemmDesc);
  STRETTO_ROUND_TRIPS(AgColumnsDesc);
  STRETTO_ROUND_TRIPS(GemmAgDesc);
  STRETTO_ROUND_TRIPS(GemmRsDesc);
  STRETTO_ROUND_TRIPS(GemmArDesc);
  STRETTO_ROUND_TRIPS(UlyssesDesc);
  STRETTO_ROUND_TRIPS(QuantizeDesc);
  STRETTO_ROUND_TRIPS(CollectiveDesc);
  STRETTO_ROUND_TRIPS(UnevenDesc);
  STRETTO_ROUND_TRIPS(NormDesc);
  STRETTO_ROUND_TRIPS(VocabDesc);
  STRETTO_ROUND_TRIPS(AttentionDesc);
  STRETTO_ROUND_TRIPS(SequenceAttentionDesc);
  STRETTO_ROUND_TRIPS(FlashDecodeDesc);
  STRETTO_ROUND_TRIPS(PackedAttentionDesc);
  STRETTO_ROUND_TRIPS(PagedDecodeDesc);
  STRETTO_ROUND_TRIPS(PagedWriteDesc);
  STRETTO_ROUND_TRIPS(RouteDesc);
  STRETTO_ROUND_TRIPS(GroupedDesc);
  STRETTO_ROUND_TRIPS(CombineDesc);
  STRETTO_ROUND_TRIPS(ExpertTiles);
  STRETTO_ROUND_TRIPS(ExpertTablesDesc);
  STRETTO_ROUND_TRIPS(AgGroupedDesc);
  STRETTO_ROUND_TRIPS(GroupedRsDesc);
  STRETTO_ROUND_TRIPS(MoeLayerDesc);
  STRETTO_ROUND_TRIPS(EpDesc);
  STRETTO_ROUND_TRIPS(EpMoeLayerDesc);
}

TEST(Fields, OfAllConfigsAreReadBack) {
  STRETTO_ROUND_TRIPS(GemmConfig);
  STRETTO_ROUND_TRIPS(AgGemmConfig);
  STRETTO_ROUND_TRIPS(AgColumnsConfig);
  STRETTO_ROUND_TRIPS(GemmAgConfig);
  STRETTO_ROUND_TRIPS(GemmRsConfig);
  STRETTO_ROUND_TRIPS(GemmArConfig);
  STRETTO_ROUND_TRIPS(UlyssesConfig);
  STRETTO_ROUND_TRIPS(QuantizeConfig);
  STRETTO_ROUND_TRIPS(CollectiveConfig);
  STRETTO_ROUND_TRIPS(UnevenConfig);
  STRETTO_ROUND_TRIPS(NormConfig);
  STRETTO_ROUND_TRIPS(VocabConfig);
  STRETTO_ROUND_TRIPS(AttentionConfig);
  STRETTO_ROUND_TRIPS(DecodeAttentionConfig);
  STRETTO_ROUND_TRIPS(SequenceAttentionConfig);
  STRETTO_ROUND_TRIPS(FlashDecodeConfig);
  STRETTO_ROUND_TRIPS(PackedAttentionConfig);
  STRETTO_ROUND_TRIPS(PagedDecodeConfig);
  STRETTO_ROUND_TRIPS(PagedWriteConfig);
  STRETTO_ROUND_TRIPS(RouteConfig);
  STRETTO_ROUND_TRIPS(GroupedConfig);
  STRETTO_ROUND_TRIPS(CombineConfig);
  STRETTO_ROUND_TRIPS(ExpertTileOrder);
  STRETTO_ROUND_TRIPS(ExpertTablesConfig);
  STRETTO_ROUND_TRIPS(AgGroupedConfig);
  STRETTO_ROUND_TRIPS(GroupedRsConfig);
  STRETTO_ROUND_TRIPS(MoeLayerConfig);
  STRETTO_ROUND_TRIPS(PlaceConfig);
  STRETTO_ROUND_TRIPS(SendConfig);
  STRETTO_ROUND_TRIPS(ReturnConfig);
  STRETTO_ROUND_TRIPS(EpMoeLayerConfig);
}

TEST(Fields, OtherTextIsRefused) {
  auto refused = [](const char* text, const char* what) {
    GemmConfig c;
    expect_user_error([&] { read_text(text, fields_of(c)); }, what);
  };
  refused("compute=3 tile=1x2x3", "does not begin with tile");
  refused("tile=1x2", "does not begin with tile");
  refused("tile=1x2x3 compute=4 raster=1 stages=0 consumers=1 cluster=1 more", "is not understood");
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
  EXPECT_EQ(bf16(AgGroupedDesc{.shape = {.world_size = 2, .m = 8, .top_k = 2, .num_experts = 6},
                               .n = 16,
                               .k = 32,
                               .swiglu = true,
                               .gathers = false}),
            "ag_grouped_gemm P=2 m=8 top 2 of 6 experts n=16 k=32 a=bf16 b=bf16 c=f32 swiglu "
            "all tokens there");
  EXPECT_EQ(bf16(GroupedRsDesc{.shape = {.world_size = 2, .m = 8, .top_k = 2, .num_experts = 6},
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
