#include "stretto/runtime/cuda/library_search.h"

#include <dlfcn.h>

namespace stretto::cuda {
namespace fs = std::filesystem;

void add_files(std::vector<fs::path>& names, const fs::path& directory,
               std::span<const char* const> sonames) {
  for (const char* soname : sonames) {
    std::error_code error;
    if (fs::exists(directory / soname, error)) names.push_back(directory / soname);
  }
}

fs::path file_of(const void* function, const fs::path& name) {
  Dl_info where{};
  return dladdr(function, &where) != 0 ? fs::path(where.dli_fname) : name;
}

}  // namespace stretto::cuda
