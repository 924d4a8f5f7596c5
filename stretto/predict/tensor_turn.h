// The tensor core of a worker whose consumers take its tiles in turn: one of them multiplies, the
// next follows when that one's products are done. Part of the event loop.
#pragma once

#include <deque>

namespace stretto::predict {

class TensorTurn {
 public:
  // False: the agent is queued, and asks again when release() has named it.
  bool take(int agent) {
    if (holder_ >= 0 && holder_ != agent) {
      queue_.push_back(agent);
      return false;
    }
    holder_ = agent;
    return true;
  }

  // Who is next, or -1; nothing happens unless the agent holds the turn.
  int release(int agent) {
    if (holder_ != agent) return -1;
    holder_ = -1;
    if (queue_.empty()) return -1;
    int next = queue_.front();
    queue_.pop_front();
    return next;
  }

 private:
  int holder_ = -1;
  std::deque<int> queue_;
};

}  // namespace stretto::predict
