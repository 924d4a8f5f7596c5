// If these fail, what is chosen without a measurement is judged on shapes that it was made from, or
// on others than the results say.
#include "bench/gpu/lot/lot_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/test_seed.h"

namespace stretto::bench {
namespace {

using Weight = std::pair<std::int64_t, std::int64_t>;  // n, k of all ranks

std::vector<std::filesystem::path> files(const std::string& folder, const std::string& start) {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(start)) out.push_back(entry.path());
  }
  return out;
}

// What is kept of runs of a kind, a row a line (bench/gpu/keep.py), of each number of ranks.
std::vector<std::vector<Json>> kept(const std::string& kind) {
  std::vector<std::vector<Json>> out;
  for (const auto& path : files("bench/results", kind + "-x")) {
    std::ifstream file(path);
    out.emplace_back();
    for (std::string line; std::getline(file, line);) out.back().push_back(Json::parse(line));
  }
  return out;
}

bool is_product(const Json& row) {
  const std::string op = row.value("op", "");
  return op == "ag_gemm" || op == "gemm_rs" || op == "gemm_ar";
}

// Of a row with the sizes of all ranks, or of one.
void add_weight(std::set<Weight>& out, const Json& row, bool of_all) {
  if (!is_product(row)) return;
  const auto ranks = of_all ? 1 : row.at("ranks").get<std::int64_t>();
  const bool gathers = row.at("op") == "ag_gemm";
  out.insert({row.at("n").get<std::int64_t>() * (gathers ? ranks : 1),
              row.at("k").get<std::int64_t>() * (gathers ? 1 : ranks)});
}

TEST(LotShapesTest, EveryWeightThatWasMeasuredForRulesIsListed) {
  std::set<Weight> measured, listed;
  for (const SeenWeight& w : seen_weights()) listed.insert({w.n, w.k});
  for (const auto& path : files("bench/predictions", "points-")) {
    const Json file = read_json_file(path.string());
    for (const Json& row : file.at("points")) add_weight(measured, row, true);
  }
  for (const char* kind : {"sweep", "overlap"}) {
    for (const auto& rows : kept(kind)) {
      for (const Json& row : rows) add_weight(measured, row.at("row"), false);
    }
  }
  ASSERT_GT(measured.size(), 10U);
  for (const Weight& w : measured) {
    EXPECT_TRUE(listed.contains(w)) << w.first << " x " << w.second << ": add it to kSeen";
  }
}

TEST(LotShapesTest, ShapesAreNewAndOfEveryKind) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  for (int ranks : {2, 3, 4}) {
    std::map<OverlapKind, int> kinds;
    std::set<std::string> models, texts;
    int few = 0, ragged = 0;
    const auto shapes = drawn_shapes(ranks, seed, 400);
    ASSERT_EQ(shapes.size(), 400U);
    for (const OverlapShape& s : shapes) {
      SCOPED_TRACE(s.to_string());
      const bool gathers = s.kind == OverlapKind::kAgGemm;
      const std::int64_t n = s.rank.n * (gathers ? ranks : 1), k = s.rank.k * (gathers ? 1 : ranks);
      EXPECT_TRUE(std::ranges::none_of(seen_weights(),
                                       [&](const SeenWeight& w) { return w.n == n && w.k == k; }));
      EXPECT_TRUE(texts.insert(s.to_string()).second);
      EXPECT_GE(s.rank.m, 1);
      EXPECT_LT(s.rank.m, 32768 + ranks);
      EXPECT_EQ(s.rank.n % 8, 0);
      EXPECT_EQ(s.rank.k % 8, 0);
      EXPECT_EQ(s.decode, s.rank.m <= 256);
      if (s.kind != OverlapKind::kGemmAr) {
        EXPECT_EQ(s.rank.m % ranks, 0);
      }
      ++kinds[s.kind];
      few += s.decode;
      ragged += s.rank.m % 64 != 0;
      models.insert(s.rank.label.substr(0, s.rank.label.find(',')));
    }
    for (auto [kind, count] : kinds) EXPECT_GT(count, 80) << name(kind);
    EXPECT_GT(models.size(), 20U);  // three ranks share few of them evenly
    EXPECT_GT(few, 120);
    EXPECT_LT(few, 320);
    EXPECT_GT(ragged, 100);
  }
}

TEST(LotShapesTest, ASeedDrawsTheSameShapesAgain) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  auto texts = [](std::uint64_t of, int count) {
    std::vector<std::string> out;
    for (const OverlapShape& s : drawn_shapes(4, of, count)) out.push_back(s.to_string());
    return out;
  };
  const auto some = texts(seed, 20), more = texts(seed, 40);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), more.begin()));
  EXPECT_NE(some, texts(seed + 1, 20));
}

TEST(LotShapesTest, ResultsAreOfTheShapesThatTheirSeedDraws) {
  const auto results = kept("lot");
  ASSERT_FALSE(results.empty());
  for (const std::vector<Json>& rows : results) {
    ASSERT_FALSE(rows.empty());
    const Json& run = rows[0].at("said");
    const auto seed = run.at("seed").get<std::uint64_t>();
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_EQ(static_cast<int>(rows.size()), run.at("count").get<int>()) << "none is left out";
    const auto drawn = drawn_shapes(rows[0].at("row").at("ranks").get<int>(), seed, run.at("count"));
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const Json& row = rows[i].at("row");
      EXPECT_EQ(row.at("op"), name(drawn[i].kind));
      EXPECT_EQ(row.at("m"), drawn[i].rank.m);
      EXPECT_EQ(row.at("n"), drawn[i].rank.n);
      EXPECT_EQ(row.at("k"), drawn[i].rank.k);
    }
  }
}

}  // namespace
}  // namespace stretto::bench
