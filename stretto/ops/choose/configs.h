// The configs that an operator may run with on a Hopper GPU: what the chooser ranks, the benchmarks
// measure and every one of which compiles. Each list begins with the operator's default config and
// names no config twice. Desc comes before, candidates.h turns both into programs.
#pragma once

#include "stretto/ops/ag_gemm/ag_columns_sm90.h"
#include "stretto/ops/ag_gemm/ag_gemm_sm90.h"
#include "stretto/ops/collectives/collectives_sm90.h"
#include "stretto/ops/gemm/gemm_sm90.h"
#include "stretto/ops/gemm_ag/gemm_ag_sm90.h"
#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"
#include "stretto/ops/gemm_rs/gemm_rs_sm90.h"
#include "stretto/ops/moe/expert_layers_sm90.h"
#include "stretto/ops/ulysses/ulysses_sm90.h"
