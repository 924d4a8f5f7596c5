#include "stretto/runtime/cuda/cublaslt.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/base/statistics.h"
#include "stretto/runtime/cuda/cublaslt_library.h"

namespace stretto::cuda {
namespace {

constexpr int kMaxAlgorithms = 16;
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    default:
      throw UserError(
          fmt::format("cuBLASLt: dtype {}, need f32, f16, bf16 or f8e4m3", name(dtype)));
  }
}

// A handle of the library that its destroy function of CublasLtLibrary ends.
template <typename Handle, cublasStatus_t (*CublasLtLibrary::*kDestroy)(Handle)>
class LtOwned {
 public:
  LtOwned() = default;
  LtOwned(const LtOwned&) = delete;
  LtOwned& operator=(const LtOwned&) = delete;
  ~LtOwned() {
    if (handle_ != nullptr) (cublaslt_library().*kDestroy)(handle_);
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

using Handle = LtOwned<cublasLtHandle_t, &CublasLtLibrary::destroy>;
using Desc = LtOwned<cublasLtMatmulDesc_t, &CublasLtLibrary::desc_destroy>;
using Layout = LtOwned<cublasLtMatrixLayout_t, &CublasLtLibrary::layout_destroy>;
using Preference = LtOwned<cublasLtMatmulPreference_t, &CublasLtLibrary::preference_destroy>;

const void* pointer(CUdeviceptr address) { return reinterpret_cast<const void*>(address); }

}  // namespace

struct CublasLtGemm::State {
  State(const Device& device, const CublasLtGemmDesc& desc);
  void set_scale_modes(CublasLtScales scales);
  void set_scale_pointers(const CublasLtOperands& operands) const;
  void run(const Stream& stream, const CublasLtOperands& operands, int algorithm) const;

  bool scaled = false;
  const CublasLtLibrary& lt = cublaslt_library();
  DeviceMemory workspace;
  Handle handle;
  Desc operation;
  Layout a, b, c;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  int chosen = 0;
};

// The library is column-major: a row-major matrix is its transpose to it. c^T = b * a^T, with b the
// transpose of what it sees and a^T just what it sees.
CublasLtGemm::State::State(const Device& device, const CublasLtGemmDesc& desc)
    : workspace(device, kWorkspaceBytes) {
  cudaDataType_t type = data_type(desc.dtype);
  ContextScope scope(*device.context());
  check(lt.create(handle.out()), "cublasLtCreate");
  check(lt.desc_create(operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDesc");
  cublasOperation_t b_op = CUBLAS_OP_T, a_op = CUBLAS_OP_N;
  check(lt.desc_set(operation.get(), CUBLASLT_MATMUL_DESC_TRANSA, &b_op, sizeof(b_op)), "TRANSA");
  check(lt.desc_set(operation.get(), CUBLASLT_MATMUL_DESC_TRANSB, &a_op, sizeof(a_op)), "TRANSB");
  set_scale_modes(desc.scales);
  cudaDataType_t c_type = type == CUDA_R_8F_E4M3 ? CUDA_R_16BF : type;
  auto make = [&](Layout& layout, cudaDataType_t of, std::int64_t rows, std::int64_t cols) {
    check(lt.layout_create(layout.out(), of, static_cast<std::uint64_t>(cols),
                           static_cast<std::uint64_t>(rows), cols),
          "cublasLtMatrixLayoutCreate");
  };
  make(a, type, desc.m, desc.k);  // row-major [rows, cols]
  make(b, type, desc.n, desc.k);
  make(c, c_type, desc.m, desc.n);

  Preference preference;
  check(lt.preference_create(preference.out()), "cublasLtMatmulPreferenceCreate");
  check(lt.preference_set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                          &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
        "MAX_WORKSPACE_BYTES");
  std::vector<cublasLtMatmulHeuristicResult_t> found(kMaxAlgorithms);
  int count = 0;
  check(lt.heuristic(handle.get(), operation.get(), b.get(), a.get(), c.get(), c.get(),
                     preference.get(), kMaxAlgorithms, found.data(), &count),
        "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& f = found[static_cast<std::size_t>(i)];
    if (f.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(f.algo);
  }
  if (algorithms.empty()) {
    throw DeviceError(fmt::format("cuBLASLt has no algorithm for m={} n={} k={} {}", desc.m, desc.n,
                                  desc.k, name(desc.dtype)));
  }
}

// Its A is our b. Sums stay in the tensor core, as they do in ours with row-wise scales.
void CublasLtGemm::State::set_scale_modes(CublasLtScales scales) {
  scaled = scales != CublasLtScales::kNone;
  if (!scaled) return;
  bool rows = scales == CublasLtScales::kRowWise;
  std::int8_t fast = rows ? 1 : 0;
  cublasLtMatmulMatrixScale_t of_b = rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                          : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  cublasLtMatmulMatrixScale_t of_a =
      rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value, const char* name) {
    check(lt.desc_set(operation.get(), what, &value, sizeof(value)), name);
  };
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast, "FAST_ACCUM");
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_b, "A_SCALE_MODE");
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_a, "B_SCALE_MODE");
  // The guesses want to see an address; run() gives the real ones.
  set_scale_pointers({.scale_a = workspace.address(), .scale_b = workspace.address()});
}

void CublasLtGemm::State::set_scale_pointers(const CublasLtOperands& operands) const {
  if (!scaled) return;
  const void *of_b = pointer(operands.scale_b), *of_a = pointer(operands.scale_a);
  check(lt.desc_set(operation.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &of_b, sizeof(of_b)),
        "A_SCALE_POINTER");
  check(lt.desc_set(operation.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_a, sizeof(of_a)),
        "B_SCALE_POINTER");
}

void CublasLtGemm::State::run(const Stream& stream, const CublasLtOperands& operands,
                              int algorithm) const {
  stream.make_current();
  set_scale_pointers(operands);
  const float alpha = 1, beta = 0;
  auto* out = reinterpret_cast<void*>(operands.c);
  check(lt.matmul(handle.get(), operation.get(), &alpha, pointer(operands.b), b.get(),
                  pointer(operands.a), a.get(), &beta, out, c.get(), out, c.get(),
                  &algorithms[static_cast<std::size_t>(algorithm)],
                  reinterpret_cast<void*>(workspace.address()), workspace.bytes(), stream.handle()),
        "cublasLtMatmul");
}

CublasLtGemm::CublasLtGemm(const Device& device, const CublasLtGemmDesc& desc)
    : state_(std::make_unique<State>(device, desc)) {}
CublasLtGemm::~CublasLtGemm() = default;
CublasLtGemm::CublasLtGemm(CublasLtGemm&&) noexcept = default;
CublasLtGemm& CublasLtGemm::operator=(CublasLtGemm&&) noexcept = default;

int CublasLtGemm::num_algorithms() const { return static_cast<int>(state_->algorithms.size()); }

std::vector<double> CublasLtGemm::choose(const Device& device, const Stream& stream,
                                         const std::vector<CublasLtOperands>& sets, int rounds) {
  STRETTO_CHECK(!sets.empty() && rounds > 0, "something to time the algorithms on");
  State& s = *state_;
  std::vector<std::vector<double>> samples(s.algorithms.size());
  std::vector<Event> events;
  for (std::size_t i = 0; i <= s.algorithms.size(); ++i) {
    events.emplace_back(device, Event::Timing::kOn);
  }
  std::size_t set = 0;
  for (int round = -1; round < rounds; ++round) {  // the first loads the kernels
    for (std::size_t i = 0; i < s.algorithms.size(); ++i) {
      stream.record(events[i]);
      s.run(stream, sets[set++ % sets.size()], static_cast<int>(i));
    }
    stream.record(events.back());
    stream.synchronize();
    if (round < 0) continue;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      samples[i].push_back(elapsed_ms(events[i], events[i + 1]));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_one : samples) medians.push_back(median(of_one));
  s.chosen = static_cast<int>(std::min_element(medians.begin(), medians.end()) - medians.begin());
  return medians;
}

int CublasLtGemm::chosen() const { return state_->chosen; }

void CublasLtGemm::run(const Stream& stream, const CublasLtOperands& operands) const {
  state_->run(stream, operands, state_->chosen);
}

std::string cublaslt_description() {
  const CublasLtLibrary& lt = cublaslt_library();
  return fmt::format("cuBLASLt {}.{}.{} ({})", lt.version / 10000, lt.version / 100 % 100,
                     lt.version % 100, lt.path.string());
}

}  // namespace stretto::cuda
