// Finding and opening cuBLASLt: the table of its functions that cublaslt.cc calls. Names, values
// and layouts are those of NVIDIA's cuBLAS reference; cublaslt_test.cc compares them with
// cublasLt.h where that file is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "stretto/runtime/cuda/driver_types.h"

namespace stretto::cuda {

using cublasLtHandle_t = struct cublasLtContext*;
using cublasLtMatmulDesc_t = struct cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = struct cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulPreference_t = struct cublasLtMatmulPreferenceOpaque_t*;

enum cublasStatus_t : int { CUBLAS_STATUS_SUCCESS = 0 };
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t : int { CUBLAS_COMPUTE_32F = 68 };
enum cudaDataType_t : int {
  CUDA_R_32F = 0,
  CUDA_R_16F = 2,
  CUDA_R_16BF = 14,
  CUDA_R_8F_E4M3 = 28,
};
enum cublasLtMatmulDescAttributes_t : int {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
  CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
  CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25,
  CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
  CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32,
};
// Of fp8 factors, from 12.9 on.
enum cublasLtMatmulMatrixScale_t : int {
  CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3,
  CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4,
  CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F = 5,
};
enum cublasLtMatmulPreferenceAttributes_t : int { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };

struct cublasLtMatmulAlgo_t {
  std::uint64_t data[8];
};

struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

// member of CublasLtLibrary, symbol, result, parameter types.
#define STRETTO_CUBLASLT_FUNCTIONS(X)                                                              \
  X(get_version, cublasLtGetVersion, std::size_t, ())                                              \
  X(status_string, cublasLtGetStatusString, const char*, (cublasStatus_t))                         \
  X(create, cublasLtCreate, cublasStatus_t, (cublasLtHandle_t*))                                   \
  X(destroy, cublasLtDestroy, cublasStatus_t, (cublasLtHandle_t))                                  \
  X(desc_create, cublasLtMatmulDescCreate, cublasStatus_t,                                         \
    (cublasLtMatmulDesc_t*, cublasComputeType_t, cudaDataType_t))                                  \
  X(desc_destroy, cublasLtMatmulDescDestroy, cublasStatus_t, (cublasLtMatmulDesc_t))               \
  X(desc_set, cublasLtMatmulDescSetAttribute, cublasStatus_t,                                      \
    (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*, std::size_t))              \
  X(layout_create, cublasLtMatrixLayoutCreate, cublasStatus_t,                                     \
    (cublasLtMatrixLayout_t*, cudaDataType_t, std::uint64_t, std::uint64_t, std::int64_t))         \
  X(layout_destroy, cublasLtMatrixLayoutDestroy, cublasStatus_t, (cublasLtMatrixLayout_t))         \
  X(preference_create, cublasLtMatmulPreferenceCreate, cublasStatus_t,                             \
    (cublasLtMatmulPreference_t*))                                                                 \
  X(preference_destroy, cublasLtMatmulPreferenceDestroy, cublasStatus_t,                           \
    (cublasLtMatmulPreference_t))                                                                  \
  X(preference_set, cublasLtMatmulPreferenceSetAttribute, cublasStatus_t,                          \
    (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, std::size_t))  \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic, cublasStatus_t,                                     \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,       \
     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,              \
     cublasLtMatmulHeuristicResult_t*, int*))                                                      \
  X(matmul, cublasLtMatmul, cublasStatus_t,                                                        \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,     \
     const void*, cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t, void*, \
     cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, std::size_t, CUstream))

struct CublasLtLibrary {
#define STRETTO_CUBLASLT_MEMBER(member, symbol, result, parameters) result(*member) parameters;
  STRETTO_CUBLASLT_FUNCTIONS(STRETTO_CUBLASLT_MEMBER)
#undef STRETTO_CUBLASLT_MEMBER
  std::size_t version = 0;     // 130100
  std::filesystem::path path;  // of the file that was opened
};

// What a search found: a library, or why there is none.
struct CublasLtSearch {
  CublasLtLibrary library{};
  std::string error;  // empty where `library` is usable
};

// Tries the names in turn; a name without a slash is looked for by the loader.
CublasLtSearch open_cublaslt(const std::vector<std::filesystem::path>& names);

// STRETTO_CUBLASLT if set; else the loader's directories, /usr/local/cuda/lib64, and the package
// `nvidia` of python3.
CublasLtSearch search_cublaslt();

// Opened at the first call and kept; DeviceError where there is none.
const CublasLtLibrary& cublaslt_library();

// DeviceError "<what>: <text>" unless `status` is success.
void check(cublasStatus_t status, const char* what);

}  // namespace stretto::cuda
