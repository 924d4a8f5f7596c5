#include "stretto/runtime/cuda/nccl.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto::cuda {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI32:
      return ncclInt32;
    default:
      throw UserError(fmt::format("NCCL: dtype {}, need f32, f16, bf16 or i32", name(dtype)));
  }
}

const void* source(CUdeviceptr address) { return reinterpret_cast<const void*>(address); }
void* target(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

NcclRanks::NcclRanks(const std::vector<int>& ordinals)
    : nccl_(nccl_library()),
      size_(static_cast<int>(ordinals.size())),
      comms_(ordinals.size(), nullptr) {
  check(nccl_.comm_init_all(comms_.data(), size_, ordinals.data()), "ncclCommInitAll");
}

NcclRanks::NcclRanks(const Device& device, int rank, int size, const ncclUniqueId& id)
    : nccl_(nccl_library()), size_(size), comms_(1, nullptr) {
  device.make_current();
  check(nccl_.comm_init_rank(comms_.data(), size_, id, rank), "ncclCommInitRank");
}

NcclRanks::~NcclRanks() {
  // In a group: the ranks of one thread wait for each other.
  nccl_.group_start();
  for (ncclComm_t comm : comms_) nccl_.comm_destroy(comm);
  nccl_.group_end();
}

template <typename Enqueue>
void NcclRanks::grouped(const std::vector<NcclPart>& parts, const Enqueue& enqueue) const {
  STRETTO_CHECK(parts.size() == comms_.size(), "a part for every rank of this process");
  check(nccl_.group_start(), "ncclGroupStart");
  try {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      parts[r].stream->make_current();
      enqueue(parts[r], comms_[r], parts[r].stream->handle());
    }
  } catch (...) {
    nccl_.group_end();  // or this thread's later calls would join the group
    throw;
  }
  check(nccl_.group_end(), "ncclGroupEnd");
}

void NcclRanks::all_gather(const std::vector<NcclPart>& parts, std::size_t count,
                           DType dtype) const {
  ncclDataType_t type = nccl_type(dtype);
  grouped(parts, [&](const NcclPart& p, ncclComm_t comm, CUstream stream) {
    check(nccl_.all_gather(source(p.from), target(p.to), count, type, comm, stream),
          "ncclAllGather");
  });
}

void NcclRanks::reduce_scatter(const std::vector<NcclPart>& parts, std::size_t count,
                               DType dtype) const {
  ncclDataType_t type = nccl_type(dtype);
  grouped(parts, [&](const NcclPart& p, ncclComm_t comm, CUstream stream) {
    check(nccl_.reduce_scatter(source(p.from), target(p.to), count, type, ncclSum, comm, stream),
          "ncclReduceScatter");
  });
}

void NcclRanks::all_reduce(const std::vector<NcclPart>& parts, std::size_t count,
                           DType dtype) const {
  ncclDataType_t type = nccl_type(dtype);
  grouped(parts, [&](const NcclPart& p, ncclComm_t comm, CUstream stream) {
    check(nccl_.all_reduce(source(p.from), target(p.to), count, type, ncclSum, comm, stream),
          "ncclAllReduce");
  });
}

void NcclRanks::all_to_all(const std::vector<NcclPart>& parts, std::size_t count,
                           DType dtype) const {
  ncclDataType_t type = nccl_type(dtype);
  std::size_t block_bytes = count * size_bytes(dtype);
  grouped(parts, [&](const NcclPart& p, ncclComm_t comm, CUstream stream) {
    for (int peer = 0; peer < size(); ++peer) {
      std::size_t at = static_cast<std::size_t>(peer) * block_bytes;
      check(nccl_.send(source(p.from + at), count, type, peer, comm, stream), "ncclSend");
      check(nccl_.receive(target(p.to + at), count, type, peer, comm, stream), "ncclRecv");
    }
  });
}

ncclUniqueId nccl_unique_id() {
  ncclUniqueId id{};
  check(nccl_library().get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

std::string nccl_description() {
  const NcclLibrary& nccl = nccl_library();
  return fmt::format("NCCL {}.{}.{} ({})", nccl.version / 10000, nccl.version / 100 % 100,
                     nccl.version % 100, nccl.path.string());
}

}  // namespace stretto::cuda
