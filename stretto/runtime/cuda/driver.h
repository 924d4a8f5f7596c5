// The CUDA driver, opened when it is first asked for: a table of the functions that stretto calls.
// A program that never touches a GPU starts and runs on machines without one. device.h, stream.h,
// module.h and tensor_map.h wrap the table in owning types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "stretto/runtime/cuda/driver_types.h"

namespace stretto::cuda {

// member of Driver, symbol of libcuda, parameter types. A symbol with _v2 is the present meaning of
// the unversioned name in the reference.
#define STRETTO_CUDA_FUNCTIONS(X)                                                                  \
  X(get_error_string, cuGetErrorString, (CUresult, const char**))                                  \
  X(get_error_name, cuGetErrorName, (CUresult, const char**))                                      \
  X(init, cuInit, (unsigned))                                                                      \
  X(driver_get_version, cuDriverGetVersion, (int*))                                                \
  X(device_get, cuDeviceGet, (CUdevice*, int))                                                     \
  X(device_get_count, cuDeviceGetCount, (int*))                                                    \
  X(device_get_name, cuDeviceGetName, (char*, int, CUdevice))                                      \
  X(device_total_mem, cuDeviceTotalMem_v2, (std::size_t*, CUdevice))                               \
  X(device_get_attribute, cuDeviceGetAttribute, (int*, CUdevice_attribute, CUdevice))              \
  X(device_can_access_peer, cuDeviceCanAccessPeer, (int*, CUdevice, CUdevice))                     \
  X(device_get_p2p_attribute, cuDeviceGetP2PAttribute,                                             \
    (int*, CUdevice_P2PAttribute, CUdevice, CUdevice))                                             \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                          \
  X(primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                 \
  X(ctx_set_current, cuCtxSetCurrent, (CUcontext))                                                 \
  X(ctx_get_current, cuCtxGetCurrent, (CUcontext*))                                                \
  X(ctx_push_current, cuCtxPushCurrent_v2, (CUcontext))                                            \
  X(ctx_pop_current, cuCtxPopCurrent_v2, (CUcontext*))                                             \
  X(ctx_synchronize, cuCtxSynchronize, ())                                                         \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess, (CUcontext, unsigned))                          \
  X(mem_get_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                   \
  X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr*, std::size_t))                                         \
  X(mem_free, cuMemFree_v2, (CUdeviceptr))                                                         \
  X(mem_host_alloc, cuMemHostAlloc, (void**, std::size_t, unsigned))                               \
  X(mem_free_host, cuMemFreeHost, (void*))                                                         \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2, (CUdeviceptr*, void*, unsigned))    \
  X(mem_host_register, cuMemHostRegister_v2, (void*, std::size_t, unsigned))                       \
  X(mem_host_unregister, cuMemHostUnregister, (void*))                                             \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity,                                 \
    (std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags))                  \
  X(mem_create, cuMemCreate,                                                                       \
    (CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long))  \
  X(mem_release, cuMemRelease, (CUmemGenericAllocationHandle))                                     \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle,                                  \
    (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))          \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle,                              \
    (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType))                             \
  X(mem_address_reserve, cuMemAddressReserve,                                                      \
    (CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long))                     \
  X(mem_address_free, cuMemAddressFree, (CUdeviceptr, std::size_t))                                \
  X(mem_map, cuMemMap,                                                                             \
    (CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long))     \
  X(mem_unmap, cuMemUnmap, (CUdeviceptr, std::size_t))                                             \
  X(mem_set_access, cuMemSetAccess,                                                                \
    (CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t))                               \
  X(memcpy_htod_async, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, std::size_t, CUstream))    \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, std::size_t, CUstream))          \
  X(memcpy_dtod_async, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))    \
  X(memcpy_2d_async, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D*, CUstream))                         \
  X(memcpy_peer_async, cuMemcpyPeerAsync,                                                          \
    (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream))                       \
  X(memset_d8_async, cuMemsetD8Async, (CUdeviceptr, unsigned char, std::size_t, CUstream))         \
  X(memset_d32_async, cuMemsetD32Async, (CUdeviceptr, unsigned, std::size_t, CUstream))            \
  X(stream_create, cuStreamCreateWithPriority, (CUstream*, unsigned, int))                         \
  X(stream_synchronize, cuStreamSynchronize, (CUstream))                                           \
  X(stream_query, cuStreamQuery, (CUstream))                                                       \
  X(stream_destroy, cuStreamDestroy_v2, (CUstream))                                                \
  X(stream_wait_event, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                           \
  X(stream_wait_value64, cuStreamWaitValue64_v2, (CUstream, CUdeviceptr, std::uint64_t, unsigned)) \
  X(stream_write_value64, cuStreamWriteValue64_v2,                                                 \
    (CUstream, CUdeviceptr, std::uint64_t, unsigned))                                              \
  X(stream_begin_capture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                \
  X(stream_end_capture, cuStreamEndCapture, (CUstream, CUgraph*))                                  \
  X(stream_get_capture_info, cuStreamGetCaptureInfo_v3,                                            \
    (CUstream, CUstreamCaptureStatus*, std::uint64_t*, CUgraph*, const CUgraphNode**,              \
     const CUgraphEdgeData**, std::size_t*))                                                       \
  X(event_create, cuEventCreate, (CUevent*, unsigned))                                             \
  X(event_record, cuEventRecord, (CUevent, CUstream))                                              \
  X(event_query, cuEventQuery, (CUevent))                                                          \
  X(event_synchronize, cuEventSynchronize, (CUevent))                                              \
  X(event_elapsed_time, cuEventElapsedTime, (float*, CUevent, CUevent))                            \
  X(event_destroy, cuEventDestroy_v2, (CUevent))                                                   \
  X(module_load_data, cuModuleLoadData, (CUmodule*, const void*))                                  \
  X(module_unload, cuModuleUnload, (CUmodule))                                                     \
  X(module_get_function, cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                \
  X(module_get_global, cuModuleGetGlobal_v2, (CUdeviceptr*, std::size_t*, CUmodule, const char*))  \
  X(func_get_attribute, cuFuncGetAttribute, (int*, CUfunction_attribute, CUfunction))              \
  X(func_set_attribute, cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))               \
  X(launch_kernel_ex, cuLaunchKernelEx, (const CUlaunchConfig*, CUfunction, void**, void**))       \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))   \
  X(graph_upload, cuGraphUpload, (CUgraphExec, CUstream))                                          \
  X(graph_launch, cuGraphLaunch, (CUgraphExec, CUstream))                                          \
  X(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec))                                         \
  X(graph_destroy, cuGraphDestroy, (CUgraph))                                                      \
  X(occupancy_max_active_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor,                      \
    (int*, CUfunction, int, std::size_t))                                                          \
  X(occupancy_max_active_clusters, cuOccupancyMaxActiveClusters,                                   \
    (int*, CUfunction, const CUlaunchConfig*))                                                     \
  X(profiler_start, cuProfilerStart, ())                                                           \
  X(profiler_stop, cuProfilerStop, ())                                                             \
  X(tensor_map_encode_tiled, cuTensorMapEncodeTiled,                                               \
    (CUtensorMap*, CUtensorMapDataType, std::uint32_t, void*, const std::uint64_t*,                \
     const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, CUtensorMapInterleave,      \
     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))

struct Driver {
#define STRETTO_CUDA_MEMBER(member, symbol, parameters) CUresult(*member) parameters;
  STRETTO_CUDA_FUNCTIONS(STRETTO_CUDA_MEMBER)
#undef STRETTO_CUDA_MEMBER
};

// The driver, opened and initialised at the first call; thread-safe. DeviceError where there is no
// libcuda.so.1, where it is older than CUDA 12.3, or where it refuses to start (no device). A
// process that has called this cannot use CUDA in a child made by a plain fork().
const Driver& driver();

// What driver() returns, for tests that put functions of their own into it
// (driver_calls_testing.h).
Driver& driver_table_of_tests();

// Whether driver() would succeed; never throws.
bool has_driver();

// GPUs that the driver shows; 0 without a driver.
int num_devices();

// "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
std::string error_text(CUresult result);

// DeviceError "<what>: <name>: <text>" unless `result` is success. `what` names the call and its
// object.
void check(CUresult result, const char* what);
void check(CUresult result, const std::string& what);

}  // namespace stretto::cuda
