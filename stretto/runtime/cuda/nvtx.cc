#include "stretto/runtime/cuda/nvtx.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "stretto/base/log.h"
#include "stretto/runtime/cuda/python_packages.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

constexpr const char* kSoname = "libnvtx3interop.so.1";

std::vector<fs::path> usual_places() {
  std::vector<fs::path> names = {kSoname, fs::path("/usr/local/cuda/lib64") / kSoname};
  for (const fs::path& nvidia : python_packages()) {
    for (const char* folder : {"cu13/lib", "nvtx/lib"}) names.push_back(nvidia / folder / kSoname);
  }
  return names;
}

NvtxLibrary open_for_profiler() {
  const char* profiler = std::getenv("NVTX_INJECTION64_PATH");
  if (profiler == nullptr || *profiler == '\0') return {};
  NvtxLibrary library = open_nvtx(usual_places());
  if (library.push == nullptr) {
    log_warning(fmt::format("a profiler is attached, but there is no {}: launches have no names in "
                            "it (CUDA 13 and the Python package nvidia-nvtx have it)",
                            kSoname));
  }
  return library;
}

}  // namespace

NvtxLibrary open_nvtx(const std::vector<fs::path>& names) {
  for (const fs::path& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    NvtxLibrary library{
        .push = reinterpret_cast<int (*)(const char*)>(dlsym(handle, "nvtxRangePushA")),
        .pop = reinterpret_cast<int (*)()>(dlsym(handle, "nvtxRangePop"))};
    if (library.push != nullptr && library.pop != nullptr) return library;
  }
  return {};
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
