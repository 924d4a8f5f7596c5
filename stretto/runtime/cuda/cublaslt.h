// The matrix product of NVIDIA's cuBLASLt, found at run time: what ours is measured against, and a
// candidate where a program may use the vendor's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto::cuda {

// What e4m3 factors are multiplied by, in f32.
enum class CublasLtScales : std::uint8_t {
  kNone,
  kRowWise,  // scale_a [m], scale_b [n]
  kBlock,    // scale_a [k/128, m], scale_b [n/128, k/128] with rows in multiples of four
};

// c[m,n] = a[m,k] * b[n,k]^T, all row-major and of one dtype: f32, bf16 or f16; summed in fp32. Or
// e4m3 with scales and c in bf16.
struct CublasLtGemmDesc {
  std::int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kBF16;
  CublasLtScales scales = CublasLtScales::kNone;
};

// Device addresses, aligned to 256 bytes, which the library's guesses count on.
struct CublasLtOperands {
  CUdeviceptr a = 0, b = 0, c = 0;
  CUdeviceptr scale_a = 0, scale_b = 0;  // where the desc has scales
};

class CublasLtGemm {
 public:
  // Asks the library for its best guesses. DeviceError where there is no library or it cannot
  // compute this; UserError for a dtype it does not take here.
  CublasLtGemm(const Device& device, const CublasLtGemmDesc& desc);
  ~CublasLtGemm();
  CublasLtGemm(CublasLtGemm&&) noexcept;
  CublasLtGemm& operator=(CublasLtGemm&&) noexcept;

  int num_algorithms() const;
  // Times every algorithm `rounds` times, in turn, over the operand sets, and keeps the one with
  // the least median for run(). Returns the medians in milliseconds, in the library's order. Before
  // it is called, run() uses the library's first guess.
  std::vector<double> choose(const Device& device, const Stream& stream,
                             const std::vector<CublasLtOperands>& sets, int rounds = 12);
  int chosen() const;  // index among the guesses

  // Enqueues one product; may be captured. Calls on two streams at a time need two objects: they
  // would share the workspace.
  void run(const Stream& stream, const CublasLtOperands& operands) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "cuBLASLt 13.1.0 (path)".
std::string cublaslt_description();

}  // namespace stretto::cuda
