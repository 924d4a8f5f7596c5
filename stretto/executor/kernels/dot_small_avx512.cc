#if defined(__x86_64__)
#define STRETTO_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define STRETTO_TARGET_NAME avx512
#define STRETTO_TARGET_WIDENS
#define STRETTO_LANES 16
#include "stretto/executor/kernels/dot_small_body.h"
#endif
