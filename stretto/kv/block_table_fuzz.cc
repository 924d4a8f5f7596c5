// Sequences over a pool of few blocks, as a scheduler has them: what begins alike shares blocks,
// full ones are published, any may end at any time. Each input byte is one step. A block that two
// write, that is found under tokens which it does not hold, or that is lost, is a finding.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/kv/block_pool.h"
#include "stretto/kv/prefix_cache.h"

namespace {

constexpr int kBlocks = 6, kBlockTokens = 2;
constexpr std::size_t kMostSequences = 4;

struct Sequence {
  std::string_view salt;
  std::vector<int> tokens;
  std::vector<int> blocks;
  std::size_t num_published = 0;
};

class Table {
 public:
  void step(std::uint8_t byte) {
    const int what = byte >> 5, detail = byte & 31;
    if (what < 2 || sequences_.empty()) {
      begin(detail);
    } else if (what < 6) {
      add_token(sequences_[static_cast<std::size_t>(detail) % sequences_.size()], detail / 8);
    } else {
      end(static_cast<std::size_t>(detail) % sequences_.size());
    }
    check();
  }

  void end_all() {
    while (!sequences_.empty()) end(0);
    STRETTO_CHECK(pool_.num_available() == kBlocks, "a block is lost");
  }

 private:
  // One that begins with two tokens of four, found or not.
  void begin(int detail) {
    if (sequences_.size() == kMostSequences) return;
    Sequence made{.salt = (detail & 16) != 0 ? "a" : ""};
    std::vector<int> prompt = {detail & 1, detail >> 1 & 1, detail >> 2 & 1, detail >> 3 & 1};
    made.blocks = cache_.find(prompt, made.salt);
    made.num_published = made.blocks.size();
    for (std::size_t i = 0; i < made.blocks.size() * kBlockTokens; ++i) {
      const auto& holds = content_[made.blocks[i / kBlockTokens]];
      STRETTO_CHECK(holds.at(i % kBlockTokens) == prompt[i], "a block is found that holds others");
      made.tokens.push_back(prompt[i]);
    }
    sequences_.push_back(std::move(made));
  }

  // Where there is room, else the first one gives its blocks back.
  void add_token(Sequence& one, int token) {
    if (one.tokens.size() == one.blocks.size() * kBlockTokens) {
      const std::optional<int> block = pool_.take();
      if (!block) return end(0);
      STRETTO_CHECK(pool_.references(*block) == 1, "a block is given out that somebody has");
      for (const Sequence& other : sequences_) {
        for (int its : other.blocks) STRETTO_CHECK(its != *block, "a block is given out twice");
      }
      content_[*block].clear();
      one.blocks.push_back(*block);
    }
    one.tokens.push_back(token);
    content_[one.blocks.back()].push_back(token);
    if (one.tokens.size() % kBlockTokens != 0) return;
    const std::size_t at = one.blocks.size() - 1;
    const int before = at == 0 ? -1 : one.blocks[at - 1];
    const std::vector<int> tokens(one.tokens.end() - kBlockTokens, one.tokens.end());
    one.blocks[at] = cache_.publish(one.blocks[at], before, tokens, one.salt);
    one.num_published = at + 1;
    STRETTO_CHECK(content_[one.blocks[at]] == tokens, "published as a block that holds others");
  }

  void end(std::size_t index) {
    for (int block : sequences_[index].blocks) pool_.release(block);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Every reference is somebody's, and what is shared holds each one's tokens.
  void check() {
    std::map<int, int> references;
    for (const Sequence& one : sequences_) {
      for (std::size_t i = 0; i < one.blocks.size(); ++i) {
        ++references[one.blocks[i]];
        const auto& holds = content_[one.blocks[i]];
        for (std::size_t t = 0; t < holds.size(); ++t) {
          STRETTO_CHECK(holds[t] == one.tokens.at(i * kBlockTokens + t), "another one wrote here");
        }
      }
    }
    for (int block = 0; block < kBlocks; ++block) {
      STRETTO_CHECK(pool_.references(block) == references[block], "references do not add up");
    }
    STRETTO_CHECK(pool_.num_available() + static_cast<int>(std::erase_if(
                                              references, [](auto& r) { return r.second > 0; })) ==
                      kBlocks,
                  "blocks do not add up");
    STRETTO_CHECK(cache_.num_entries() <= kBlocks, "more is kept than there are blocks");
  }

  stretto::BlockPool pool_{kBlocks};
  stretto::PrefixCache cache_{pool_, kBlockTokens};
  std::vector<Sequence> sequences_;
  std::map<int, std::vector<int>> content_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Table table;
  for (std::size_t i = 0; i < size; ++i) table.step(data[i]);
  table.end_all();
  return 0;
}
