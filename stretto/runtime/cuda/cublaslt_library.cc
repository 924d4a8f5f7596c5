#include "stretto/runtime/cuda/cublaslt_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iterator>

#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/library_search.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

constexpr const char* kCublasltSonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
// Where the wheels of 13 and of 12 put it, below a directory `nvidia`.
constexpr const char* kCublasltWheelFolders[] = {"cu13/lib", "cublas/lib"};

// Empty where the library is usable.
std::string load(const fs::path& name, CublasLtLibrary& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  std::string missing;
#define STRETTO_CUBLASLT_LOAD(member, symbol, result, parameters)                      \
  library.member = reinterpret_cast<decltype(library.member)>(dlsym(handle, #symbol)); \
  if (library.member == nullptr) missing = #symbol;
  STRETTO_CUBLASLT_FUNCTIONS(STRETTO_CUBLASLT_LOAD)
#undef STRETTO_CUBLASLT_LOAD
  if (!missing.empty()) return fmt::format("{} has no {}", name.string(), missing);
  library.version = library.get_version();
  library.path = file_of(reinterpret_cast<const void*>(library.get_version), name);
  return "";
}

}  // namespace

CublasLtSearch open_cublaslt(const std::vector<fs::path>& names) {
  CublasLtSearch search;
  search.error = open_first(names, load, search.library);
  if (!search.error.empty()) {
    search.error = fmt::format(
        "no cuBLASLt: {} (install the Python package nvidia-cublas, or name the file in "
        "STRETTO_CUBLASLT)",
        search.error);
  }
  return search;
}

CublasLtSearch search_cublaslt() {
  if (const char* named = std::getenv("STRETTO_CUBLASLT"); named != nullptr && *named != '\0') {
    return open_cublaslt({named});
  }
  std::vector<fs::path> names(std::begin(kCublasltSonames), std::end(kCublasltSonames));
  add_files(names, "/usr/local/cuda/lib64", kCublasltSonames);
  return search_library(open_cublaslt, names, kCublasltWheelFolders, kCublasltSonames);
}

const CublasLtLibrary& cublaslt_library() {
  static const CublasLtSearch search = search_cublaslt();
  if (!search.error.empty()) throw DeviceError(search.error);
  return search.library;
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{}: {}", what, cublaslt_library().status_string(status)));
}

}  // namespace stretto::cuda
