#include "stretto/runtime/cuda/library_search.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/base/own_files.h"

namespace stretto::cuda {
namespace fs = std::filesystem;

void add_files(std::vector<fs::path>& names, const fs::path& directory,
               std::span<const char* const> sonames) {
  for (const char* soname : sonames) {
    std::error_code error;
    fs::path file = directory / soname;
    if (!fs::exists(file, error)) continue;
    if (std::string why = why_not_own(file); why.empty()) {
      names.push_back(file);
    } else {
      log_warning(fmt::format("{}: passed over, since others could put code there: {}",
                              file.string(), why));
    }
  }
}

fs::path file_of(const void* function, const fs::path& name) {
  Dl_info where{};
  return dladdr(function, &where) != 0 ? fs::path(where.dli_fname) : name;
}

}  // namespace stretto::cuda
