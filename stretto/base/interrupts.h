// How waits of a thread end early when whoever called wants them to, as when a user presses a key:
// who calls leaves a question here, and waits ask it now and then.
#pragma once

#include <chrono>

namespace stretto {

class Interrupts {
 public:
  // Throws what the wait is to end with, or returns.
  using Question = void (*)();
  static constexpr std::chrono::milliseconds kEvery{50};

  // Asked by this thread's waits while this lives, at most once every kEvery.
  explicit Interrupts(Question question);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // By waits, at least so often, without a lock.
  static void look();

 private:
  Question before_;
};

}  // namespace stretto
