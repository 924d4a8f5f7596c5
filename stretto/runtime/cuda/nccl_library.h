// Finding and opening NCCL: the table of its functions that nccl.cc calls. Names, values and
// signatures are those of NVIDIA's NCCL reference; nccl_test.cc compares them with nccl.h where
// that file is installed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "stretto/runtime/cuda/driver_types.h"

namespace stretto::cuda {

using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t : int { ncclSuccess = 0 };
enum ncclRedOp_t : int { ncclSum = 0 };
enum ncclDataType_t : int { ncclInt32 = 2, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 };

// member of NcclLibrary, symbol, result, parameter types.
#define STRETTO_NCCL_FUNCTIONS(X)                                                          \
  X(get_version, ncclGetVersion, ncclResult_t, (int*))                                     \
  X(error_string, ncclGetErrorString, const char*, (ncclResult_t))                         \
  X(comm_init_all, ncclCommInitAll, ncclResult_t, (ncclComm_t*, int, const int*))          \
  X(get_unique_id, ncclGetUniqueId, ncclResult_t, (ncclUniqueId*))                         \
  X(comm_init_rank, ncclCommInitRank, ncclResult_t, (ncclComm_t*, int, ncclUniqueId, int)) \
  X(comm_destroy, ncclCommDestroy, ncclResult_t, (ncclComm_t))                             \
  X(group_start, ncclGroupStart, ncclResult_t, ())                                         \
  X(group_end, ncclGroupEnd, ncclResult_t, ())                                             \
  X(all_gather, ncclAllGather, ncclResult_t,                                               \
    (const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, CUstream))               \
  X(reduce_scatter, ncclReduceScatter, ncclResult_t,                                       \
    (const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream))  \
  X(all_reduce, ncclAllReduce, ncclResult_t,                                               \
    (const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream))  \
  X(send, ncclSend, ncclResult_t,                                                          \
    (const void*, std::size_t, ncclDataType_t, int, ncclComm_t, CUstream))                 \
  X(receive, ncclRecv, ncclResult_t,                                                       \
    (void*, std::size_t, ncclDataType_t, int, ncclComm_t, CUstream))

struct NcclLibrary {
#define STRETTO_NCCL_MEMBER(member, symbol, result, parameters) result(*member) parameters;
  STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_MEMBER)
#undef STRETTO_NCCL_MEMBER
  int version = 0;             // 22809
  std::filesystem::path path;  // of the file that was opened
};

// What a search found: a library, or why there is none.
struct NcclSearch {
  NcclLibrary library{};
  std::string error;  // empty where `library` is usable
};

// Tries the names in turn; a name without a slash is looked for by the loader. Sets
// NCCL_NVLS_ENABLE=0 in the environment first: multicast stays off, because a program that uses it
// can put a shared host's GPUs out of service.
NcclSearch open_nccl(const std::vector<std::filesystem::path>& names);

// STRETTO_NCCL if set; else the loader's directories, /usr/local/cuda/lib64, and the package
// `nvidia` of python3.
NcclSearch search_nccl();

// Opened at the first call and kept; DeviceError where there is none.
const NcclLibrary& nccl_library();

// DeviceError "<what>: <text>" unless `result` is success.
void check(ncclResult_t result, const char* what);

}  // namespace stretto::cuda
