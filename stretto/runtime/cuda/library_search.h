// Opening one of NVIDIA's libraries at run time, wherever it is installed.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "stretto/runtime/cuda/python_packages.h"

namespace stretto::cuda {

// Those of the file names that `directory` has and nobody else could change (base/own_files.h).
void add_files(std::vector<std::filesystem::path>& names, const std::filesystem::path& directory,
               std::span<const char* const> sonames);

// The file that a function of an open library came from; `name` where that is not known.
std::filesystem::path file_of(const void* function, const std::filesystem::path& name);

// Tries the names in turn; a name without a slash is looked for by the loader. `load` says why it
// cannot use a file, or nothing. Returns nothing, or all that was said.
template <typename Library>
std::string open_first(const std::vector<std::filesystem::path>& names,
                       std::string (*load)(const std::filesystem::path&, Library&),
                       Library& library) {
  std::string tried;
  for (const std::filesystem::path& name : names) {
    std::string error = load(name, library);
    if (error.empty()) return "";
    tried += (tried.empty() ? "" : "; ") + error;
  }
  return tried.empty() ? "found nowhere" : tried;
}

// What `open` finds under these names, or else in the packages of python3, below each of which the
// folders may have files of these names.
template <typename Search>
Search search_library(Search (*open)(const std::vector<std::filesystem::path>&),
                      const std::vector<std::filesystem::path>& names,
                      std::span<const char* const> folders, std::span<const char* const> sonames) {
  Search search = open(names);
  if (search.error.empty()) return search;
  std::vector<std::filesystem::path> packaged;
  for (const std::filesystem::path& package : python_packages()) {
    for (const char* folder : folders) add_files(packaged, package / folder, sonames);
  }
  return packaged.empty() ? search : open(packaged);
}

}  // namespace stretto::cuda
