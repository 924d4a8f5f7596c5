// Our declarations of the driver interface and of NVRTC against NVIDIA's headers, where they are
// installed: a wrong value or parameter would be called with garbage on a machine with a GPU.
#include <gtest/gtest.h>

#include <type_traits>

#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/cuda/nvrtc_library.h"

namespace stretto::cuda {
constexpr unsigned kOurPortable = CU_MEMHOSTALLOC_PORTABLE;
constexpr unsigned kOurDeviceMap = CU_MEMHOSTALLOC_DEVICEMAP;
constexpr unsigned kOurRegisterPortable = CU_MEMHOSTREGISTER_PORTABLE;
constexpr unsigned kOurRegisterDeviceMap = CU_MEMHOSTREGISTER_DEVICEMAP;
}  // namespace stretto::cuda

// After our headers: cuda.h makes macros of versioned names and of some flags.
#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>)
#include <cuda.h>
#include <cudaProfiler.h>
#include <nvrtc.h>
#define STRETTO_HAS_CUDA_HEADERS 1
#endif

namespace stretto::cuda {
namespace {

static_assert(sizeof(CUresult) == 4 && sizeof(CUdeviceptr) == 8);
static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 64);
static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8);
static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, attrs) == 40);

#ifdef STRETTO_HAS_CUDA_HEADERS

// Two declarations of one parameter: as wide, and pointers to equally constant, alike things.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using A = std::remove_pointer_t<Ours>;
    using B = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_class_v<A> || std::is_class_v<B>) {
      return std::is_class_v<A> && std::is_class_v<B> && std::is_const_v<A> == std::is_const_v<B>;
    } else {
      return std::is_const_v<A> == std::is_const_v<B> &&
             alike<std::remove_const_t<A>, std::remove_const_t<B>>();
    }
  } else {
    return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_integral_v<Ours> == std::is_integral_v<Theirs> &&
           std::is_enum_v<Ours> == std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
}

template <typename Ours, typename Theirs>
struct SameSignature : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct SameSignature<R (*)(A...), S (*)(B...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return alike<R, S>() && (alike<A, B>() && ...);
    }
  }
  static constexpr bool value = compare();
};

#define SAME_FUNCTION(member, symbol, parameters) \
  static_assert(SameSignature<decltype(Driver::member), decltype(&::symbol)>::value, #symbol);
STRETTO_CUDA_FUNCTIONS(SAME_FUNCTION)
#undef SAME_FUNCTION

#define SAME_FUNCTION(member, symbol, result, parameters) \
  static_assert(SameSignature<decltype(NvrtcLibrary::member), decltype(&::symbol)>::value, #symbol);
STRETTO_NVRTC_FUNCTIONS(SAME_FUNCTION)
#undef SAME_FUNCTION

#define SAME_VALUE(name) static_assert(int{name} == int{::name}, #name)
SAME_VALUE(CUDA_SUCCESS);
SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(CUDA_ERROR_NO_DEVICE);
SAME_VALUE(CUDA_ERROR_NOT_READY);
SAME_VALUE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);
SAME_VALUE(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_VALUE(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_VALUE(CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(CU_MEMORYTYPE_UNIFIED);
SAME_VALUE(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME_VALUE(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME_VALUE(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_INT32);
SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_INT64);
SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME_VALUE(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME_VALUE(CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_NONE);
SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_32B);
SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_64B);
SAME_VALUE(CU_TENSOR_MAP_SWIZZLE_128B);
SAME_VALUE(CU_TENSOR_MAP_L2_PROMOTION_NONE);
SAME_VALUE(CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
SAME_VALUE(CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME_VALUE(CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME_VALUE(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
SAME_VALUE(NVRTC_SUCCESS);
#undef SAME_VALUE

// Enumerators there, plain numbers here.
template <auto ours, auto theirs>
constexpr bool kSame = static_cast<unsigned>(ours) == static_cast<unsigned>(theirs);
static_assert(kSame<cuda::CU_STREAM_NON_BLOCKING, ::CU_STREAM_NON_BLOCKING>);
static_assert(kSame<cuda::CU_EVENT_DISABLE_TIMING, ::CU_EVENT_DISABLE_TIMING>);
static_assert(kSame<cuda::CU_STREAM_WAIT_VALUE_GEQ, ::CU_STREAM_WAIT_VALUE_GEQ>);
static_assert(kSame<cuda::CU_STREAM_WAIT_VALUE_EQ, ::CU_STREAM_WAIT_VALUE_EQ>);
static_assert(kSame<cuda::CU_STREAM_WRITE_VALUE_DEFAULT, ::CU_STREAM_WRITE_VALUE_DEFAULT>);

static_assert(kOurPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kOurDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(kOurRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kOurRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);

static_assert(sizeof(CUmemAllocationProp) == sizeof(::CUmemAllocationProp));
static_assert(offsetof(CUmemAllocationProp, requestedHandleTypes) ==
              offsetof(::CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(::CUmemAllocationProp, location));
static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) ==
              offsetof(::CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(CUmemAllocationProp, allocFlags) ==
              offsetof(::CUmemAllocationProp, allocFlags));
static_assert(sizeof(CUmemAccessDesc) == sizeof(::CUmemAccessDesc));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(::CUmemAccessDesc, flags));
static_assert(offsetof(CUmemLocation, id) == offsetof(::CUmemLocation, id));

static_assert(sizeof(CUlaunchAttributeValue) == sizeof(::CUlaunchAttributeValue));
static_assert(sizeof(CUlaunchAttribute) == sizeof(::CUlaunchAttribute));
static_assert(offsetof(CUlaunchAttribute, value) == offsetof(::CUlaunchAttribute, value));
static_assert(sizeof(CUlaunchConfig) == sizeof(::CUlaunchConfig));
static_assert(offsetof(CUlaunchConfig, sharedMemBytes) ==
              offsetof(::CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(CUlaunchConfig, hStream) == offsetof(::CUlaunchConfig, hStream));
static_assert(offsetof(CUlaunchConfig, attrs) == offsetof(::CUlaunchConfig, attrs));
static_assert(offsetof(CUlaunchConfig, numAttrs) == offsetof(::CUlaunchConfig, numAttrs));
static_assert(sizeof(CUDA_MEMCPY2D) == sizeof(::CUDA_MEMCPY2D));
static_assert(offsetof(CUDA_MEMCPY2D, srcDevice) == offsetof(::CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(CUDA_MEMCPY2D, srcPitch) == offsetof(::CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(CUDA_MEMCPY2D, dstMemoryType) == offsetof(::CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(CUDA_MEMCPY2D, dstDevice) == offsetof(::CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(CUDA_MEMCPY2D, Height) == offsetof(::CUDA_MEMCPY2D, Height));
static_assert(sizeof(CUtensorMap) == sizeof(::CUtensorMap));

TEST(DriverTypes, AgreeWithTheHeaders) { SUCCEED() << "compiled against CUDA " << CUDA_VERSION; }

#else

TEST(DriverTypes, AgreeWithTheHeaders) { GTEST_SKIP() << "cuda.h and nvrtc.h are not installed"; }

#endif

}  // namespace
}  // namespace stretto::cuda
