#include "stretto/runtime/cuda/nvtx.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iterator>

#include "stretto/base/log.h"
#include "stretto/runtime/cuda/library_search.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

constexpr const char* kNvtxSonames[] = {"libnvtx3interop.so.1"};
constexpr const char* kNvtxWheelFolders[] = {"cu13/lib", "nvtx/lib"};  // below a directory `nvidia`

// Empty where the library is usable.
std::string load(const fs::path& name, NvtxLibrary& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  auto push = reinterpret_cast<int (*)(const char*)>(dlsym(handle, "nvtxRangePushA"));
  auto pop = reinterpret_cast<int (*)()>(dlsym(handle, "nvtxRangePop"));
  if (push == nullptr || pop == nullptr) return fmt::format("{} has no ranges", name.string());
  library = {.push = push, .pop = pop};
  return "";
}

NvtxLibrary open_for_profiler() {
  const char* profiler = std::getenv("NVTX_INJECTION64_PATH");
  if (profiler == nullptr || *profiler == '\0') return {};
  std::vector<fs::path> names(std::begin(kNvtxSonames), std::end(kNvtxSonames));
  add_files(names, "/usr/local/cuda/lib64", kNvtxSonames);
  NvtxSearch search = search_library(open_nvtx, names, kNvtxWheelFolders, kNvtxSonames);
  if (!search.error.empty()) {
    log_warning(
        fmt::format("a profiler is attached, but launches have no names in it: {} (CUDA 13 "
                    "and the Python package nvidia-nvtx have {})",
                    search.error, kNvtxSonames[0]));
  }
  return search.library;
}

}  // namespace

NvtxSearch open_nvtx(const std::vector<fs::path>& names) {
  NvtxSearch search;
  search.error = open_first(names, load, search.library);
  return search;
}

const NvtxLibrary& nvtx_library() {
  static const NvtxLibrary library = open_for_profiler();
  return library;
}

NvtxRange::NvtxRange(const char* name, const NvtxLibrary& library) {
  if (library.push == nullptr) return;
  library.push(name);
  pop_ = library.pop;
}

NvtxRange::~NvtxRange() {
  if (pop_ != nullptr) pop_();
}

}  // namespace stretto::cuda
