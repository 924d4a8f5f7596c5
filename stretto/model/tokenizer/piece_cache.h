// Bounded memory of pieces and their ids: most of a text consists of few words. Safe for concurrent
// use.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stretto::tokenization {

class PieceCache {
 public:
  // Longer pieces are rare and would make the memory's size depend on the text.
  static constexpr std::size_t kMaxPieceBytes = 96;

  // Appends the ids of `piece` to `ids` when they are known.
  bool find(std::string_view piece, std::vector<int>& ids);
  void insert(std::string_view piece, const int* ids, std::size_t num_ids);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int>, Hash, std::equal_to<>> entries;
  };
  static constexpr std::size_t kNumShards = 16;
  static constexpr std::size_t kMaxShardEntries = 4096;  // a full shard is emptied

  Shard& shard_of(std::string_view piece) { return shards_[(Hash()(piece) >> 7) % kNumShards]; }

  std::array<Shard, kNumShards> shards_;
};

}  // namespace stretto::tokenization
