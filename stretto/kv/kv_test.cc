// A block that is given out while somebody reads it, or found under tokens that it does not hold,
// gives a client another one's text.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/kv/block_pool.h"
#include "stretto/kv/prefix_cache.h"

namespace stretto {
namespace {

constexpr int kBlockTokens = 3;

using Tokens = std::vector<int>;

TEST(BlockPool, GivesTheLongestIdleOneLast) {
  BlockPool pool(3);
  int a = *pool.take(), b = *pool.take(), c = *pool.take();
  EXPECT_EQ(pool.take(), std::nullopt);
  pool.keep(a);
  pool.keep(b);
  pool.release(b);
  pool.release(a);
  pool.release(c);
  std::vector<int> forgotten;
  pool.on_forget([&](int block) { forgotten.push_back(block); });
  EXPECT_EQ(pool.take(), c) << "what holds nothing goes first";
  EXPECT_EQ(pool.take(), b);
  EXPECT_EQ(pool.take(), a);
  EXPECT_EQ(forgotten, (std::vector<int>{b, a}));
}

TEST(BlockPool, RefusesWhatWouldLoseABlock) {
  BlockPool pool(2);
  int a = *pool.take();
  pool.release(a);
  EXPECT_THROW(pool.release(a), InternalError);
  EXPECT_THROW(pool.add_reference(a), InternalError);
  EXPECT_THROW(pool.keep(a), InternalError);
  EXPECT_THROW(pool.release(2), InternalError);
}

TEST(PrefixCache, FindsNothingUnderAnotherSalt) {
  BlockPool pool(4);
  PrefixCache cache(pool, kBlockTokens);
  Tokens tokens = {1, 2, 3};
  int block = cache.publish(*pool.take(), -1, tokens, "one");
  EXPECT_EQ(cache.find(tokens, "two"), std::vector<int>{});
  EXPECT_EQ(cache.find(tokens, "one"), std::vector<int>{block});
  EXPECT_EQ(pool.references(block), 2);
}

// Sequences over two tokens, so that many begin alike, in a pool too small for all; the model is a
// list of what every block of every sequence holds, which a block's content stands for here.
class Trace {
 public:
  explicit Trace(std::uint64_t seed) : random_(seed), pool_(12), cache_(pool_, kBlockTokens) {}

  void step() {
    if (below(3) == 0 && !sequences_.empty()) {
      end(below(static_cast<int>(sequences_.size())));
    } else {
      begin();
    }
    check();
  }
  int num_found() const { return num_found_; }

 private:
  struct Sequence {
    std::string salt;
    Tokens tokens;
    std::vector<int> blocks;
  };

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  void begin() {
    Sequence s{.salt = below(2) == 0 ? "" : "salt", .tokens = {}, .blocks = {}};
    int blocks = 1 + below(4);
    for (int i = 0; i < blocks * kBlockTokens; ++i) s.tokens.push_back(below(2));
    s.blocks = cache_.find(s.tokens, s.salt);
    for (std::size_t i = 0; i < s.blocks.size(); ++i) {
      ++num_found_;
      ASSERT_EQ(written_[s.blocks[i]], content(s, i)) << "a block of other tokens";
    }
    while (static_cast<int>(s.blocks.size()) < blocks) {
      std::optional<int> block = pool_.take();
      if (!block) break;
      ASSERT_FALSE(is_used(*block)) << "a block is written that another reads";
      std::size_t i = s.blocks.size();
      written_[*block] = content(s, i);
      std::span<const int> own(s.tokens.data() + i * kBlockTokens, kBlockTokens);
      int before = i == 0 ? -1 : s.blocks.back();
      s.blocks.push_back(cache_.publish(*block, before, own, s.salt));
      ASSERT_EQ(written_[s.blocks.back()], content(s, i));
    }
    sequences_.push_back(std::move(s));
  }

  void end(int idx) {
    Sequence& s = sequences_[static_cast<std::size_t>(idx)];
    for (auto b = s.blocks.rbegin(); b != s.blocks.rend(); ++b) pool_.release(*b);
    sequences_.erase(sequences_.begin() + idx);
  }

  static std::pair<std::string, Tokens> content(const Sequence& s, std::size_t block) {
    auto end = s.tokens.begin() + static_cast<std::ptrdiff_t>((block + 1) * kBlockTokens);
    return {s.salt, {s.tokens.begin(), end}};
  }
  bool is_used(int block) const {
    for (const Sequence& s : sequences_) {
      if (std::count(s.blocks.begin(), s.blocks.end(), block) > 0) return true;
    }
    return false;
  }

  void check() {
    std::map<int, int> references;
    for (const Sequence& s : sequences_) {
      for (int block : s.blocks) ++references[block];
    }
    int kept = 0;
    for (int block = 0; block < pool_.size(); ++block) {
      ASSERT_EQ(pool_.references(block), references[block]);
      kept += pool_.is_kept(block) ? 1 : 0;
    }
    ASSERT_EQ(pool_.num_available() +
                  static_cast<int>(std::erase_if(references, [](auto& r) { return r.second == 0; }),
                                   references.size()),
              pool_.size());
    ASSERT_EQ(static_cast<int>(cache_.num_entries()), kept);
  }

  std::mt19937_64 random_;
  BlockPool pool_;
  PrefixCache cache_;
  std::vector<Sequence> sequences_;
  std::map<int, std::pair<std::string, Tokens>> written_;
  int num_found_ = 0;
};

TEST(PrefixCache, HoldsWhatItSaysAndLosesNoBlock) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Trace trace(seed);
  for (int i = 0; i < 20000 && !testing::Test::HasFatalFailure(); ++i) trace.step();
  EXPECT_GT(trace.num_found(), 1000);
}

}  // namespace
}  // namespace stretto
