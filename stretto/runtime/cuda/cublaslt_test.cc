// cuBLASLt as the baseline of GEMM: our declarations against NVIDIA's header where it is installed,
// the error of a machine without the library, and a product on a machine with a GPU.
#include "stretto/runtime/cuda/cublaslt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/cuda/cublaslt_library.h"
#include "stretto/runtime/cuda/signature_testing.h"

// Its names are global, ours are in stretto::cuda.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define STRETTO_HAS_CUBLASLT_HEADER 1
#endif

namespace stretto::cuda {
namespace {

#ifdef STRETTO_HAS_CUBLASLT_HEADER

static_assert(int{CUBLAS_STATUS_SUCCESS} == int{::CUBLAS_STATUS_SUCCESS});
static_assert(int{CUBLAS_OP_N} == int{::CUBLAS_OP_N} && int{CUBLAS_OP_T} == int{::CUBLAS_OP_T});
static_assert(int{CUBLAS_COMPUTE_32F} == int{::CUBLAS_COMPUTE_32F});
static_assert(int{CUDA_R_32F} == int{::CUDA_R_32F} && int{CUDA_R_16F} == int{::CUDA_R_16F} &&
              int{CUDA_R_16BF} == int{::CUDA_R_16BF});
static_assert(int{CUBLASLT_MATMUL_DESC_TRANSA} == int{::CUBLASLT_MATMUL_DESC_TRANSA});
static_assert(int{CUBLASLT_MATMUL_DESC_TRANSB} == int{::CUBLASLT_MATMUL_DESC_TRANSB});
static_assert(int{CUDA_R_8F_E4M3} == int{::CUDA_R_8F_E4M3});
static_assert(int{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER} ==
                  int{::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER} &&
              int{CUBLASLT_MATMUL_DESC_B_SCALE_POINTER} ==
                  int{::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER});
static_assert(int{CUBLASLT_MATMUL_DESC_FAST_ACCUM} == int{::CUBLASLT_MATMUL_DESC_FAST_ACCUM});
#if CUBLAS_VERSION >= 120900
static_assert(int{CUBLASLT_MATMUL_DESC_A_SCALE_MODE} == int{::CUBLASLT_MATMUL_DESC_A_SCALE_MODE} &&
              int{CUBLASLT_MATMUL_DESC_B_SCALE_MODE} == int{::CUBLASLT_MATMUL_DESC_B_SCALE_MODE});
static_assert(int{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F} ==
                  int{::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F} &&
              int{CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F} ==
                  int{::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F} &&
              int{CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F} ==
                  int{::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F});
#endif
static_assert(int{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES} ==
              int{::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES});
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(::cublasLtMatmulAlgo_t));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(::cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) ==
              offsetof(::cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) ==
              offsetof(::cublasLtMatmulHeuristicResult_t, workspaceSize));

#define STRETTO_CUBLASLT_COMPARE(member, symbol, result, parameters)                        \
  static_assert(same_signature(decltype(CublasLtLibrary::member){}, decltype(&::symbol){}), \
                #symbol);
STRETTO_CUBLASLT_FUNCTIONS(STRETTO_CUBLASLT_COMPARE)
#undef STRETTO_CUBLASLT_COMPARE

#endif  // STRETTO_HAS_CUBLASLT_HEADER

TEST(CublasLtSearch, AMissingFileIsAnErrorThatSaysHow) {
  CublasLtSearch search = open_cublaslt({"/nowhere/libcublasLt.so.13"});
  EXPECT_NE(search.error.find("no cuBLASLt"), std::string::npos) << search.error;
  EXPECT_NE(search.error.find("/nowhere/libcublasLt.so.13"), std::string::npos) << search.error;
  EXPECT_NE(search.error.find("STRETTO_CUBLASLT"), std::string::npos) << search.error;
}

TEST(CublasLtSearch, AnotherLibraryIsRefusedByName) {
  CublasLtSearch search = open_cublaslt({"libc.so.6"});
  EXPECT_NE(search.error.find("libc.so.6 has no cublasLt"), std::string::npos) << search.error;
}

TEST(CublasLtSearch, WithoutALibraryItsUseIsADeviceError) {
  if (search_cublaslt().error.empty()) GTEST_SKIP() << "this machine has cuBLASLt";
  EXPECT_THROW(cublaslt_description(), DeviceError);
}

// Every algorithm's product against sums in double; not square, so that a swapped side shows.
TEST(CublasLtGemm, EveryAlgorithmGivesTheProduct) {
  if (num_devices() == 0) GTEST_SKIP() << "no GPU";
  if (CublasLtSearch search = search_cublaslt(); !search.error.empty())
    GTEST_SKIP() << search.error;
  constexpr std::size_t m = 72, n = 136, k = 200;
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 bits(seed);
  auto random = [&](std::size_t count) {
    std::vector<float> values(count);
    for (float& v : values) v = static_cast<float>(bits() >> 40) * 0x1p-23f - 1;
    return values;
  };
  std::vector<float> a = random(m * k), b = random(n * k), c(m * n);

  Device device(0);
  Stream stream(device);
  DeviceMemory on_a(device, 4 * a.size()), on_b(device, 4 * b.size()), on_c(device, 4 * c.size());
  stream.upload(on_a.address(), a.data(), on_a.bytes());
  stream.upload(on_b.address(), b.data(), on_b.bytes());
  CublasLtOperands operands{on_a.address(), on_b.address(), on_c.address()};
  CublasLtGemm gemm(device, {.m = m, .n = n, .k = k, .dtype = DType::kF32});
  EXPECT_EQ(gemm.choose(device, stream, {operands}, 3).size(),
            static_cast<std::size_t>(gemm.num_algorithms()));
  stream.fill_bytes(on_c.address(), 0xff, on_c.bytes());
  gemm.run(stream, operands);
  stream.download(c.data(), on_c.address(), on_c.bytes());
  stream.synchronize();
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < k; ++l) sum += double{a[i * k + l]} * double{b[j * k + l]};
      ASSERT_NEAR(c[i * n + j], sum, 1e-4) << "row " << i << " column " << j;
    }
  }
}

}  // namespace
}  // namespace stretto::cuda
