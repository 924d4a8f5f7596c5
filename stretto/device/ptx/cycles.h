// The clock of an SM.
#pragma once

#include "stretto/device/ptx/types.h"

STRETTO_DEVICE u64 cycle_counter() {
  u64 t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
