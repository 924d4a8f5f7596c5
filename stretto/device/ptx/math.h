// Elementary functions: one hardware instruction where fp32 accuracy of about 2 ulp is kept.
#pragma once

#include "stretto/device/ptx/types.h"

STRETTO_DEVICE float exp2_approx(float v) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}
STRETTO_DEVICE float rcp_approx(float v) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}
STRETTO_DEVICE float exp_fast(float v) { return exp2_approx(v * 1.4426950408889634f); }
