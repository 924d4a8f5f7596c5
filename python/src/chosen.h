// Products with collectives as they run: fused, or as collective and product one after the other,
// in the config that prediction ranks first (ops/choose). Comes before programs.cc, which offers
// them to Python.
#pragma once

#include <vector>

#include "fields.h"
#include "stretto/ops/ag_gemm/ag_columns_gemm.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/gemm_ag/gemm_ag.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto::python {

enum class Products {
  kDefault,   // fused, in the default config
  kFused,     // fused, on GPUs in the chosen config
  kFastest,   // on GPUs whichever is predicted to be faster; on CPU ranks fused
  kSequence,  // one after the other, on GPUs in chosen configs; fused with scales or on one rank
};
const char* name(Products products);  // "default"
// The last field, `products`: "default", "fused", "fastest" or "sequence". InternalError for
// others.
Products take_products(Fields& fields);

// One program, or in their order the two of a sequence, collective and gemm. Ranked for this
// machine's GPUs as they were calibrated, or else for H200s, once per desc: the choice is kept on
// disk, and is the same in every process. Up to some seconds. The default config where nothing can
// be predicted. UserError naming the field of a bad desc.
std::vector<Program> chosen_programs(const AgGemmDesc& desc, Products products, Target target);
// These have no sequence: what is asked for as one is the caller's.
std::vector<Program> chosen_programs(const AgColumnsDesc& desc, Products products, Target target);
std::vector<Program> chosen_programs(const GemmAgDesc& desc, Products products, Target target);
std::vector<Program> chosen_programs(const GemmRsDesc& desc, Products products, Target target);
std::vector<Program> chosen_programs(const GemmArDesc& desc, Products products, Target target);

}  // namespace stretto::python
