// Every default config of the catalog and every candidate of the chooser is one that its operator
// takes as it stands. A user who reads a config in a table or a prediction would else read one that
// did not run, and a refused one would end a choice among others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/candidates.h"
#include "stretto/passes/pipeline.h"

namespace stretto {
namespace {

class AskedFor : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kRanks[] = {1, 2, 3, 4, 8};
  const OperatorInfo& op() const { return *find_operator(GetParam()); }

  static void expect_taken(const std::string& what, const std::function<Program()>& program) {
    try {
      run_pipeline(program());
    } catch (const Error& e) {
      ADD_FAILURE() << what << ": " << e.what();
    }
  }
};

TEST_P(AskedFor, DefaultsAreTakenAsTheyStand) {
  for (int ranks : kRanks) {
    std::vector<OpShape> shapes = op().shapes(ranks);
    shapes.push_back(op().large);
    for (OpShape shape : shapes) {
      shape.world_size = ranks;
      for (Target target : {Target::kCpu, Target::kCuda}) {
        // One tile of a large layer takes CPU ranks no more than a program of small ones.
        shape.target = target;
        expect_taken(
            fmt::format("{} P={} m={} n={} k={} {} {}", op().name, ranks, shape.m, shape.n, shape.k,
                        short_name(shape.dtype), target == Target::kCpu ? "CPU" : "GPU"),
            [&] { return op().program(shape); });
      }
    }
  }
}

TEST_P(AskedFor, CandidatesAreTakenAsTheyStand) {
  for (int ranks : kRanks) {
    for (std::int64_t m : {1, 16, 17, 72, 512, 1000, 4096, 8192}) {
      OpShape shape = op().large;
      shape.world_size = ranks;
      shape.m = m;
      OpCandidates offered = candidates(op().name, shape);
      if (offered.fused.size() == 1) return;  // its default, which the other test takes
      for (const Candidate& c : offered.fused) {
        expect_taken(fmt::format("{} | {}", offered.desc, c.config), c.program);
      }
    }
  }
}

std::vector<const char*> operator_names() {
  std::vector<const char*> names;
  for (const OperatorInfo& op : catalog()) names.push_back(op.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, AskedFor, testing::ValuesIn(operator_names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace stretto
