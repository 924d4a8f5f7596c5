#include "stretto/runtime/cuda/cublaslt_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/python_packages.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

constexpr const char* kSonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
// Where the wheels of 13 and of 12 put it, below a directory `nvidia`.
constexpr const char* kWheelFolders[] = {"cu13/lib", "cublas/lib"};

void add_files(std::vector<fs::path>& names, const fs::path& directory) {
  for (const char* soname : kSonames) {
    std::error_code error;
    if (fs::exists(directory / soname, error)) names.push_back(directory / soname);
  }
}

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
  Dl_info where{};
  bool known = dladdr(reinterpret_cast<const void*>(library.get_version), &where) != 0;
  library.path = known ? fs::path(where.dli_fname) : name;
  return "";
}

}  // namespace

CublasLtSearch open_cublaslt(const std::vector<fs::path>& names) {
  CublasLtSearch search;
  std::string tried;
  for (const fs::path& name : names) {
    std::string error = load(name, search.library);
    if (error.empty()) return search;
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", error);
  }
  search.error = fmt::format(
      "no cuBLASLt: {} (install the Python package nvidia-cublas, or name the file in "
      "STRETTO_CUBLASLT)",
      tried.empty() ? "found nowhere" : tried);
  return search;
}

CublasLtSearch search_cublaslt() {
  if (const char* named = std::getenv("STRETTO_CUBLASLT"); named != nullptr && *named != '\0') {
    return open_cublaslt({named});
  }
  std::vector<fs::path> names(std::begin(kSonames), std::end(kSonames));
  add_files(names, "/usr/local/cuda/lib64");
  CublasLtSearch search = open_cublaslt(names);
  if (search.error.empty()) return search;
  std::vector<fs::path> packaged;
  for (const fs::path& package : python_packages()) {
    for (const char* folder : kWheelFolders) add_files(packaged, package / folder);
  }
  return packaged.empty() ? search : open_cublaslt(packaged);
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
