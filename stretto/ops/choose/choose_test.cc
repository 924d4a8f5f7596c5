// What a user would lose: the config that the model predicts, or that was measured, to be the
// fastest, and the unfused path where that is faster.
#include "stretto/ops/choose/choose.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/ir/printer.h"
#include "stretto/ops/choose/choose_testing.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/choose/fastest.h"
#include "stretto/ops/choose/unfused.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/predict/prediction.h"

namespace stretto {
namespace {

OpShape shape(int ranks, std::int64_t m = 512) {
  return {.world_size = ranks, .m = m, .n = 2048, .k = 1024, .dtype = DType::kBF16};
}

double predicted_ms(const Program& program, const predict::Machine& machine) {
  Lowered compiled = lower(program);
  return predict::predict(compiled, machine).time_ms;
}

TEST_F(ChooseTest, EveryCandidateIsAProgramOfItsOwn) {
  for (const char* op : {"gemm",
                         "gemm_fp8",
                         "gemm_fp8_block",
                         "ag_gemm",
                         "ag_columns_gemm",
                         "gemm_rs",
                         "gemm_ar",
                         "gemm_ag",
                         "all_gather",
                         "reduce_scatter",
                         "all_reduce_one_shot",
                         "all_reduce_two_shot",
                         "all_reduce_packet",
                         "gemm_a2a",
                         "a2a_gemm",
                         "ag_grouped_gemm",
                         "grouped_gemm_rs",
                         "grouped_gemm_ar",
                         "moe_layer",
                         "ep_moe_layer"}) {
    for (std::int64_t m : {8, 72, 512}) {
      for (int ranks : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << op << " m=" << m << " P=" << ranks);
        OpCandidates offered = candidates(op, shape(ranks, m));
        std::set<std::string> names;
        for (const Candidate& c : offered.fused) {
          EXPECT_TRUE(names.insert(c.config).second) << c.config;
          EXPECT_NO_THROW(c.program()) << c.config;
        }
        bool product = std::string(op).find("gemm") == 0;
        EXPECT_TRUE(!product || m <= 64 || names.size() > 1);
      }
    }
  }
}

// By prediction alone the first candidate has the place of the default.
TEST_F(ChooseTest, TheOperatorsDefaultComesFirst) {
  for (std::int64_t m : {64, 512, 2048, 8192}) {
    for (int ranks : {2, 4}) {
      SCOPED_TRACE(testing::Message() << "m=" << m << " P=" << ranks);
      OpShape s = shape(ranks, m);
      s.n = s.k = 8192;
      auto first = [&](const char* op) { return candidates(op, s).fused.front().config; };
      DType half = s.dtype;
      AgGemmDesc gathered{.world_size = ranks, .m = row_bucket(m), .n = s.n / ranks, .k = s.k};
      gathered.a_dtype = gathered.b_dtype = gathered.c_dtype = half;
      EXPECT_EQ(first("ag_gemm"), to_string(default_config(gathered, Target::kCuda)));
      GemmRsDesc scattered{.world_size = ranks, .m = row_bucket(m), .n = s.n, .k = s.k / ranks};
      scattered.a_dtype = scattered.b_dtype = scattered.out_dtype = half;
      EXPECT_EQ(first("gemm_rs"), to_string(default_config(scattered, Target::kCuda)));
      GemmArDesc reduced{.world_size = ranks, .m = row_bucket(m), .n = s.n, .k = s.k / ranks};
      reduced.a_dtype = reduced.b_dtype = reduced.out_dtype = half;
      EXPECT_EQ(first("gemm_ar"), to_string(default_config(reduced, Target::kCuda)));
    }
  }
}

TEST_F(ChooseTest, CandidatesForManyRowsCopyPiecesThatAProgramMayHold) {
  for (const char* op : {"ag_gemm", "ag_columns_gemm", "gemm_ag", "gemm_rs", "gemm_ar",
                         "all_gather", "all_reduce_two_shot", "a2a_gemm"}) {
    for (std::int64_t m : {32768, 65536}) {
      OpShape large{.world_size = 2, .m = m, .n = 8192, .k = 28672, .dtype = DType::kBF16};
      for (const Candidate& c : candidates(op, large).fused) {
        EXPECT_NO_THROW(c.program()) << op << " m=" << m << " " << c.config;
      }
    }
  }
}

// What no GPU holds costs the caller of a chosen program an error at its first launch.
TEST_F(ChooseTest, EveryCandidateFitsAnSm) {
  struct Size {
    std::int64_t m, n, k;
    int ranks;
  };
  const std::vector<Size> sizes = {
      {1, 4096, 4096, 4},     {16, 1000, 520, 2},     {40, 14336, 4096, 1},  {72, 2056, 520, 4},
      {1000, 2056, 4096, 2},  {2048, 4096, 4096, 4},  {4096, 8192, 8192, 1}, {8192, 4096, 3584, 4},
      {8192, 22016, 4096, 1}, {4096, 7168, 18432, 2}, {8200, 4104, 3584, 1}, {8191, 4104, 4096, 2}};
  for (const char* op : {"gemm", "gemm_fp8", "gemm_fp8_block", "ag_gemm", "ag_columns_gemm",
                         "gemm_ag", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm", "ag_grouped_gemm",
                         "grouped_gemm_rs", "grouped_gemm_ar", "moe_layer", "ep_moe_layer"}) {
    for (const Size& size : drawn_of(fmt::format("candidates of {}", op), sizes, 3)) {
      OpShape s{
          .world_size = size.ranks, .m = size.m, .n = size.n, .k = size.k, .dtype = DType::kBF16};
      for (const Candidate& c : candidates(op, s).fused) {
        Lowered compiled = lower(c.program());
        EXPECT_NO_THROW(generate_kernel(compiled.program()))
            << op << " m=" << s.m << " n=" << s.n << " P=" << s.world_size << " " << c.config;
      }
    }
  }
}

// The split of the SMs between products and sums, or none, is the chooser's.
TEST_F(ChooseTest, SumsOfExpertsHaveSmsOfTheirOwnOrNone) {
  OpShape s{.world_size = 2, .m = 4096, .n = 4096, .k = 7168, .dtype = DType::kBF16};
  for (const char* op : {"grouped_gemm_rs", "grouped_gemm_ar"}) {
    SCOPED_TRACE(op);
    OpCandidates offered = candidates(op, s);
    std::set<int> splits;
    GroupedRsDesc d = grouped_gemm_rs_desc(s, op == std::string("grouped_gemm_ar"));
    for (const GroupedRsConfig& c : gpu_configs(d, {})) {
      EXPECT_NE(find_candidate(offered, to_string(c)), nullptr) << to_string(c);
      EXPECT_LE(c.loop.num_compute_sms + c.num_reduce_sms, GpuTarget{}.sms);
      splits.insert(c.num_reduce_sms);
    }
    EXPECT_GE(splits.size(), 4u);
    EXPECT_TRUE(splits.contains(0));
    ConfigChoice choice = choose(op, s, offered, {.machine = machine_});
    EXPECT_NE(find_candidate(offered, choice.config), nullptr);
    EXPECT_LE(choice.predicted_ms, predicted_ms(offered.fused.front().program(), machine_));
  }
}

// In which order tiles are multiplied; all SMs exchange, multiply and sum in every one.
TEST_F(ChooseTest, ExchangesOfExpertsHaveOrdersOfTiles) {
  for (int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    OpShape s{.world_size = ranks, .m = 8192, .n = 1792, .k = 4096, .dtype = DType::kBF16};
    EpMoeLayerDesc d = ep_moe_layer_desc(s);
    OpCandidates offered = candidates("ep_moe_layer", s);
    EXPECT_EQ(offered.fused.front().config, to_string(default_config(d, Target::kCuda)));
    std::set<std::pair<std::int64_t, std::int64_t>> orders;
    std::set<int> classes;
    for (const EpMoeLayerConfig& c : gpu_configs(d, {})) {
      EXPECT_NE(find_candidate(offered, to_string(c)), nullptr) << to_string(c);
      EXPECT_EQ(c.second.loop.num_compute_sms, GpuTarget{}.sms);
      orders.insert({c.first.loop.raster, c.second.loop.raster});
      classes.insert(c.order.stages);
    }
    EXPECT_GE(orders.size(), 3u);
    EXPECT_EQ(classes, (std::set<int>{1, ranks}));
  }
}

TEST_F(ChooseTest, WhatNoGpuHoldsIsNotChosen) {
  GemmDesc desc{.m = 1024, .n = 2048, .k = 1024};
  desc.a_dtype = desc.b_dtype = desc.c_dtype = DType::kBF16;
  GemmConfig large{.loop = {.tile = {128, 256, 64}, .num_compute_sms = 64, .num_stages = 6}};
  GemmConfig small{.loop = {.tile = {64, 64, 64}, .num_compute_sms = 8, .num_stages = 4}};
  OpCandidates offered{.desc = to_string(desc)};
  for (const GemmConfig& config : {large, small}) {
    offered.fused.push_back({to_string(config), [=] { return gemm(desc, config); }});
  }
  EXPECT_EQ(rank_candidates(offered, machine_).front().index, 0);
  EXPECT_EQ(choose("gemm", shape(1), offered, {.machine = machine_}).config, to_string(small));
  offered.fused.pop_back();
  expect_user_error([&] { choose("gemm", shape(1), offered, {.machine = machine_}); },
                    {"gemm", "no candidate fits"});
}

TEST_F(ChooseTest, RanksByThePredictedTime) {
  OpCandidates offered = candidates("gemm", shape(1));
  std::vector<RankedCandidate> ranked = rank_candidates(offered, machine_);
  ASSERT_EQ(ranked.size(), offered.fused.size());
  double last = 0;
  for (const RankedCandidate& r : ranked) {
    EXPECT_GE(r.predicted_ms, last);
    last = r.predicted_ms;
    const Candidate& c = offered.fused[static_cast<std::size_t>(r.index)];
    EXPECT_EQ(r.predicted_ms, predicted_ms(c.program(), machine_)) << c.config;
  }
}

TEST_F(ChooseTest, TheSequenceIsACandidateAndTakesWhatItsStepsTake) {
  OpCandidates offered = candidates("ag_gemm", shape(2));
  double steps = 0;
  for (const OpCandidates::Step& step : offered.sequence) {
    steps += rank_candidates(candidates(step.op, step.shape), machine_).front().predicted_ms;
  }
  ASSERT_EQ(offered.sequence.size(), 2U);
  int found = 0;
  for (const RankedCandidate& r : rank_candidates(offered, machine_)) {
    if (!r.is_sequence()) continue;
    ++found;
    EXPECT_DOUBLE_EQ(r.predicted_ms, steps);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(ChooseTest, LayersOfExpertsHaveASequenceOfAsMuchWork) {
  const std::vector<std::string> first = {"all_gather", "grouped_gemm"},
                                 second = {"grouped_gemm", "moe_combine"};
  std::vector<std::string> both = first;
  both.insert(both.end(), second.begin(), second.end());
  for (const auto& [op, steps] : {std::pair{"ag_grouped_gemm", first},
                                  {"grouped_gemm_rs", second},
                                  {"grouped_gemm_ar", second},
                                  {"moe_layer", both}}) {
    SCOPED_TRACE(op);
    OpCandidates offered = candidates(op, shape(2));
    double sum = 0;
    std::vector<std::string> names;
    for (const OpCandidates::Step& step : offered.sequence) {
      names.push_back(step.op);
      sum += rank_candidates(candidates(step), machine_).front().predicted_ms;
    }
    EXPECT_EQ(names, steps);
    std::vector<RankedCandidate> ranked = rank_candidates(offered, machine_);
    EXPECT_EQ(std::ranges::count_if(ranked, &RankedCandidate::is_sequence), 1);
    EXPECT_DOUBLE_EQ(std::ranges::find_if(ranked, &RankedCandidate::is_sequence)->predicted_ms,
                     sum);
    ConfigChoice alone = choose(op, shape(2), offered, {.machine = machine_, .allow_fused = false});
    EXPECT_TRUE(alone.is_sequence);
    std::vector<Program> programs = programs_of(alone, offered, {.machine = machine_});
    ASSERT_EQ(programs.size(), steps.size());
    std::vector<std::int64_t> rows;  // of each step's result
    for (const Program& program : programs) {
      EXPECT_TRUE(has_gpu_lowering(lower(program))) << program.name;
      int result = std::max(program.find_tensor("c"), program.find_tensor("out"));
      rows.push_back(bound_shape(program, result).front());
    }
    std::int64_t m = offered.shape.m, kept = std::string(op) == "grouped_gemm_ar" ? m : m / 2;
    EXPECT_EQ(rows.front(), steps == second ? 2 * m : m) << "two experts of each token";
    EXPECT_EQ(rows.back(), steps == first ? 2 * m : kept);
    EXPECT_FALSE(vendor_has(unfused_steps(op, shape(2), offered)));
  }
  OpCandidates nothing;
  add_sequence(nothing, AgGroupedDesc{.shape = {.world_size = 2}, .gathers = false});
  EXPECT_TRUE(nothing.sequence.empty());
}

// Tokens that go everywhere alike, in one launch and in those that do the same one after the other.
TEST_F(ChooseTest, WholeExpertsHaveASequenceOfAsMuchWork) {
  predict::Machine four = predict::find_machine("h200x4");
  for (int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    OpShape s{.world_size = ranks, .m = 8192, .n = 4096, .k = 4096, .dtype = DType::kBF16};
    OpCandidates offered = candidates("ep_moe_layer", s);
    std::vector<std::string> names;
    for (const OpCandidates::Step& step : offered.sequence) names.push_back(step.op);
    EXPECT_EQ(names, (std::vector<std::string>{"ep_send", "ep_place", "grouped_gemm",
                                               "grouped_gemm", "ep_return"}));
    std::vector<RankedCandidate> ranked = rank_candidates(offered, four);
    auto first = [&](bool is_sequence) {
      return std::ranges::find(ranked, is_sequence, &RankedCandidate::is_sequence)->predicted_ms;
    };
    double fused = first(false), sequence = first(true);
    EXPECT_NEAR(fused / sequence, 1, 0.15);  // measured on one H200: 1.04
    double flops = 6.0 * 8192 * 2 * 4096 * 4096 / ranks;
    EXPECT_GT(std::min(fused, sequence), flops / 990e12 * 1e3);
    EXPECT_FALSE(vendor_has(unfused_steps("ep_moe_layer", s, offered)));
  }
}

TEST_F(ChooseTest, MeasurementDecidesAndIsKept) {
  OpCandidates offered = candidates("ag_gemm", shape(2));
  std::vector<RankedCandidate> ranked = rank_candidates(offered, machine_);
  std::erase_if(ranked, [](const RankedCandidate& r) { return r.is_sequence(); });
  auto config = [&](std::size_t i) {
    return offered.fused[static_cast<std::size_t>(ranked[i].index)].config;
  };
  int measured = 0;
  double sequence_ms = 5, least = 100;
  auto measure = [&](const Candidate* c) -> MeasuredCandidate {
    ++measured;
    if (c != nullptr && c->config == config(0)) return {};  // does not run
    double ms = c == nullptr ? sequence_ms : c->config == config(2) ? 1 : 2;
    bool fastest = ms < least;
    if (fastest) least = ms;
    // By itself everyone is as fast: what counts is who is faster in turn.
    return {.ms = 3, .fastest = fastest};
  };
  ChooseOptions options{.machine = machine_, .measure = measure};
  options.most_measured = 4;
  options.measured_on = "here";
  ConfigChoice choice = choose("ag_gemm", shape(2), offered, options);
  EXPECT_EQ(choice.config, config(2));
  EXPECT_EQ(choice.measured_ms, 3.0);
  EXPECT_FALSE(choice.from_cache);
  EXPECT_EQ(measured, 6);  // one that does not run, four that do, and the sequence

  ConfigChoice again = choose("ag_gemm", shape(2), offered, options);
  EXPECT_TRUE(again.from_cache);
  EXPECT_EQ(again.config, choice.config);
  EXPECT_EQ(measured, 6);

  sequence_ms = 0.5;
  least = 100;
  options.measured_on = "there";
  ConfigChoice unfused = choose("ag_gemm", shape(2), offered, options);
  EXPECT_TRUE(unfused.is_sequence);
  EXPECT_EQ(measured, 12);
}

TEST_F(ChooseTest, WhatACallerHasMeasuredComesBeforePredictions) {
  OpCandidates offered = candidates("ag_gemm", shape(2));
  ChooseOptions options{.machine = machine_};
  const ConfigChoice predicted = choose("ag_gemm", shape(2), offered, options);
  auto other = std::ranges::find_if(
      offered.fused, [&](const Candidate& c) { return c.config != predicted.config; });
  ASSERT_NE(other, offered.fused.end());
  options.measured_on = "GPU A";
  EXPECT_EQ(choose("ag_gemm", shape(2), offered, options).config, predicted.config);
  keep_measured("ag_gemm", shape(2), offered, options,
                {.config = other->config, .measured_ms = 0.25});
  ConfigChoice kept = choose("ag_gemm", shape(2), offered, options);
  EXPECT_EQ(kept.config, other->config);
  EXPECT_EQ(kept.measured_ms, 0.25);
  EXPECT_TRUE(kept.from_cache);
  // Not for other GPUs, shapes, or candidates, nor where nobody says on what.
  options.measured_on = "GPU B";
  EXPECT_EQ(choose("ag_gemm", shape(2), offered, options).config, predicted.config);
  options.measured_on = "GPU A";
  EXPECT_EQ(choose("ag_gemm", shape(2, 256), offered, options).measured_ms, 0);
  EXPECT_EQ(choose("ag_gemm", shape(2), offered, {.machine = machine_}).config, predicted.config);
  keep_measured("ag_gemm", shape(2), offered, options, {.is_sequence = true, .measured_ms = 0.2});
  EXPECT_TRUE(choose("ag_gemm", shape(2), offered, options).is_sequence);
  std::erase_if(offered.fused, [&](const Candidate& c) { return c.config == other->config; });
  EXPECT_EQ(choose("ag_gemm", shape(2), offered, options).measured_ms, 0);
}

// Rules that come of measurements give way to a prediction only where it is sure.
TEST_F(ChooseTest, TheDefaultStaysUnlessAnotherIsPredictedToBeMuchFaster) {
  for (const char* op : {"gemm_rs", "ag_gemm", "gemm_ar"}) {
    OpCandidates offered = candidates(op, shape(2, 4096));
    std::vector<RankedCandidate> ranked = rank_candidates(offered, machine_);
    auto of_default = std::ranges::find(ranked, 0, &RankedCandidate::index);
    bool sure = ranked.front().predicted_ms < 0.9 * of_default->predicted_ms;
    const RankedCandidate& best = sure ? ranked.front() : *of_default;
    ConfigChoice choice = choose(op, shape(2, 4096), offered, {.machine = machine_});
    EXPECT_EQ(choice.is_sequence, best.is_sequence()) << op;
    EXPECT_EQ(choice.predicted_ms, best.predicted_ms) << op;
  }
  // Of one SM a product takes much longer.
  GemmDesc desc{.m = 1024, .n = 2048, .k = 1024};
  desc.a_dtype = desc.b_dtype = desc.c_dtype = DType::kBF16;
  OpCandidates offered{.desc = to_string(desc)};
  for (int sms : {1, 64, 60}) {
    GemmConfig config{.loop = {.tile = {128, 128, 64}, .num_compute_sms = sms, .num_stages = 4}};
    offered.fused.push_back({to_string(config), [=] { return gemm(desc, config); }});
  }
  auto chosen = [&] { return choose("gemm", shape(1), offered, {.machine = machine_}).config; };
  EXPECT_NE(chosen(), offered.fused[0].config);
}

// Own tiles that are multiplied beside the last of the others' hold their SMs until something has
// come: the default orders tiles so that a copy engine had something to bring by then.
TEST_F(ChooseTest, OwnTilesOfFewRowsDoNotWaitForAllPieces) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  auto between = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  auto bf16 = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    GemmRsDesc d{.world_size = 2, .m = m, .n = n, .k = k};
    d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
    return d;
  };
  std::vector<GemmRsDesc> descs = {bf16(2048, 6144, 8192), bf16(1424, 8192, 4096)};
  // The others' tiles are 1.1 to 1.7 waves, if they have 256 columns.
  for (int turn = 0; turn < 4; ++turn) {
    descs.push_back(bf16(2048, 256 * between(18, 28), 1024 * between(6, 16)));
  }
  for (const GemmRsDesc& desc : descs) {
    const GemmRsConfig config = default_config(desc, Target::kCuda);
    SCOPED_TRACE(to_string(desc) + " | " + to_string(config) +
                 "\nSTRETTO_TEST_SEED=" + std::to_string(seed));
    ASSERT_EQ(config.scatter, Scatter::kCopyEngine);
    if (config.loop.tile.bn != 256) {
      EXPECT_FALSE(&desc == &descs[0] || &desc == &descs[1]);
      continue;
    }
    GemmRsConfig at_once = config;
    at_once.loop.raster = 8;
    EXPECT_LT(predicted_ms(gemm_rs(desc, config), machine_),
              0.95 * predicted_ms(gemm_rs(desc, fitted(desc, at_once)), machine_));
  }
  // Of one rank nothing travels.
  GemmRsDesc alone = bf16(1024, 8192, 4096);
  alone.world_size = 1;
  EXPECT_EQ(default_config(alone, Target::kCuda).loop.raster, 8);
  // Of wide weights a wave reads more than memory brings meanwhile.
  for (std::int64_t rows : {468, 2048}) {
    const GemmRsDesc wide = bf16(rows, 18432, 36864);
    const std::int64_t row_tiles = (rows / 2 + 127) / 128;
    EXPECT_EQ(default_config(wide, Target::kCuda).loop.raster, std::min(row_tiles, std::int64_t{4}))
        << to_string(default_config(wide, Target::kCuda));
  }
}

// Row tiles of a rank that eight and fewer do not share evenly: one to a column reads wide weights
// for each of them.
TEST_F(ChooseTest, RowTilesWithoutADivisorShareWideColumns) {
  for (std::int64_t row_tiles : {11, 13, 22}) {
    for (std::int64_t n : {6144, 8192, 18432}) {
      GemmRsDesc d{.world_size = 2, .m = 2 * 128 * row_tiles - 30, .n = n, .k = 16384};
      d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
      const GemmRsConfig config = default_config(d, Target::kCuda);
      SCOPED_TRACE(to_string(d) + " | " + to_string(config));
      ASSERT_EQ(config.scatter, Scatter::kCopyEngine);
      EXPECT_EQ(config.loop.raster, n == 18432 ? row_tiles : row_tiles == 22 ? 2 : 1);
      if (n < 18432) continue;
      GemmRsConfig narrow = config;
      narrow.loop.raster = row_tiles == 22 ? 2 : 1;
      EXPECT_LT(predicted_ms(gemm_rs(d, config), machine_),
                1.02 * predicted_ms(gemm_rs(d, narrow), machine_));
    }
  }
}

// As was measured: with nothing to hide a collective behind, what fuses it is slower than the
// predictions, which are near each other, have it, but for a few rows, and many.
TEST_F(ChooseTest, FewRowsAreGatheredOrScatteredInSequence) {
  struct Case {
    const char* op;
    int world_size;
    std::int64_t m;
    bool sequence;
  };
  for (const auto& [op, world_size, m, in_sequence] :
       {Case{"gemm_rs", 2, 16, false}, Case{"gemm_rs", 2, 64, true}, Case{"gemm_rs", 2, 512, false},
        Case{"gemm_rs", 4, 16, true}, Case{"gemm_rs", 4, 1024, true},
        Case{"gemm_rs", 4, 2048, false}, Case{"ag_gemm", 2, 8, false}, Case{"ag_gemm", 2, 16, true},
        Case{"ag_gemm", 2, 256, true}, Case{"ag_gemm", 4, 512, false},
        Case{"gemm_ar", 2, 16, false}, Case{"gemm_ar", 2, 256, true},
        Case{"gemm_ar", 2, 1024, false}, Case{"gemm_ar", 4, 1024, true}}) {
    SCOPED_TRACE(fmt::format("{} P={} m={}", op, world_size, m));
    predict::Machine machine = predict::find_machine(fmt::format("h200x{}", world_size));
    OpCandidates offered = candidates(op, shape(world_size, m));
    std::vector<RankedCandidate> ranked = rank_candidates(offered, machine);
    auto of_sequence = std::ranges::find_if(ranked, &RankedCandidate::is_sequence);
    bool sure = ranked.front().predicted_ms < 0.8 * of_sequence->predicted_ms;
    ConfigChoice choice = choose(op, shape(world_size, m), offered, {.machine = machine});
    EXPECT_EQ(offered.prefers_sequence, in_sequence);
    if (in_sequence) {
      EXPECT_EQ(choice.is_sequence, !sure);
    }
    std::vector<Program> programs = programs_of(choice, offered, {.machine = machine});
    EXPECT_EQ(programs.size(), choice.is_sequence ? 2U : 1U);
    offered.sequence.clear();
    EXPECT_FALSE(choose(op, shape(world_size, m), offered, {.machine = machine}).is_sequence);
  }
}

// What first calls of a world's ranks would lose: the host's cores, once for each rank.
TEST_F(ChooseTest, OfThreadsThatAskTogetherOneRanks) {
  OpCandidates offered = candidates("ag_gemm", shape(2));
  std::vector<ConfigChoice> choices(4);
  {
    std::vector<std::jthread> threads;
    for (ConfigChoice& choice : choices) {
      threads.emplace_back(
          [&] { choice = choose("ag_gemm", shape(2), offered, {.machine = machine_}); });
    }
  }
  int ranked = 0;
  for (const ConfigChoice& choice : choices) {
    ranked += !choice.from_cache;
    EXPECT_EQ(choice.config, choices[0].config);
  }
  EXPECT_EQ(ranked, 1);
}

TEST_F(ChooseTest, AnotherMachineChoosesAnew) {
  OpCandidates offered = candidates("gemm", shape(1));
  choose("gemm", shape(1), offered, {.machine = machine_});
  EXPECT_TRUE(choose("gemm", shape(1), offered, {.machine = machine_}).from_cache);
  EXPECT_FALSE(
      choose("gemm", shape(1, 520), candidates("gemm", shape(1, 520)), {.machine = machine_})
          .from_cache);
  machine_.tile_cost *= 2;
  EXPECT_FALSE(choose("gemm", shape(1), offered, {.machine = machine_}).from_cache);
}

// What a caller passes.
std::set<std::string> arguments_of(const Program& program) {
  std::set<std::string> names;
  for (const Tensor& t : program.tensors) {
    bool symmetric = t.space == Space::kSymmetric;
    if (t.kind != TensorKind::kBuffer) names.insert(t.name + (symmetric ? ", symmetric" : ""));
  }
  return names;
}

void expect_chosen(const std::function<Program()>& choose, const Program& by_default,
                   const predict::Machine& machine) {
  Program fastest = choose();
  EXPECT_EQ(print(choose()), print(fastest));  // out of the cache
  EXPECT_LE(predicted_ms(fastest, machine), predicted_ms(by_default, machine));
  EXPECT_EQ(arguments_of(fastest), arguments_of(by_default));
}

template <typename Desc>
void expect_fastest(const Desc& desc, const Program& by_default, const predict::Machine& machine) {
  SCOPED_TRACE(to_string(desc));
  expect_chosen([&] { return fastest_program(desc, machine); }, by_default, machine);
}

TEST_F(ChooseTest, ModelsTakeTheFastestProductsOfTheirDescs) {
  GemmDesc one{.m = 512, .n = 2048, .k = 1024, .residual = true};
  one.a_dtype = one.b_dtype = one.c_dtype = DType::kBF16;
  expect_fastest(one, gemm(one, default_config(one, Target::kCuda)), machine_);
  AgGemmDesc gathered{.world_size = 2, .m = 512, .n = 1536, .k = 1024, .bias = true};
  gathered.a_dtype = gathered.b_dtype = gathered.c_dtype = DType::kBF16;
  for (bool swiglu : {true, false}) {
    gathered.swiglu = swiglu;
    expect_fastest(gathered, ag_gemm(gathered, default_config(gathered, Target::kCuda)), machine_);
  }
  GemmRsDesc scattered{.world_size = 2, .m = 512, .n = 1024, .k = 2048, .residual = true};
  scattered.a_dtype = scattered.b_dtype = scattered.out_dtype = DType::kBF16;
  expect_fastest(scattered, gemm_rs(scattered, default_config(scattered, Target::kCuda)), machine_);
  UlyssesDesc spread{.world_size = 2, .m = 1024, .n = 1024, .k = 2048, .residual = true};
  spread.dtype = spread.weight_dtype = DType::kBF16;
  expect_chosen([&] { return fastest_a2a_gemm(spread, machine_); },
                a2a_gemm(spread, default_a2a_gemm_config(spread, Target::kCuda)), machine_);
  spread.residual = false;
  spread.bias = true;
  expect_chosen([&] { return fastest_gemm_a2a(spread, machine_); },
                gemm_a2a(spread, default_gemm_a2a_config(spread, Target::kCuda)), machine_);
  // Products that have their default alone need no machine.
  gathered.world_size = 4;
  expect_user_error([&] { fastest_program(gathered, machine_); }, {"h200x2", "4 GPUs"});
  gathered.a_dtype = gathered.b_dtype = gathered.c_dtype = DType::kF32;
  EXPECT_NO_THROW(fastest_program(gathered, machine_));
}

TEST_F(ChooseTest, NothingThatRunsIsAnError) {
  OpCandidates offered = candidates("gemm", shape(1));
  ChooseOptions options{.machine = machine_,
                        .measure = [](const Candidate*) { return MeasuredCandidate{}; }};
  expect_user_error([&] { choose("gemm", shape(1), offered, options); }, {"gemm", "no candidate"});
  expect_user_error([&] { rank_candidates(candidates("gemm", shape(4)), machine_); },
                    {"h200x2", "4 GPUs"});
  expect_user_error([&] { candidates("no_such_operator", shape(1)); }, {"no_such_operator"});
}

TEST_F(ChooseTest, LibrariesHaveTheStepsThatRanksShareEvenly) {
  auto has = [](const char* op, const OpShape& s) {
    return vendor_has(unfused_steps(op, s, candidates(op, s)));
  };
  EXPECT_TRUE(has("ag_gemm", shape(2)));
  EXPECT_TRUE(has("gemm", shape(1)));
  EXPECT_FALSE(has("gemm_rs", shape(3)));  // 512 rows
  EXPECT_FALSE(has("rms_norm", shape(2)));
}

}  // namespace
}  // namespace stretto
