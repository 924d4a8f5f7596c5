// Names around what the host enqueues, for NVIDIA's profilers (NVTX): their timelines then say
// which launch of which program a kernel, a copy or a gap belongs to. GpuInstance has one around
// every launch. Costs a test of a pointer where no profiler is attached.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stretto::cuda {

// Of libnvtx3interop, the functions that are used; null where there is no profiler or no library.
struct NvtxLibrary {
  int (*push)(const char* name) = nullptr;
  int (*pop)() = nullptr;
};

// What a search found: a library, or why there is none.
struct NvtxSearch {
  NvtxLibrary library{};
  std::string error;  // empty where `library` is usable
};

// Tries the names in turn; a name without a slash is looked for by the loader.
NvtxSearch open_nvtx(const std::vector<std::filesystem::path>& names);

// Opened at the first call where a profiler has set NVTX_INJECTION64_PATH: from the loader's own
// directories, /usr/local/cuda, or the packages of python3 (nvidia-nvtx). A warning in the log
// where none has it.
const NvtxLibrary& nvtx_library();

// Pushes the name and pops it; to be used by one thread.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name, const NvtxLibrary& library = nvtx_library());
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  int (*pop_)() = nullptr;
};

}  // namespace stretto::cuda
