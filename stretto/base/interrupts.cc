#include "stretto/base/interrupts.h"

#include <cerrno>
#include <utility>

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

thread_local Interrupts::Question asked = nullptr;
thread_local Clock::time_point last;

}  // namespace

Interrupts::Interrupts(Question question) : before_(std::exchange(asked, question)) {}

Interrupts::~Interrupts() { asked = before_; }

void Interrupts::look() {
  if (asked == nullptr) return;
  Clock::time_point now = Clock::now();
  if (now - last < kEvery) return;
  last = now;
  int error = errno;  // of the call that the wait is for
  asked();
  errno = error;
}

}  // namespace stretto
