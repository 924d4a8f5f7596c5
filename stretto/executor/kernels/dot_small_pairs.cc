#if defined(__x86_64__)
#define STRETTO_TARGET __attribute__((target("avx512f,avx512bf16,avx2,fma,f16c")))
#define STRETTO_TARGET_NAME pairs
#define STRETTO_TARGET_WIDENS
#define STRETTO_TARGET_PAIRS
#define STRETTO_LANES 16
#include "stretto/executor/kernels/dot_small_body.h"
#endif
