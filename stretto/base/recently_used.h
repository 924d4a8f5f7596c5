// The last things that were made, found again by what they are for; the one that was not used for
// the longest time goes when there is no room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace stretto {

template <typename T, std::size_t kMost>
class RecentlyUsed {
 public:
  // The one that `is_it` knows, or null; it is the last used then. Valid up to the next call.
  template <typename IsIt>
  T* find(const IsIt& is_it) {
    auto at = std::find_if(kept_.begin(), kept_.end(), is_it);
    if (at == kept_.end()) return nullptr;
    std::rotate(kept_.begin(), at, at + 1);
    return &kept_.front();
  }
  // Where it is now; valid up to the next call.
  T& keep(T made) {
    if (kept_.size() == kMost) kept_.pop_back();
    return *kept_.insert(kept_.begin(), std::move(made));
  }
  template <typename IsIt>
  void erase_if(const IsIt& is_it) {
    std::erase_if(kept_, is_it);
  }

 private:
  std::vector<T> kept_;  // the last used first
};

}  // namespace stretto
