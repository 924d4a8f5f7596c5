#include "stretto/proof/proof_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "stretto/base/errors.h"
#include "stretto/proof/content_hash.h"
#include "stretto/proof/test_programs.h"

namespace stretto {
namespace {

using test_programs::Edit;
using test_programs::edit;
using test_programs::exchange;
using test_programs::is_wait;

class ProofCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() /
                 ("stretto_proof_cache_test." + std::to_string(getpid()));
    std::filesystem::remove_all(directory_);
    setenv("STRETTO_CACHE_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("STRETTO_CACHE_DIR");
    std::filesystem::remove_all(directory_);
  }
  std::filesystem::path directory_;
};

// A program taken for proved that is not would run with its race.
TEST_F(ProofCacheTest, KeepsVerdictsApart) {
  ProofCache cache(directory_);
  Program good = exchange(2, {.num_slots = 2}), other = exchange(3, {.num_slots = 2});
  EXPECT_FALSE(cache.contains(good, {}));
  cache.insert(good, {});
  EXPECT_TRUE(cache.contains(good, {}));
  EXPECT_FALSE(cache.contains(other, {}));
  EXPECT_FALSE(cache.contains(good, {.max_samples = 7}));
  cache.insert(other, {.bounds_only = true});
  EXPECT_TRUE(cache.contains(other, {.bounds_only = true}));
  EXPECT_FALSE(cache.contains(other, {})) << "of the largest sizes alone";
  Program edited = good;
  ASSERT_TRUE(edit(edited, is_wait(edited, "sent"), Edit::kThresholdMinus));
  EXPECT_FALSE(cache.contains(edited, {}));
}

TEST_F(ProofCacheTest, IgnoresDamagedEntries) {
  ProofCache cache(directory_);
  Program good = exchange(2, {.num_slots = 2}), other = exchange(3, {.num_slots = 2});
  cache.insert(good, {});
  std::filesystem::path entry = cache.entry(good, {});
  std::filesystem::copy_file(entry, cache.entry(other, {}));
  EXPECT_FALSE(cache.contains(other, {})) << "an entry of another program";
  std::filesystem::resize_file(entry, 3);
  EXPECT_FALSE(cache.contains(good, {})) << "a truncated entry";
  std::ofstream(entry, std::ios::binary) << std::string(1 << 16, 'x');
  EXPECT_FALSE(cache.contains(good, {})) << "an entry of something else";
}

TEST_F(ProofCacheTest, RequireProvedThrowsTheReportAndCachesOnlySuccess) {
  Program bad = exchange(2, {.num_slots = 1});
  for (int i = 0; i < 2; ++i) {
    try {
      require_proved(bad);
      FAIL() << "accepted";
    } catch (const Rejected& e) {
      EXPECT_EQ(std::string(e.what()).find("rejected: exchange on 2 ranks"), 0u) << e.what();
    }
  }
  Program good = exchange(2, {.num_slots = 2});
  require_proved(good);
  EXPECT_TRUE(ProofCache(directory_ / "proofs").contains(good, {}));
  require_proved(good);
}

TEST_F(ProofCacheTest, AReadOnlyCacheCostsTimeOnly) {
  std::ofstream(directory_.string()) << "a file where the directory should be";
  EXPECT_NO_THROW(require_proved(exchange(2, {.num_slots = 2})));
}

TEST(ContentHash, IsFnv1a) {
  EXPECT_EQ(content_hash(""), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(content_hash("a"), "d228cb696f1a8caf78912b704e4a8964");
}

}  // namespace
}  // namespace stretto
