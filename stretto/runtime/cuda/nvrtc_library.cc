#include "stretto/runtime/cuda/nvrtc_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <iterator>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/library_search.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

// sm_90a came with 12.0.
constexpr int kOldestMajor = 12;
constexpr const char* kNvrtcSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
// Where the wheels of 13 and of 12 put it, below a directory `nvidia`.
constexpr const char* kNvrtcWheelFolders[] = {"cu13/lib", "cuda_nvrtc/lib"};
constexpr const char* kAdvice =
    "run tools/build, or install the Python package nvidia-cuda-nvrtc, or name the file in "
    "STRETTO_NVRTC";

// The directory of this program and that of the shared object which holds this code: they differ
// where Python loads stretto.
std::vector<fs::path> own_directories() {
  std::vector<fs::path> directories;
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) directories.push_back(program.parent_path());
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&own_directories), &self) != 0) {
    fs::path object = fs::weakly_canonical(self.dli_fname, error);
    if (!error) directories.push_back(object.parent_path());
  }
  return directories;
}

// NVRTC opens its second half by bare name at the first compilation, which the loader finds beside
// it only where it is open already: NVIDIA's wheels are in no directory of the loader.
void open_builtins(const NvrtcInfo& info) {
  fs::path beside =
      info.path.parent_path() / fmt::format("libnvrtc-builtins.so.{}.{}", info.major, info.minor);
  dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);  // else NVRTC searches, and says what is missing
}

// Empty where the library is usable.
std::string load(const fs::path& name, NvrtcLibrary& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  std::string missing;
#define STRETTO_NVRTC_LOAD(member, symbol, result, parameters)                         \
  library.member = reinterpret_cast<decltype(library.member)>(dlsym(handle, #symbol)); \
  if (library.member == nullptr) missing = #symbol;
  STRETTO_NVRTC_FUNCTIONS(STRETTO_NVRTC_LOAD)
#undef STRETTO_NVRTC_LOAD
  if (!missing.empty()) return fmt::format("{} has no {}", name.string(), missing);
  NvrtcInfo& info = library.info;
  library.version(&info.major, &info.minor);
  if (info.major < kOldestMajor) {
    return fmt::format("{} is NVRTC {}.{}: need {}.0 or later", name.string(), info.major,
                       info.minor, kOldestMajor);
  }
  info.path = file_of(reinterpret_cast<const void*>(library.version), name);
  open_builtins(info);
  return "";
}

}  // namespace

NvrtcSearch open_nvrtc(const std::vector<fs::path>& names) {
  NvrtcSearch search;
  search.error = open_first(names, load, search.library);
  if (!search.error.empty()) {
    search.error =
        fmt::format("no NVRTC, the compiler of GPU kernels: {} ({})", search.error, kAdvice);
  }
  return search;
}

NvrtcSearch search_nvrtc() {
  if (fs::path named = env_nvrtc(); !named.empty()) return open_nvrtc({named});
  std::vector<fs::path> names(std::begin(kNvrtcSonames), std::end(kNvrtcSonames));
  add_files(names, "/usr/local/cuda/lib64", kNvrtcSonames);
  for (const fs::path& directory : own_directories()) {
    // build/bin, and bin of a build within it (build/asan/bin).
    for (fs::path above : {directory.parent_path(), directory.parent_path().parent_path()}) {
      for (const char* folder : kNvrtcWheelFolders) {
        add_files(names, above / "cuda" / "nvidia" / folder, kNvrtcSonames);
      }
    }
  }
  return search_library(open_nvrtc, names, kNvrtcWheelFolders, kNvrtcSonames);
}

const NvrtcLibrary& nvrtc_library() {
  static const NvrtcSearch search = search_nvrtc();
  if (!search.error.empty()) throw DeviceError(search.error);
  return search.library;
}

}  // namespace stretto::cuda
