// Every operator at every world size, ragged shapes and run-time extents: right numbers, the same
// bits at each launch, also when ranks are delayed at random; and a proof for each. If these fail,
// a user's layer is wrong on some number of GPUs, or hangs once in a thousand launches.
#include "stretto/ops/catalog/catalog.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/case_data.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

class Catalog : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const OperatorInfo& op() const { return *find_operator(std::get<0>(GetParam())); }
  int world_size() const { return std::get<1>(GetParam()); }
  // Packets in two slots synchronise in more ways than all sequences of three launches are looked
  // at in.
  void expect_proved(const ProofResult& result) const {
    EXPECT_FALSE(result.rejected()) << op().name << " P=" << world_size() << ": " << result.report;
    for (const Missing& m : result.missing) {
      EXPECT_TRUE(std::get<0>(GetParam()) == "all_reduce_packet" && m.what == "orders of launches")
          << op().name << " P=" << world_size() << ": " << result.report;
    }
  }
};
class CatalogOfRows : public Catalog {};
class CatalogOnGpus : public Catalog {};

// One instance has all inputs, tables and numbers of rows of three seeds in turn: full and partial
// extents.
TEST_P(Catalog, ComputesWhatTheReferenceSays) {
  std::uint64_t seed = test_seed();
  for (const OpShape& shape : op().shapes(world_size())) {
    for (const std::vector<OpCase>& cases : cases_of_seeds(op(), shape, seed % 100'000, 3)) {
      EXPECT_EQ(run_cases(cases, {.launches = 3, .seed = seed}), "");
    }
  }
}

// One instance serves every number of rows up to its bound, one launch after the other.
TEST_P(CatalogOfRows, RowsChangeFromLaunchToLaunch) {
  std::uint64_t seed = test_seed();
  for (OpShape shape : op().shapes(world_size())) {
    for (Target target : {Target::kCpu, Target::kCuda}) {
      if (target == Target::kCuda && world_size() > 4) continue;  // four ranks show it
      shape.target = target;
      std::vector<OpCase> cases = cases_of_rows(op(), shape, seed % 100'000);
      EXPECT_EQ(run_cases(cases, {.launches = 2, .seed = seed, .delay_probability = 0.02}), "");
    }
  }
}

TEST_P(Catalog, DelaysChangeNothing) {
  std::uint64_t seed = test_seed();
  int launches = std::getenv("STRETTO_SOAK") != nullptr ? 500 : 10;
  OpShape shape = op().shapes(world_size()).back();
  for (const std::vector<OpCase>& cases : cases_of_seeds(op(), shape, seed % 100'000, 2)) {
    EXPECT_EQ(run_cases(cases, {.launches = launches, .seed = seed, .delay_probability = 0.05}),
              "");
  }
}

// The harness refuses cases that do not say what a launch leaves in an output or state, but for
// what they name, which is nothing here.
TEST(CatalogCases, CompareEveryOutputAndState) {
  for (const OperatorInfo& op : catalog()) {
    for (int world_size : {1, 2, 4}) {
      for (OpShape shape : op.shapes(world_size)) {
        for (Target target : {Target::kCpu, Target::kCuda}) {
          shape.target = target;
          OpCase c = make_case(op, shape, test_seed() % 100'000);
          EXPECT_TRUE(c.unchecked.empty()) << op.name;
        }
      }
    }
  }
}

// Each case alone would be refused if half of a result were zero, whatever its seed drew.
class CatalogSeeds : public testing::TestWithParam<std::string> {};

TEST_P(CatalogSeeds, AreAllStrong) {
  const std::uint64_t seed = test_seed();
  const int num_seeds = std::getenv("STRETTO_SOAK") != nullptr ? 200 : 4;
  const OperatorInfo& op = *find_operator(GetParam());
  for (int world_size : {1, 2, 4}) {
    for (const OpShape& shape : op.shapes(world_size)) {
      for (int i = 0; i < num_seeds; ++i) {
        const std::uint64_t drawn = seed + static_cast<std::uint64_t>(i);
        const OpCase c = make_case(op, shape, drawn);
        EXPECT_EQ(check_expected({&c, 1}), "") << c.config << "\nSTRETTO_TEST_SEED=" << drawn;
      }
    }
  }
}

TEST_P(Catalog, IsProved) {
  for (const OpShape& shape : op().shapes(world_size())) {
    ProofResult result = prove(run_pipeline(op().program(shape)));
    expect_proved(result);
  }
}

// The program that GPUs run, with its own tiles, workers and stages: ranks on CPU must be able to
// check it.
TEST_P(CatalogOnGpus, ComputesTheSameWithItsGpuConfig) {
  std::uint64_t seed = test_seed();
  for (OpShape shape : op().shapes(world_size())) {
    shape.target = Target::kCuda;
    ProofResult result = prove(run_pipeline(op().program(shape)));
    expect_proved(result);
    for (const std::vector<OpCase>& cases : cases_of_seeds(op(), shape, seed % 100'000, 2)) {
      EXPECT_EQ(run_cases(cases, {.launches = 2, .seed = seed}), "");
    }
  }
}

// All blocks of a kernel wait for each other, so they must fit on a GPU together.
TEST_P(Catalog, GpuConfigFitsOneGpu) {
  std::vector<OpShape> shapes = op().shapes(world_size());
  shapes.push_back(op().large);
  for (OpShape shape : shapes) {
    shape.world_size = world_size();
    shape.target = Target::kCuda;
    // Copy queues take no SM where engines do their work.
    int workers = generate_kernel(run_pipeline(op().program(shape))).launch.grid;
    EXPECT_LE(workers, GpuTarget{}.sms) << op().name << " P=" << world_size() << " m=" << shape.m;
  }
}

// The command line takes operators by name, at whatever size: what it measures, predicts, proves
// and compiles must be the config that callers get, which runs on a GPU.
class CatalogByName : public testing::TestWithParam<std::string> {};

TEST_P(CatalogByName, DefaultsFitOneGpuAtAnySize) {
  const OperatorInfo& op = *find_operator(GetParam());
  EXPECT_FALSE(op.large.test_config);
  for (std::int64_t m : {1, 16, 64, 192, 1024, 8192, 32768}) {
    for (int ranks : {1, 2, 8}) {
      for (Target target : {Target::kCpu, Target::kCuda}) {
        // Copies go by tiles of a rank's rows there, of which a tile holds 2^24 elements.
        if (GetParam() == "gemm_rs_copy" && target == Target::kCpu && m > 8192) continue;
        OpShape shape = op.large;
        shape.m = m;
        shape.world_size = ranks;
        shape.target = target;
        int sms = 0;
        for (const Role& role : op.program(shape).roles) sms += role.resource.num_own_sms();
        EXPECT_LE(sms, GpuTarget{}.sms)
            << " P=" << ranks << " m=" << m << (target == Target::kCpu ? " CPU" : " GPU");
      }
    }
  }
}

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const OperatorInfo& op : catalog()) names.emplace_back(op.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, CatalogByName, testing::ValuesIn(operator_names()),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(AllOperators, CatalogSeeds, testing::ValuesIn(operator_names()),
                         [](const auto& info) { return info.param; });

using NameAndRanks = std::tuple<std::string, int>;

std::string name_of_case(const testing::TestParamInfo<NameAndRanks>& info) {
  return fmt::format("{}_P{}", std::get<0>(info.param), std::get<1>(info.param));
}

// Of each operator one of the numbers of ranks.
std::vector<NameAndRanks> drawn(const char* suite, const std::vector<int>& ranks) {
  std::vector<NameAndRanks> out;
  for (const std::string& name : operator_names()) {
    for (int r : drawn_of(fmt::format("{} {}", suite, name), ranks, ranks.size())) {
      out.emplace_back(name, r);
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, Catalog,
                         testing::ValuesIn(drawn("Catalog", {1, 2, 3, 4, 5, 6, 7, 8})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(AllOperators, CatalogOfRows,
                         testing::ValuesIn(drawn("CatalogOfRows", {1, 2, 3, 4, 8})), name_of_case);
INSTANTIATE_TEST_SUITE_P(AllOperators, CatalogOnGpus,
                         testing::ValuesIn(drawn("CatalogOnGpus", {1, 2, 3, 4})), name_of_case);

}  // namespace
}  // namespace stretto
