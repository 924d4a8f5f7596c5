#include "stretto/proof/vector_clocks.h"

#include <algorithm>

namespace stretto {

void VectorClocks::reset(int num_components) {
  num_parts_ = static_cast<std::size_t>((num_components + kChunk - 1) / kChunk);
  part_ids_.assign(num_parts_, 0);
  chunks_.assign(1, Chunk{});
}

std::int32_t VectorClocks::upper_bound(std::int32_t a, std::int32_t b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  const Chunk &x = chunks_[static_cast<std::size_t>(a)], &y = chunks_[static_cast<std::size_t>(b)];
  Chunk out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(x[i], y[i]);
  if (out == x) return a;
  if (out == y) return b;
  chunks_.push_back(out);
  return static_cast<std::int32_t>(chunks_.size()) - 1;
}

std::int32_t VectorClocks::merge(std::int32_t clock, std::int32_t source, int component,
                                 std::int32_t value) {
  scratch_.assign(parts(clock), parts(clock) + num_parts_);
  if (source != clock) {
    const std::int32_t* from = parts(source);
    for (std::size_t p = 0; p < num_parts_; ++p) {
      if (scratch_[p] != from[p]) scratch_[p] = upper_bound(scratch_[p], from[p]);
    }
  }
  if (component >= 0) {
    std::int32_t& part = scratch_[static_cast<std::size_t>(component / kChunk)];
    auto place = static_cast<std::size_t>(component % kChunk);
    if (chunks_[static_cast<std::size_t>(part)][place] < value) {
      Chunk raised = chunks_[static_cast<std::size_t>(part)];
      raised[place] = value;
      chunks_.push_back(raised);
      part = static_cast<std::int32_t>(chunks_.size()) - 1;
    }
  }
  if (std::equal(scratch_.begin(), scratch_.end(), parts(clock))) return clock;
  part_ids_.insert(part_ids_.end(), scratch_.begin(), scratch_.end());
  return static_cast<std::int32_t>(size()) - 1;
}

std::int32_t VectorClocks::merge(std::int32_t clock, std::span<const Source> sources) {
  merged_.resize(num_parts_);
  for (std::size_t p = 0; p < num_parts_; ++p) {
    merged_[p] = chunks_[static_cast<std::size_t>(parts(clock)[p])];
  }
  scratch_.assign(parts(clock), parts(clock) + num_parts_);  // what was merged last
  for (const Source& s : sources) {
    const std::int32_t* from = parts(s.clock);
    for (std::size_t p = 0; p < num_parts_; ++p) {
      if (from[p] == scratch_[p] || from[p] == 0) continue;
      scratch_[p] = from[p];
      const Chunk& other = chunks_[static_cast<std::size_t>(from[p])];
      for (std::size_t i = 0; i < other.size(); ++i) {
        merged_[p][i] = std::max(merged_[p][i], other[i]);
      }
    }
    if (s.component < 0) continue;
    std::int32_t& value = merged_[static_cast<std::size_t>(s.component / kChunk)]
                                 [static_cast<std::size_t>(s.component % kChunk)];
    value = std::max(value, s.value);
  }
  bool changed = false;
  for (std::size_t p = 0; p < num_parts_; ++p) {
    std::int32_t before = parts(clock)[p];
    if (merged_[p] == chunks_[static_cast<std::size_t>(before)]) {
      scratch_[p] = before;
      continue;
    }
    changed = true;
    if (merged_[p] == chunks_[static_cast<std::size_t>(scratch_[p])]) continue;
    scratch_[p] = static_cast<std::int32_t>(chunks_.size());
    chunks_.push_back(merged_[p]);
  }
  if (!changed) return clock;
  part_ids_.insert(part_ids_.end(), scratch_.begin(), scratch_.end());
  return static_cast<std::int32_t>(size()) - 1;
}

}  // namespace stretto
