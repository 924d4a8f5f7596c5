#if defined(__x86_64__)
#define STRETTO_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define STRETTO_TARGET_NAME avx512
#define STRETTO_LANES 16
#define STRETTO_TARGET_WIDENS
#define STRETTO_VECTOR_FLOATS 16
#define STRETTO_BLOCK_ROWS 12  // 24 sums, two vectors of B, of 32 registers
#include "stretto/executor/kernels/dot_tiles_body.h"
#endif
