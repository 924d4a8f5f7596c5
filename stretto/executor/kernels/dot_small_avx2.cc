#if defined(__x86_64__)
#define STRETTO_TARGET __attribute__((target("avx2,fma,f16c")))
#define STRETTO_TARGET_NAME avx2
#define STRETTO_LANES 8
#define STRETTO_TARGET_WIDENS  // eight 16-bit floats to f32, in one or two instructions
#include "stretto/executor/kernels/dot_small_body.h"
#endif
