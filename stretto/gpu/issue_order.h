// Whether the ranks of a world launch the same instances in the same order, compared as they do.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stretto {

class IssueOrder {
 public:
  // What `rank`, another one, has launched where an instance is about to be launched.
  struct Clash {
    int rank = -1, instance = -1;
    std::uint32_t place = 0;  // launches since creation or clear()
  };

  explicit IssueOrder(int num_ranks);

  // The next launch of `rank`; one thread at a time per rank. After a clash it has not taken place,
  // and another instance may be tried. A rank that is more than kWindow launches behind is not
  // compared. 0 <= instance < 2^24, modulo which instances are told apart.
  std::optional<Clash> launch(int rank, int instance);
  // No thread launches meanwhile.
  void clear();

  static constexpr std::uint32_t kWindow = 1024;

 private:
  struct alignas(64) Rank {
    std::uint32_t launches = 0;
  };
  // The first that came to place p is kept at p % kWindow: place, instance (24 bits), rank.
  using Places = std::array<std::atomic<std::uint64_t>, kWindow>;

  std::vector<Rank> ranks_;
  std::unique_ptr<Places> places_;
};

}  // namespace stretto
