// NVIDIA's collectives, found at run time: what ours are measured against, and a candidate where a
// program may use the vendor's. One process drives all GPUs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/runtime/cuda/nccl_library.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto::cuda {

// One rank's share of a collective: addresses on its own GPU, and the stream it is enqueued on.
struct NcclPart {
  const Stream* stream = nullptr;
  CUdeviceptr from = 0, to = 0;
};

// Rank i is GPU ordinals[i]. Every call names the parts of all ranks in their order, only enqueues,
// and may be captured where all its streams are being captured. The first call of a kind connects
// the GPUs and may wait for what runs on them. DeviceError where the library refuses; UserError for
// a dtype other than f32, bf16, f16 and i32.
class NcclRanks {
 public:
  explicit NcclRanks(const std::vector<int>& ordinals);
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  int size() const { return static_cast<int>(comms_.size()); }

  // from [count], to [P, count].
  void all_gather(const std::vector<NcclPart>& parts, std::size_t count, DType dtype) const;
  // from [P, count], to [count].
  void reduce_scatter(const std::vector<NcclPart>& parts, std::size_t count, DType dtype) const;
  // from [count], to [count].
  void all_reduce(const std::vector<NcclPart>& parts, std::size_t count, DType dtype) const;
  // from [P, count], to [P, count]: block d goes to rank d.
  void all_to_all(const std::vector<NcclPart>& parts, std::size_t count, DType dtype) const;

 private:
  template <typename Enqueue>
  void grouped(const std::vector<NcclPart>& parts, const Enqueue& enqueue) const;

  const NcclLibrary& nccl_;
  std::vector<ncclComm_t> comms_;
};

// "NCCL 2.28.9 (path)".
std::string nccl_description();

}  // namespace stretto::cuda
