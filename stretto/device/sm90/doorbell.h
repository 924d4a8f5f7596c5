// Doorbells: how a kernel tells a copy queue of its own device to go on. One writer, one reader,
// which clears the word before it goes on.
#pragma once

#include "stretto/device/ptx/memory.h"

// Everything that this thread knows to be written is what the queue reads.
STRETTO_DEVICE void ring_release_sys(u64* bell) {
  fence_acq_rel_sys();
  store_relaxed_sys(bell, 1);
}
