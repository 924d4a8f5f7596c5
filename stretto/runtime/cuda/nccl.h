// NVIDIA's collectives, found at run time: what ours are measured against, and a candidate where a
// program may use the vendor's. One process drives all GPUs, or each its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/nccl_library.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto::cuda {

// One rank's share of a collective: addresses on its own GPU, and the stream it is enqueued on.
struct NcclPart {
  const Stream* stream = nullptr;
  CUdeviceptr from = 0, to = 0;
};

// One process's ranks. Every call names the parts of all of them in their order, only enqueues, and
// may be captured where all its streams are being captured. The first call of a kind connects
// the GPUs and may wait for what runs on them. DeviceError where the library refuses; UserError for
// a dtype other than f32, bf16, f16 and i32.
class NcclRanks {
 public:
  // All ranks: rank i is GPU ordinals[i].
  explicit NcclRanks(const std::vector<int>& ordinals);
  // Rank `rank` of `size`, on `device`; each process has one. Collective: `id` is what one of
  // them got of nccl_unique_id().
  NcclRanks(const Device& device, int rank, int size, const ncclUniqueId& id);
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  int size() const { return size_; }

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
  int size_;
  std::vector<ncclComm_t> comms_;  // of this process's ranks
};

// Where processes find each other.
ncclUniqueId nccl_unique_id();

// "NCCL 2.28.9 (path)".
std::string nccl_description();

}  // namespace stretto::cuda
