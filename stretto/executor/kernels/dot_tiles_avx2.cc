#if defined(__x86_64__)
#define STRETTO_TARGET __attribute__((target("avx2,fma,f16c")))
#define STRETTO_TARGET_NAME avx2
#define STRETTO_LANES 8
#define STRETTO_TARGET_WIDENS
#define STRETTO_VECTOR_FLOATS 8
#define STRETTO_BLOCK_ROWS 6  // 12 sums, two vectors of B, one of A, of 16 registers
#include "stretto/executor/kernels/dot_tiles_body.h"
#endif
