#include "stretto/ops/harness/rank_sum.h"

#include <utility>
#include <vector>

namespace stretto {

Value sum_over_ranks(ProgramBuilder& p, const ValueType& type, const PartOfRank& part) {
  Value sum = p.zeros(sum_dtype(type.dtype), type.rows, type.cols);
  if (p.world_size() > kRanksTogether) {
    p.loop(p.world_size(), [&](const Index& r) { sum = sum + cast(part(r), sum.dtype()); });
    return sum;
  }
  std::vector<Value> parts;
  for (int r = 0; r < p.world_size(); ++r) parts.push_back(part(r));
  for (const Value& v : parts) sum = sum + cast(v, sum.dtype());
  return sum;
}

Value sum_with_own(ProgramBuilder& p, const Value& mine, const PartOfRank& part, bool together) {
  const int world = p.world_size();
  Value sum = p.zeros(sum_dtype(mine.dtype()), mine.rows(), mine.cols());
  auto add = [&](const Value& v) { sum = sum + cast(v, sum.dtype()); };
  if (!together || world > kRanksTogether) {
    p.loop(0, p.rank(), [&](const Index& r) { add(part(r)); });
    add(mine);
    p.loop(p.rank() + 1, world, [&](const Index& r) { add(part(r)); });
    return sum;
  }
  std::vector<Value> others;
  for (int i = 0; i < world - 1; ++i) {
    others.push_back(part(p.let("source", i + (p.rank() <= i))));
  }
  if (world <= 2) {  // the same bits both ways round
    add(mine);
    for (const Value& v : others) add(v);
    return sum;
  }
  for (int i = 0; i < world; ++i) {
    p.when(p.rank() == i, [&] { add(mine); });
    if (i < world - 1) add(others[static_cast<std::size_t>(i)]);
  }
  return sum;
}

void move_by_peer(ProgramBuilder& p, const PartOfRank& load,
                  const std::function<void(const Index& rank, const Value& value)>& store) {
  const int world = p.world_size();
  auto peer = [&](const Index& i) { return p.let("peer", (p.rank() + 1 + i) % world); };
  if (world > kRanksTogether) {
    p.loop(world - 1, [&](const Index& i) {
      Index rank = peer(i);
      store(rank, load(rank));
    });
    return;
  }
  std::vector<std::pair<Index, Value>> loaded;
  for (int i = 0; i < world - 1; ++i) {
    Index rank = peer(i);
    loaded.emplace_back(rank, load(rank));
  }
  for (const auto& [rank, value] : loaded) store(rank, value);
}

}  // namespace stretto
