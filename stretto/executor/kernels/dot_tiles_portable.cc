#define STRETTO_TARGET
#define STRETTO_TARGET_NAME portable
#define STRETTO_LANES 8
#define STRETTO_VECTOR_FLOATS 4
#define STRETTO_BLOCK_ROWS 4
#include "stretto/executor/kernels/dot_tiles_body.h"
