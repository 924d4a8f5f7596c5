// What routing may bring to a mixture of experts beyond the random cases of the catalog's tests:
// scores that are no numbers, tables that break their promise, sizes that make no sense. If these
// fail, one bad token or table corrupts the results of others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/ir/printer.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/expert_tables_case.h"
#include "stretto/testing/cases/grouped_case.h"
#include "stretto/testing/cases/route_case.h"
#include "stretto/testing/cases/routing_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Values& tensor_of(std::vector<std::vector<Values>>& all, const OpCase& c, const char* name) {
  return all[0][static_cast<std::size_t>(c.program.find_tensor(name))];
}

TEST(MoeRoute, TokensWithoutNumbersAreRoutedAllTheSame) {
  constexpr std::int64_t kTokens = 11, kTopK = 3, kExperts = 7;
  OpCase c = make_case(moe_route_info(), {.m = kTokens, .n = kExperts, .k = 19}, 0);
  Values& x = tensor_of(c.inputs, c, "x");
  std::fill(x.begin(), x.end(), kNan);
  // All of them to the first experts, each once.
  Values& weights = tensor_of(c.expected, c, "weights");
  std::fill(weights.begin(), weights.end(), kNan);
  c.unchecked = {"weights"};
  Values& offsets = tensor_of(c.expected, c, "offsets");
  for (std::int64_t e = 0; e <= kExperts; ++e) {
    offsets[static_cast<std::size_t>(e)] = static_cast<double>(std::min(e, kTopK) * kTokens);
  }
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t j = 0; j < kTopK; ++j) {
      std::int64_t slot = j * kTokens + t;
      tensor_of(c.expected, c, "slots")[static_cast<std::size_t>(t * kTopK + j)] =
          static_cast<double>(slot);
      tensor_of(c.expected, c, "tokens")[static_cast<std::size_t>(slot)] = static_cast<double>(t);
    }
  }
  c.tolerance = 0;
  EXPECT_EQ(run_case(c, {.launches = 1}), "");
}

// What models ask for besides the catalog's two: DeepSeek-V2 in full, sigmoid as it is, a bias
// alone.
TEST(MoeRoute, EveryWayToChooseGivesWhatItsReferenceSays) {
  RouteDesc plain{
      .shape = {.m = 9, .top_k = 3, .num_experts = 12}, .hidden = 16, .norm_topk_prob = false};
  RouteDesc best = plain, sums = plain, sigmoid = plain, biased = plain;
  best.n_group = 4, best.topk_group = 2, best.group_score = GroupScore::kBest;
  best.routed_scaling_factor = 16;
  sums.n_group = 3, sums.topk_group = 1, sums.scoring_func = Scoring::kSigmoid;
  sigmoid.scoring_func = Scoring::kSigmoid, sigmoid.norm_topk_prob = true;
  biased.bias = true, biased.n_group = biased.topk_group = 2;
  for (const RouteDesc& d : {best, sums, sigmoid, biased}) {
    EXPECT_EQ(run_case(route_case(d, test_route_config(d, Target::kCpu), test_seed() / 3 * 3),
                       {.launches = 1}),
              "");
  }
}

// Tokens are counted 64 at a time, as experts are.
TEST(MoeRoute, ManyPartsAndExpertsAreSortedAsFewAre) {
  RouteDesc few{.shape = {.m = 149, .top_k = 2, .num_experts = 3}, .hidden = 8}, many = few;
  many.shape.num_experts = 71;
  for (const RouteDesc& d : {few, many}) {
    EXPECT_EQ(run_case(route_case(d, test_route_config(d, Target::kCpu), test_seed() / 3 * 3),
                       {.launches = 2}),
              "");
  }
}

TEST(MoeRoute, AnyNumberOfTokensHasAGpuConfig) {
  for (std::int64_t m = 1; m < 300; m += m < 70 ? 1 : 41) {
    RouteDesc d{.shape = {.m = m, .top_k = 4, .num_experts = 60}, .hidden = 256};
    d.dtype = d.weight_dtype = DType::kBF16;
    EXPECT_NO_THROW(moe_route(d, default_config(d, Target::kCuda))) << to_string(d);
    ExpertTablesDesc tables{.tiles = {.shape = d.shape, .tile_rows = 64}};
    EXPECT_NO_THROW(expert_tables(tables, default_config(tables, Target::kCuda)));
  }
}

TEST(MoeRoute, EqualScoresGoToTheFirstExpertsOfTheFirstGroups) {
  OpCase c = make_case(moe_route_limited_info(), {.m = 4, .n = 16, .k = 8}, 0);
  for (const char* name : {"x", "bias"}) {
    Values& values = tensor_of(c.inputs, c, name);
    std::fill(values.begin(), values.end(), 0.0);
  }
  for (double& weight : tensor_of(c.expected, c, "weights")) weight = 2.5 / 3;
  Values &offsets = tensor_of(c.expected, c, "offsets"), &slots = tensor_of(c.expected, c, "slots");
  for (std::size_t e = 0; e < offsets.size(); ++e) {
    offsets[e] = 4 * static_cast<double>(std::min<std::size_t>(e, 3));
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::size_t slot = i % 3 * 4 + i / 3;
    slots[i] = static_cast<double>(slot);
    tensor_of(c.expected, c, "tokens")[slot] = static_cast<double>(i / 3);
  }
  EXPECT_EQ(run_case(c, {.launches = 1}), "");
}

// Any number of choices, ranks, classes, early experts, tokens and rows of a tile: rows that are
// missing or twice there are tokens that are lost or counted twice.
TEST(ExpertTables, AreThoseThatSortingGives) {
  for (std::uint64_t i = 0; i < 24; ++i) {
    std::mt19937_64 random(test_seed() * 24 + i);
    auto up_to = [&](std::int64_t n) { return 1 + static_cast<std::int64_t>(random() % at(n)); };
    ExpertTablesDesc d{.tiles = {.shape = {.world_size = 1 + static_cast<int>(i % 4),
                                           .m = up_to(i % 3 == 0 ? 300 : 20),
                                           .top_k = 1 + static_cast<std::int64_t>(i % 8),
                                           .num_experts = up_to(i % 5 == 0 ? 90 : 7)},
                                 .tile_rows = up_to(9)}};
    if (i % 8 >= 4) d.tiles.expert_groups = d.tiles.shape.world_size;
    d.order.stages = static_cast<int>(up_to(d.tiles.shape.world_size));
    if (i % 2 == 1) d.order.early_experts = up_to(d.tiles.shape.num_experts);
    d.order.in_step = up_to(2) == 1;
    ExpertTablesConfig c{.block_tokens = up_to(16),
                         .sort_rows = up_to(40),
                         .part_blocks = up_to(3),
                         .count_parts = up_to(8),
                         .sum_experts = up_to(16),
                         .tile_rows = up_to(64),
                         .num_workers = static_cast<int>(up_to(4))};
    std::int64_t m =
        i % 4 == 3 ? static_cast<std::int64_t>(random() % at(d.tiles.shape.m)) : d.tiles.shape.m;
    OpCase made = expert_tables_case(d, c, m, chosen_experts(routed_tokens(d.tiles, m), random()));
    EXPECT_EQ(run_case(made, {.launches = 2}), "") << made.config;
  }
}

TEST(GroupedGemm, ATableThatIsNoPartitionEndsTheLaunchWithItsName) {
  struct Broken {
    std::size_t entry;
    double value;
    const char* says;
  };
  constexpr std::int64_t kTokens = 9;
  for (const Broken& b : {Broken{0, 1, "entry 0"}, Broken{5, 17, "entry 5"},
                          Broken{2, -1, "entry 2"}, Broken{3, 1e6, "entry 3"}}) {
    OpCase c =
        make_case(grouped_gemm_info(), {.m = kTokens, .n = 29, .k = 51}, test_seed() / 3 * 3);
    tensor_of(c.inputs, c, "offsets")[b.entry] = b.value;
    expect_fault([&] { run_case(c, {.launches = 1}); }, {"'offsets'", b.says});
  }
}

// Of two ranks, the first one's.
void breaks(const OperatorInfo& op, const char* table, std::size_t entry, double value) {
  SCOPED_TRACE(fmt::format("{} {}[{}] = {}", op.name, table, entry, value));
  OpCase c = make_case(op, {.world_size = 2, .m = 12, .n = 8, .k = 8}, test_seed() / 3 * 3);
  tensor_of(c.inputs, c, table)[entry] = value;
  expect_fault([&] { run_case(c, {.launches = 1}); },
               {fmt::format("'{}'", table), fmt::format("entry {}", entry)});
}

TEST(FusedLayers, ATableThatNamesWhatIsNotThereEndsTheLaunchWithItsName) {
  constexpr double kRanks = 2, kTokens = 12, kExperts = 5;
  for (const OperatorInfo& op : {ag_grouped_gemm_info(), moe_layer_info()}) {
    breaks(op, "tiles_used", 0, 1000);
    breaks(op, "tile_experts", 1, kExperts);
    breaks(op, "tile_needs", 0, kRanks + 1);
    breaks(op, "row_tokens", 2, kTokens);
  }
  for (const OperatorInfo& op :
       {grouped_gemm_rs_info(), grouped_gemm_ar_info(), moe_layer_info()}) {
    breaks(op, "tile_experts", 0, -1);
    breaks(op, "slots", 3, 1000);
    breaks(op, "slots", 0, -1);
  }
}

TEST(ExpertParallel, ATableThatNamesAnExpertOrRowThatIsNotThereEndsTheLaunchWithItsName) {
  breaks(ep_place_info(), "recv_experts", 7, 5);
  breaks(expert_tables_info(), "experts", 4, 8);
  breaks(expert_tables_info(), "experts", 0, -1);
  breaks(moe_combine_info(), "slots", 5, 36);
  breaks(grouped_swiglu_info(), "tokens", 3, 12);
  breaks(grouped_gemm_masked_info(), "counts", 3, 13);  // more rows than there is room for
  breaks(ep_send_info(), "experts", 4, 5);
  breaks(ep_send_info(), "experts", 0, -1);
  breaks(ep_return_info(), "slots", 3, 36);
  breaks(ep_return_info(), "positions", 2, -2);
  breaks(ep_moe_layer_info(), "experts", 4, 5);
  breaks(ep_moe_layer_info(), "experts", 0, -1);
}

TEST(Moe, RefusesSizesThatMakeNoSense) {
  RouteDesc route{.shape = {.m = 4, .top_k = 5, .num_experts = 4}, .hidden = 8};
  expect_user_error([&] { moe_route(route, default_config(route)); }, {"top_k is 5"});
  route.shape.top_k = 2;
  route.n_group = 3;
  expect_user_error([&] { moe_route(route, default_config(route)); }, {"n_group 3", "4 experts"});
  route.n_group = 4;
  expect_user_error([&] { moe_route(route, default_config(route)); }, {"top_k is 2", "1 of 4"});
  route.topk_group = 2;
  expect_user_error([&] { moe_route(route, default_config(route)); }, {"n_group is 4", "second"});
  route.n_group = route.topk_group = 1;
  route.shape.m = std::int64_t{1} << 24;
  expect_user_error([&] { moe_route(route, default_config(route)); }, {"16777216"});
  GroupedDesc grouped{.m = 4, .num_experts = 0};
  GroupedConfig config{.loop = {.tile = {.bm = 4, .bn = 4, .bk = 4}}};
  expect_user_error([&] { grouped_gemm(grouped, config); }, {"num_experts is 0"});
  grouped = {.m = 4, .gathered = true, .layout = RowLayout::kMasked};
  expect_user_error([&] { grouped_gemm(grouped, config); }, {"layout is masked"});
  grouped = {.m = 4, .scaling = Scaling::kBlock};
  expect_user_error([&] { grouped_gemm(grouped, config); }, {"scaling is block", "float8_e4m3"});
  EpDesc ep{.shape = {.world_size = 4, .m = 4}, .expert_groups = 3};
  expect_user_error([&] { ep_send(ep, {}); }, {"3 groups", "4 ranks"});
  ExpertTablesDesc tables{.order = {.stages = 2}};
  expect_user_error([&] { expert_tables(tables, {}); }, {"stages is 2"});
  tables.order = {.early_experts = 0};
  expect_user_error([&] { expert_tables(tables, {}); }, {"early_experts is 0"});
  tables = {.tiles = {.shape = {.m = 1 << 20, .top_k = 1 << 12}}};
  expect_user_error([&] { expert_tables(tables, {}); }, {"too many to number"});
  CombineDesc combine{.dtype = DType::kI32};
  expect_user_error([&] { moe_combine(combine, {}); }, {"dtype"});
}

// Rows are copied into the order of the tiles where an expert has many, and tiles for many SMs:
// what was faster in gpu_bench moe and routings.
TEST(AgGroupedGemm, SortsRowsWhereExpertsHaveManyTiles) {
  struct Layer {
    std::int64_t experts, top_k, hidden, ffn, m;
  };
  auto sorts = [](int ranks, const Layer& l) {
    AgGroupedDesc d{
        .shape = {.world_size = ranks, .m = l.m, .top_k = l.top_k, .num_experts = l.experts},
        .n = l.ffn / ranks,
        .k = l.hidden,
        .swiglu = true};
    d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
    EXPECT_EQ(default_config(d, Target::kCpu).sort_rows, 0);
    return default_config(d, Target::kCuda).sort_rows > 0;
  };
  for (int ranks : {2, 4}) {
    for (std::int64_t m : {2048, 4096, 8192, 16384}) {
      EXPECT_EQ(sorts(ranks, {8, 2, 4096, 14336, m}), m >= 1024 * ranks) << ranks << ' ' << m;
      const bool many = ranks == 2 && m == 16384;
      EXPECT_EQ(sorts(ranks, {60, 4, 2048, 1408, m}), many) << ranks << ' ' << m;
      const std::int64_t least = std::int64_t{1024} * ranks * ranks;
      EXPECT_EQ(sorts(ranks, {16, 2, 4096, 6400, m}), m >= least) << ranks << ' ' << m;
    }
  }
}

// Of the kernels that this commit draws.
void expect_no_spills(Program program, const std::string& what) {
  if (!is_drawn(what, 5)) return;
  GeneratedKernel kernel = generate_kernel(run_pipeline(std::move(program)));
  cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "kernel.cu", {});
  std::vector<cuda::KernelReport> reports = cuda::kernel_reports(image.log);
  ASSERT_FALSE(reports.empty()) << image.log;
  for (const cuda::KernelReport& r : reports) {
    EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0)
        << r.kernel << ", " << what;
  }
}

// As models ask for, with few and many tokens; the catalog's tokens have three experts each.
TEST(MoeRoute, FitsTheRegistersWhateverTheNumberOfExperts) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  struct Size {
    std::int64_t experts, top_k;
  };
  const std::vector<Size> all = {{8, 2}, {128, 8}, {384, 8}, {64, 16}};
  for (const Size& s : drawn_of("sizes of routing", all, 2)) {
    for (std::int64_t m : {128, 16384}) {
      RouteDesc d{.shape = {.m = m, .top_k = s.top_k, .num_experts = s.experts}, .hidden = 4096};
      d.dtype = d.weight_dtype = DType::kBF16;
      if (m > 128 && s.experts > 128) d.n_group = 8, d.topk_group = 4, d.bias = true;
      expect_no_spills(moe_route(d, default_config(d, Target::kCuda)), to_string(d));
    }
  }
}

// Products, threads that gather rows and others that sum share the registers of a block to the last
// one; divisions by a number of ranks that is no power of two take some. ./check compiles for two.
TEST(MoeLayer, FitsTheRegistersWhateverTheNumberOfRanks) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  for (int ranks : {3, 7, 8}) {
    OpShape shape = moe_layer_info().large;
    shape.world_size = ranks;
    shape.target = Target::kCuda;
    expect_no_spills(moe_layer_info().program(shape), fmt::format("{} ranks", ranks));
  }
}

// A bias takes registers beside all sums of a tile, and so does the clamped gate of GPT-OSS: of
// that model, and of few large experts, whose gate is plain.
TEST(ExpertBiases, FitTheRegisters) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  struct Layer {
    int ranks;
    std::int64_t experts, top_k, hidden, ffn, tokens;
  };
  const std::vector<Layer> all = {
      {4, 32, 4, 2880, 2880, 4096}, {2, 8, 2, 4096, 14336, 8192}, {1, 128, 4, 2880, 2880, 64}};
  for (const Layer& l : drawn_of("layers with biases", all, 3)) {
    EpMoeLayerDesc ep{.shape = {.world_size = l.ranks, .m = l.tokens, .top_k = l.top_k}};
    ep.shape.num_experts = l.experts, ep.expert_groups = l.ranks, ep.hidden = l.hidden,
    ep.ffn = l.ffn;
    ep.dtype = DType::kBF16, ep.biases = true;
    if (l.ffn == 2880) ep.gate = {.alpha = 1.702, .beta = 1, .limit = 7};
    MoeLayerDesc layer = own_part(ep);
    layer.shape.num_experts = l.experts, layer.ffn = l.ffn / l.ranks, layer.bias_ranks = l.ranks;
    GroupedRsDesc sums = second_layer(layer);
    expect_no_spills(moe_layer(layer, default_config(layer, Target::kCuda)), to_string(layer));
    expect_no_spills(ep_moe_layer(ep, default_config(ep, Target::kCuda)), to_string(ep));
    expect_no_spills(grouped_gemm_rs(sums, default_config(sums, Target::kCuda)), to_string(sums));
    for (bool swiglu : {false, true}) {
      AgGroupedDesc first = first_layer(layer);
      first.swiglu = swiglu;
      if (!swiglu) first.gate = {};
      expect_no_spills(ag_grouped_gemm(first, default_config(first, Target::kCuda)),
                       to_string(first));
      GroupedDesc own = steps_of(ep).first;
      own.swiglu = swiglu, own.bias = true;
      if (!swiglu) own.gate = {};
      expect_no_spills(grouped_gemm(own, default_config(own, Target::kCuda)), to_string(own));
    }
  }
}

// Else a limit of 0, or a gate of one product alone, would be taken for another layer.
TEST(GatedUnits, ThatAreNoneAreRefused) {
  GroupedDesc d{.m = 8, .num_experts = 2, .n = 8, .k = 8, .swiglu = true};
  for (GatedUnit bad : {GatedUnit{.limit = 0}, GatedUnit{.alpha = NAN}, GatedUnit{.beta = INFINITY},
                        GatedUnit{.limit = NAN}}) {
    d.gate = bad;
    expect_user_error([&] { grouped_gemm(d, default_config(d)); }, {"gate has alpha"});
  }
  d.gate = {.alpha = 1.702}, d.swiglu = false;
  expect_user_error([&] { grouped_gemm(d, default_config(d)); }, {"there are no two products"});
  AgGroupedDesc first{.shape = {.m = 8}, .n = 8, .k = 8, .gate = {.limit = 7}};
  expect_user_error([&] { ag_grouped_gemm(first, default_config(first)); },
                    {"there are no two products"});
}

// Else some products would have theirs twice, or none.
TEST(ExpertBiases, AreAddedByTheFirstOfRanksThatDivideAll) {
  GroupedRsDesc d{.shape = {.world_size = 4, .m = 8}, .n = 8, .k = 8, .bias_ranks = 3};
  expect_user_error([&] { grouped_gemm_rs(d, default_config(d)); },
                    {"bias_ranks is 3", "must divide 4"});
}

// Whoever measures or predicts an operator by name would else read figures of the tests' configs,
// which cut few rows into many tiles: what callers get is what counts, at every size.
TEST(FusedLayers, HaveByNameTheConfigThatCallersGet) {
  auto expect_default = [](const OperatorInfo& op, const OpShape& s, const auto& desc,
                           const auto& make) {
    Program wanted = make(desc, default_config(desc, s.target));
    EXPECT_TRUE(equal(op.program(s), wanted)) << op.name << " " << to_string(desc);
    EXPECT_TRUE(equal(make_case(op, s, 0).program, wanted)) << op.name << " " << to_string(desc);
  };
  for (std::int64_t m : {3, 6, 9, 16, 33, 67, 192}) {
    for (Target target : {Target::kCpu, Target::kCuda}) {
      OpShape s{.world_size = 2, .m = m, .n = 48, .k = 80, .dtype = DType::kBF16, .target = target};
      expect_default(ag_grouped_gemm_info(), s, ag_grouped_gemm_desc(s), ag_grouped_gemm);
      expect_default(grouped_gemm_rs_info(), s, grouped_gemm_rs_desc(s, false), grouped_gemm_rs);
      expect_default(grouped_gemm_ar_info(), s, grouped_gemm_rs_desc(s, true), grouped_gemm_rs);
      expect_default(moe_layer_info(), s, moe_layer_desc(s), moe_layer);
      expect_default(ep_moe_layer_info(), s, ep_moe_layer_desc(s), ep_moe_layer);
    }
  }
}

// The catalog's shapes are short steps.
TEST(ExpertParallel, LongStepsHaveWorkersThatSumAloneAndNoneSpill) {
  for (int world_size : {1, 2, 4}) {
    for (std::int64_t tokens : {1, 128, 1056, 4096}) {
      EpDesc d{.shape = {.m = tokens * world_size}, .dtype = DType::kBF16, .hidden = 7168};
      d.shape.num_experts = 256, d.shape.top_k = 8,
      d.shape.world_size = d.expert_groups = world_size;
      ReturnConfig c = default_return_config(d, Target::kCuda);
      const bool long_step = tokens > 1000 && world_size > 1;
      EXPECT_EQ(c.num_sum_workers, !long_step ? 0 : world_size == 2 ? 66 : 36) << to_string(d);
      EXPECT_LE(c.num_workers + c.num_sum_workers, GpuTarget{}.sms) << to_string(d);
      if (cuda::has_nvrtc()) expect_no_spills(ep_return(d, c), to_string(d));
    }
  }
}

// Callers pick rows, scales and gates as they like; the catalog's shapes are some of them.
TEST(GroupedGemm, EveryFormHasAKernelByDefault) {
  for (std::int64_t m : {8, 256}) {
    for (int form = 0; form < 16; ++form) {
      GroupedDesc d{.m = m, .num_experts = 8, .n = 256, .k = 512, .swiglu = (form & 1) != 0};
      bool scaled = (form & 2) != 0;
      d.a_dtype = d.b_dtype = scaled ? DType::kF8E4M3 : DType::kBF16;
      d.c_dtype = DType::kBF16;
      if (scaled) d.scaling = Scaling::kBlock;
      if ((form & 4) != 0) d.gathered = true, d.rows_per_token = 2;
      if ((form & 8) != 0 && !d.gathered) d.layout = RowLayout::kMasked;
      EXPECT_NO_THROW(
          generate_kernel(run_pipeline(grouped_gemm(d, default_config(d, Target::kCuda)))))
          << to_string(d);
    }
  }
}

// Tiles of any number of rows, of which experts fill some, with the weights as the left factor.
TEST(GroupedGemm, WeightsAsTheLeftFactorGiveWhatTheReferenceSays) {
  for (int form = 0; form < 3; ++form) {
    for (std::int64_t rows : {4, 12, 64}) {
      GroupedDesc d{.m = 41, .num_experts = 5, .n = 27, .k = 35};
      if (form == 1) d.gathered = d.swiglu = true, d.rows_per_token = 2;
      if (form == 2) d.layout = RowLayout::kMasked;
      const GroupedConfig c{.loop = {.tile = {.bm = rows, .bn = 8, .bk = 10}, .num_compute_sms = 3},
                            .row_parts = 2,
                            .swap_ab = true};
      EXPECT_EQ(run_case(grouped_case(d, c, test_seed()), {.launches = 2}), "")
          << to_string(d) << " " << to_string(c);
    }
  }
  GroupedDesc d{.m = 41, .num_experts = 5, .n = 27, .k = 35, .bias = true};
  EXPECT_FALSE(can_swap(d));
  expect_user_error(
      [&] {
        grouped_gemm(d, {.loop = {.tile = {8, 8, 8}}, .swap_ab = true});
      },
      {"swap_ab is for products without bias"});
  expect_user_error([&] { swapped_config(d, Target::kCuda); },
                    {"swap_ab is for factors of 16 bits"});
}

// The tensor core's products of every size of step: of few rows and of many, beside what is stored.
TEST(GroupedGemm, WeightsAsTheLeftFactorHaveKernelsThatDoNotSpill) {
  std::int64_t last = 0;
  for (std::int64_t m : {1, 64, 512, 4096}) {
    for (bool first : {false, true}) {
      GroupedDesc d{.m = m, .rows_per_token = 8, .num_experts = 128};
      d.n = first ? 768 : 2048, d.k = first ? 2048 : 768;
      d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
      d.gathered = d.swiglu = first;
      const GroupedConfig c = swapped_config(d, Target::kCuda);
      EXPECT_GE(c.loop.num_stages, 3) << to_string(d);
      EXPECT_GE(c.loop.tile.bm, last) << to_string(d);
      EXPECT_EQ(c.loop.tile.bk, 64) << "each sum in the same steps, whatever the size";
      if (first) last = c.loop.tile.bm;
      if (cuda::has_nvrtc()) expect_no_spills(grouped_gemm(d, c), to_string(d));
    }
  }
}

// Many small experts, whose tiles are no multiple of the SMs: with scales a narrow step takes three
// quarters of a wide one's time. Two weights have half the columns each, beside as many sums.
TEST(GroupedGemm, ScaledFactorsHaveWideTilesByTicketThatDoNotSpill) {
  GroupedDesc d{.m = 65536, .num_experts = 60, .n = 704, .k = 2048, .scaling = Scaling::kBlock};
  d.a_dtype = d.b_dtype = DType::kF8E4M3, d.c_dtype = DType::kBF16;
  for (bool gathered : {false, true}) {
    for (bool swiglu : {false, true}) {
      d.gathered = gathered, d.swiglu = swiglu;
      GroupedConfig c = default_config(d, Target::kCuda);
      EXPECT_EQ(c.loop.tile.bn, swiglu ? 64 : 128) << to_string(d);
      EXPECT_TRUE(c.tickets) << to_string(d);
      if (cuda::has_nvrtc()) expect_no_spills(grouped_gemm(d, c), to_string(d));
    }
  }
}

// All experts' rows count for the width of tiles, not one's.
TEST(GroupedGemm, MaskedRowsHaveTheTilesOfAsManyWithoutGaps) {
  GroupedDesc plain{.m = 65536, .num_experts = 64, .n = 2048, .k = 352};
  plain.a_dtype = plain.b_dtype = plain.c_dtype = DType::kBF16;
  GroupedDesc masked = plain;
  masked.layout = RowLayout::kMasked, masked.m = plain.m / plain.num_experts;
  GroupedConfig c = default_config(plain, Target::kCuda), m = default_config(masked, Target::kCuda);
  EXPECT_EQ(c.loop.tile.bn, m.loop.tile.bn);
  EXPECT_EQ(c.loop.num_stages, m.loop.num_stages);
}

}  // namespace
}  // namespace stretto
