#include "stretto/model/tokenizer/piece_cache.h"

namespace stretto::tokenization {

bool PieceCache::find(std::string_view piece, std::vector<int>& ids) {
  if (piece.size() > kMaxPieceBytes) return false;
  Shard& shard = shard_of(piece);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.entries.find(piece);
  if (found == shard.entries.end()) return false;
  ids.insert(ids.end(), found->second.begin(), found->second.end());
  return true;
}

void PieceCache::insert(std::string_view piece, const int* ids, std::size_t num_ids) {
  if (piece.size() > kMaxPieceBytes) return;
  Shard& shard = shard_of(piece);
  const std::lock_guard lock(shard.mutex);
  if (shard.entries.size() >= kMaxShardEntries) shard.entries.clear();
  shard.entries.try_emplace(std::string(piece), ids, ids + num_ids);
}

}  // namespace stretto::tokenization
