#include "stretto/model/transformer/batch_runner.h"

namespace stretto {

void BatchRunner::begin_work() {
  began_ = Clock::now();
  if (ended_) times_.waits += std::chrono::duration<double>(began_ - *ended_).count();
}

void BatchRunner::end_work() {
  ended_ = Clock::now();
  times_.works += std::chrono::duration<double>(*ended_ - began_).count();
}

}  // namespace stretto
