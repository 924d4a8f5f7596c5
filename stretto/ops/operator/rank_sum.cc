#include "stretto/ops/operator/rank_sum.h"

#include <utility>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

const char* name(Reduction reduction) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "product", "premul_sum"};
  return kNames[static_cast<std::size_t>(reduction)];
}

Value reduced(Reduction reduction, const Value& a, const Value& b) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
    case Reduction::kPremulSum:
      return a + b;
    case Reduction::kMin:
      return minimum(a, b);
    case Reduction::kMax:
      return maximum(a, b);
    case Reduction::kProduct:
      return a * b;
  }
  throw InternalError("rank_sum: unknown reduction");
}

DType reduced_in(DType dtype) { return is_float(dtype) ? sum_dtype(dtype) : dtype; }

bool is_sum(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kAverage ||
         reduction == Reduction::kPremulSum;
}

namespace {

// What a loop over parts begins with, of sums and products.
Value neutral(ProgramBuilder& p, Reduction reduction, const ValueType& type) {
  return is_sum(reduction) ? p.zeros(type.dtype, type.rows, type.cols)
                           : p.full(type.dtype, type.rows, type.cols, 1);
}

// Least or greatest, which are the same in any order.
Value extreme_with_own(ProgramBuilder& p, Reduction reduction, const Value& mine,
                       const PartOfRank& part, bool together) {
  const int world = p.world_size();
  Value best = cast(copy(mine), reduced_in(mine.dtype()));
  auto take = [&](const Value& v) { best = reduced(reduction, best, cast(v, best.dtype())); };
  auto source = [&](const Index& i) { return p.let("source", (p.rank() + 1 + i) % world); };
  if (!together || world > kRanksTogether) {
    p.loop(world - 1, [&](const Index& i) { take(part(source(i))); });
    return best;
  }
  std::vector<Value> others;
  for (int i = 0; i < world - 1; ++i) others.push_back(part(source(i)));
  for (const Value& v : others) take(v);
  return best;
}

}  // namespace

Value reduce_over_ranks(ProgramBuilder& p, Reduction reduction, const ValueType& type,
                        const PartOfRank& part) {
  if (!is_sum(reduction) && reduction != Reduction::kProduct) {
    return extreme_with_own(p, reduction, part(p.rank()), part, true);
  }
  Value sum = neutral(p, reduction, {reduced_in(type.dtype), type.rows, type.cols});
  auto add = [&](const Value& v) { sum = reduced(reduction, sum, cast(v, sum.dtype())); };
  if (p.world_size() > kRanksTogether) {
    p.loop(p.world_size(), [&](const Index& r) { add(part(r)); });
    return sum;
  }
  std::vector<Value> parts;
  for (int r = 0; r < p.world_size(); ++r) parts.push_back(part(r));
  for (const Value& v : parts) add(v);
  return sum;
}

Value reduce_with_own(ProgramBuilder& p, Reduction reduction, const Value& mine,
                      const PartOfRank& part, bool together) {
  if (!is_sum(reduction) && reduction != Reduction::kProduct) {
    return extreme_with_own(p, reduction, mine, part, together);
  }
  const int world = p.world_size();
  Value sum = neutral(p, reduction, {reduced_in(mine.dtype()), mine.rows(), mine.cols()});
  auto add = [&](const Value& v) { sum = reduced(reduction, sum, cast(v, sum.dtype())); };
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

Value sum_over_ranks(ProgramBuilder& p, const ValueType& type, const PartOfRank& part) {
  return reduce_over_ranks(p, Reduction::kSum, type, part);
}

Value sum_with_own(ProgramBuilder& p, const Value& mine, const PartOfRank& part, bool together) {
  return reduce_with_own(p, Reduction::kSum, mine, part, together);
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
