#include "stretto/base/progress.h"

#include <fmt/format.h>

#include <utility>

namespace stretto {

void Progress::begin(std::string what) {
  std::lock_guard lock(mutex_);
  what_ = std::move(what);
  since_ = std::chrono::steady_clock::now();
}

void Progress::within(std::string whole) {
  std::lock_guard lock(mutex_);
  whole_ = std::move(whole);
}

std::string Progress::text() const {
  std::lock_guard lock(mutex_);
  if (what_.empty()) return "";
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since_;
  return fmt::format("{}{}{}, for {:.0f} s", what_, whole_.empty() ? "" : ", ", whole_,
                     took.count());
}

}  // namespace stretto
