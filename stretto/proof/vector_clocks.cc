#include "stretto/proof/vector_clocks.h"

#include <algorithm>
#include <cstring>

namespace stretto {

void VectorClocks::reset(int num_components) {
  num_parts_ = static_cast<std::size_t>((num_components + kChunk - 1) / kChunk);
  part_ids_.assign(num_parts_, 0);
  chunks_.assign(1, Chunk{});
  pending_.clear();
  sources_.clear();
}

std::int32_t VectorClocks::later(std::int32_t clock, const Source& source) {
  Source one{merged(source.clock), source.component, source.value};
  Pending next{.base = clock, .first = sources_.size(), .count = 1};
  if (clock < 0) {
    const Pending& before = pending_[index(clock)];
    bool in_a_row = before.made < 0 && before.first + before.count == sources_.size();
    if (in_a_row) next = {.base = before.base, .first = before.first, .count = before.count + 1};
    if (!in_a_row) next.base = merged(clock);
  }
  sources_.push_back(one);
  pending_.push_back(next);
  return -1 - static_cast<std::int32_t>(pending_.size());
}

std::int32_t VectorClocks::merged(std::int32_t clock) {
  if (clock >= 0) return clock;
  Pending& pending = pending_[index(clock)];
  if (pending.made < 0) {
    pending.made = merge(pending.base, std::span(sources_).subspan(pending.first, pending.count));
  }
  return pending.made;
}

std::int32_t VectorClocks::component_of_pending(const Pending& pending, int component) const {
  if (pending.made >= 0) return this->component(pending.made, component);
  std::int32_t most = this->component(pending.base, component);
  for (const Source& s : std::span(sources_).subspan(pending.first, pending.count)) {
    most = std::max(most, this->component(s.clock, component));
    if (s.component == component) most = std::max(most, s.value);
  }
  return most;
}

// In a place of its own: the compiler computes all at once.
VectorClocks::Chunk VectorClocks::larger_of(const Chunk& x, const Chunk& y) {
  Chunk out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(x[i], y[i]);
  return out;
}

std::int32_t VectorClocks::upper_bound(std::int32_t a, std::int32_t b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  const Chunk &x = chunks_[static_cast<std::size_t>(a)], &y = chunks_[static_cast<std::size_t>(b)];
  Chunk out = larger_of(x, y);
  if (out == x) return a;
  if (out == y) return b;
  chunks_.push_back(out);
  return static_cast<std::int32_t>(chunks_.size()) - 1;
}

std::int32_t VectorClocks::merge(std::int32_t clock, std::int32_t source, int component,
                                 std::int32_t value) {
  clock = merged(clock);
  source = merged(source);
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
  clock = merged(clock);
  for (const Source& s : sources) merged(s.clock);
  merged_.resize(num_parts_);
  touched_.clear();
  scratch_.assign(parts(clock), parts(clock) + num_parts_);  // what was merged last
  is_touched_.assign(num_parts_, 0);
  auto touch = [&](std::size_t p) {
    if (is_touched_[p] != 0) return;
    is_touched_[p] = 1;
    touched_.push_back(p);
    merged_[p] = chunks_[static_cast<std::size_t>(parts(clock)[p])];
  };
  for (const Source& s : sources) {
    const std::int32_t* from = parts(merged(s.clock));
    auto take = [&](std::size_t p) {
      if (from[p] == scratch_[p] || from[p] == 0) return;
      touch(p);
      scratch_[p] = from[p];
      merged_[p] = larger_of(merged_[p], chunks_[static_cast<std::size_t>(from[p])]);
    };
    // Mostly all of them are the same.
    constexpr std::size_t kAtOnce = 8;
    std::size_t next = 0;
    for (; next + kAtOnce <= num_parts_; next += kAtOnce) {
      bool same = std::memcmp(&from[next], &scratch_[next], kAtOnce * sizeof(*from)) == 0;
      for (std::size_t p = next; !same && p < next + kAtOnce; ++p) take(p);
    }
    for (; next < num_parts_; ++next) take(next);
    if (s.component < 0) continue;
    auto p = static_cast<std::size_t>(s.component / kChunk);
    touch(p);
    std::int32_t& value = merged_[p][static_cast<std::size_t>(s.component % kChunk)];
    value = std::max(value, s.value);
  }
  bool changed = false;
  for (std::size_t p : touched_) {
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
