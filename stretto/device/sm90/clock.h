// Reads the device's timer for the host, again and again: how far it lies from the host's clock.
#pragma once

#include "stretto/device/ptx/memory.h"

// By one thread. Words in host memory: the number of the last question, then the timer in answer to
// each question from 1 on. Aborts when nothing was asked for so long.
STRETTO_DEVICE void answer_with_timer(u64* words, i64 num_questions, u64 timeout_ns) {
  for (i64 i = 1; i <= num_questions; ++i) {
    u64 begin = global_timer_ns();
    while (load_relaxed_sys(words) < u64(i)) {
      if (global_timer_ns() - begin > timeout_ns) return;
    }
    store_relaxed_sys(words + i, global_timer_ns());
  }
}
