// Every operator of the catalog has cases: at a shape of its row, random inputs and what has to
// come of them. This is the one list of them; each file here ends with its part of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/ops/operator/operator.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

using MakeCase = std::function<OpCase(const OpShape&, std::uint64_t seed)>;

struct OperatorCase {
  std::string name;  // of the catalog's row
  MakeCase make;
};

// The operator's case at a shape.
OpCase make_case(const OperatorInfo& op, const OpShape& shape, std::uint64_t seed);

// Cases of `count` seeds from this one on, those of the same program together: launched in turn, no
// launch has the inputs and tables of the one before.
std::vector<std::vector<OpCase>> cases_of_seeds(const OperatorInfo& op, const OpShape& shape,
                                                std::uint64_t seed, int count);

// Cases of one program that differ in their run-time rows and inputs: m, the bound, half of it, one
// and none, each number once; one case where the program has no such extent.
std::vector<OpCase> cases_of_rows(const OperatorInfo& op, const OpShape& shape, std::uint64_t seed);

// --- the parts of the list ---
std::vector<OperatorCase> collective_cases();
std::vector<OperatorCase> gemm_cases();
std::vector<OperatorCase> quantize_cases();
std::vector<OperatorCase> ag_gemm_cases();
std::vector<OperatorCase> ag_columns_cases();
std::vector<OperatorCase> gemm_ag_cases();
std::vector<OperatorCase> gemm_rs_cases();
std::vector<OperatorCase> gemm_ar_cases();
std::vector<OperatorCase> norm_cases();
std::vector<OperatorCase> attention_cases();
std::vector<OperatorCase> packed_attention_cases();
std::vector<OperatorCase> paged_decode_cases();
std::vector<OperatorCase> paged_write_cases();
std::vector<OperatorCase> sequence_attention_cases();
std::vector<OperatorCase> flash_decode_cases();
std::vector<OperatorCase> ulysses_cases();
std::vector<OperatorCase> embedding_cases();
std::vector<OperatorCase> route_cases();
std::vector<OperatorCase> moe_cases();
std::vector<OperatorCase> expert_tables_cases();
std::vector<OperatorCase> tp_cases();
std::vector<OperatorCase> ep_moe_cases();
std::vector<OperatorCase> ep_cases();
std::vector<OperatorCase> uneven_cases();

}  // namespace stretto
