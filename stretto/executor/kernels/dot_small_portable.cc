#define STRETTO_TARGET
#define STRETTO_TARGET_NAME portable
#define STRETTO_LANES 8
#include "stretto/executor/kernels/dot_small_body.h"
