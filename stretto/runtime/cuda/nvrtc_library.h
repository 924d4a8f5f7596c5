// Finding and opening NVRTC: the table of its functions that nvrtc.cc calls. Names and values are
// those of NVIDIA's NVRTC reference; driver_types_test.cc compares them with nvrtc.h where that
// file is installed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::cuda {

using nvrtcProgram = struct nvrtcProgram_st*;

enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
};

#define STRETTO_NVRTC_FUNCTIONS(X)                                                              \
  X(version, nvrtcVersion, nvrtcResult, (int*, int*))                                           \
  X(error_string, nvrtcGetErrorString, const char*, (nvrtcResult))                              \
  X(create_program, nvrtcCreateProgram, nvrtcResult,                                            \
    (nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*))     \
  X(compile_program, nvrtcCompileProgram, nvrtcResult, (nvrtcProgram, int, const char* const*)) \
  X(destroy_program, nvrtcDestroyProgram, nvrtcResult, (nvrtcProgram*))                         \
  X(get_log_size, nvrtcGetProgramLogSize, nvrtcResult, (nvrtcProgram, std::size_t*))            \
  X(get_log, nvrtcGetProgramLog, nvrtcResult, (nvrtcProgram, char*))                            \
  X(get_cubin_size, nvrtcGetCUBINSize, nvrtcResult, (nvrtcProgram, std::size_t*))               \
  X(get_cubin, nvrtcGetCUBIN, nvrtcResult, (nvrtcProgram, char*))                               \
  X(get_ptx_size, nvrtcGetPTXSize, nvrtcResult, (nvrtcProgram, std::size_t*))                   \
  X(get_ptx, nvrtcGetPTX, nvrtcResult, (nvrtcProgram, char*))

struct NvrtcLibrary {
#define STRETTO_NVRTC_MEMBER(member, symbol, result, parameters) result(*member) parameters;
  STRETTO_NVRTC_FUNCTIONS(STRETTO_NVRTC_MEMBER)
#undef STRETTO_NVRTC_MEMBER
  NvrtcInfo info;
};

// What a search found: a library, or why there is none.
struct NvrtcSearch {
  NvrtcLibrary library{};
  std::string error;  // empty where `library` is usable
};

// Tries the names in turn; a name without a slash is looked for by the loader.
NvrtcSearch open_nvrtc(const std::vector<std::filesystem::path>& names);

// The search of nvrtc_info(), done afresh.
NvrtcSearch search_nvrtc();

// Opened at the first call and kept; DeviceError where there is none.
const NvrtcLibrary& nvrtc_library();

}  // namespace stretto::cuda
