#include "stretto/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::size_t kNone = std::string::npos;

struct Found {
  std::size_t begin = kNone, end = kNone;
};

// The stop that is completed first, the longest of those; begins at kNone when none is complete.
Found first_stop(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t begin = kNone;
  std::size_t end = kNone;
  for (const std::string& stop : stops) {
    std::size_t at = text.find(stop);
    if (at == kNone) continue;
    std::size_t stop_end = at + stop.size();
    if (stop_end < end || (stop_end == end && at < begin)) {
      begin = at;
      end = stop_end;
    }
  }
  return {begin, end};
}

// Length of the longest end of `text` that is a proper beginning of some stop.
std::size_t unfinished(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw UserError("stop: a stop string must not be empty");
  }
}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  Found found = first_stop(held_, stops_);
  if (found.begin != kNone) {
    stopped_ = true;
    stop_ = held_.substr(found.begin, found.end - found.begin);
    return std::exchange(held_, {}).substr(0, found.begin);
  }
  std::size_t certain = held_.size() - unfinished(held_, stops_);
  std::string text = held_.substr(0, certain);
  held_.erase(0, certain);
  return text;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace stretto
