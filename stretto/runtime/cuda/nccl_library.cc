#include "stretto/runtime/cuda/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iterator>

#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/library_search.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

constexpr const char* kNcclSonames[] = {"libnccl.so.2"};
constexpr const char* kNcclWheelFolders[] = {"nccl/lib"};  // below a directory `nvidia`

// Empty where the library is usable.
std::string load(const fs::path& name, NcclLibrary& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  std::string missing;
#define STRETTO_NCCL_LOAD(member, symbol, result, parameters)                          \
  library.member = reinterpret_cast<decltype(library.member)>(dlsym(handle, #symbol)); \
  if (library.member == nullptr) missing = #symbol;
  STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_LOAD)
#undef STRETTO_NCCL_LOAD
  if (!missing.empty()) return fmt::format("{} has no {}", name.string(), missing);
  if (library.get_version(&library.version) != ncclSuccess) {
    return fmt::format("{} does not tell its version", name.string());
  }
  library.path = file_of(reinterpret_cast<const void*>(library.get_version), name);
  return "";
}

}  // namespace

NcclSearch open_nccl(const std::vector<fs::path>& names) {
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/1);
  NcclSearch search;
  search.error = open_first(names, load, search.library);
  if (!search.error.empty()) {
    search.error = fmt::format(
        "no NCCL: {} (install the package libnccl2 or the Python package nvidia-nccl, or name the "
        "file in STRETTO_NCCL)",
        search.error);
  }
  return search;
}

NcclSearch search_nccl() {
  if (const char* named = std::getenv("STRETTO_NCCL"); named != nullptr && *named != '\0') {
    return open_nccl({named});
  }
  std::vector<fs::path> names(std::begin(kNcclSonames), std::end(kNcclSonames));
  add_files(names, "/usr/local/cuda/lib64", kNcclSonames);
  return search_library(open_nccl, names, kNcclWheelFolders, kNcclSonames);
}

const NcclLibrary& nccl_library() {
  static const NcclSearch search = search_nccl();
  if (!search.error.empty()) throw DeviceError(search.error);
  return search.library;
}

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw DeviceError(fmt::format("{}: {}", what, nccl_library().error_string(result)));
}

}  // namespace stretto::cuda
