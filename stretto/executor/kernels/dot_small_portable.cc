#define STRETTO_TARGET
#define STRETTO_TARGET_NAME portable
#include "stretto/executor/kernels/dot_small_body.h"
