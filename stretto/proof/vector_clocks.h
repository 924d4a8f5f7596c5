// Vector clocks that share what they have in common: a clock is a list of chunks of components, and
// most clocks differ from the one they were made of in one or two chunks. One may be kept as what
// it is made of: an agent that loads packets in a row has a clock behind each of them, and goes on
// with the last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stretto {

class VectorClocks {
 public:
  // Clock 0 remains, with every component 0.
  void reset(int num_components);

  std::int32_t component(std::int32_t clock, int component) const {
    if (clock < 0) return component_of_pending(pending_[index(clock)], component);
    return chunks_[static_cast<std::size_t>(parts(clock)[component / kChunk])]
                  [static_cast<std::size_t>(component % kChunk)];
  }

  // The least upper bound of `clock` and `source` with `component` at least `value`; `component` -1
  // stands for none. `clock` itself where that adds nothing.
  std::int32_t merge(std::int32_t clock, std::int32_t source, int component, std::int32_t value);

  struct Source {
    std::int32_t clock;
    int component;
    std::int32_t value;
  };
  // With all of them at once: nothing is kept of what lies between.
  std::int32_t merge(std::int32_t clock, std::span<const Source> sources);

  // The same with one of them, not merged until it is merged into another. Its number is below -1.
  std::int32_t later(std::int32_t clock, const Source& source);

  // Without those that are not merged.
  std::size_t size() const { return num_parts_ == 0 ? 0 : part_ids_.size() / num_parts_; }

 private:
  static constexpr int kChunk = 16;
  using Chunk = std::array<std::int32_t, kChunk>;

  // `count` sources from `first` on over the clock `base`; `made`: merged, or -1.
  struct Pending {
    std::int32_t base;
    std::size_t first, count;
    std::int32_t made = -1;
  };
  static std::size_t index(std::int32_t pending) { return static_cast<std::size_t>(-2 - pending); }
  std::int32_t component_of_pending(const Pending& pending, int component) const;
  // The number of the same clock that is merged.
  std::int32_t merged(std::int32_t clock);

  const std::int32_t* parts(std::int32_t clock) const {
    return &part_ids_[static_cast<std::size_t>(clock) * num_parts_];
  }
  static Chunk larger_of(const Chunk& x, const Chunk& y);
  // The chunk of the larger of every two components; one of the two where it is that one.
  std::int32_t upper_bound(std::int32_t a, std::int32_t b);

  std::size_t num_parts_ = 0;           // of a clock
  std::vector<std::int32_t> part_ids_;  // [clock][part]: into chunks_; 0 holds zeros
  std::vector<Chunk> chunks_;
  std::vector<Pending> pending_;
  std::vector<Source> sources_;  // of those, each merged
  std::vector<std::int32_t> scratch_;
  std::vector<Chunk> merged_;  // of the parts that are touched
  std::vector<std::size_t> touched_;
  std::vector<char> is_touched_;
};

}  // namespace stretto
