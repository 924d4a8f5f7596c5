// Compiled kernels on disk, named by the content they were compiled from. An entry appears whole or
// not at all; one that is truncated, damaged or of another key is not found and written anew.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::cuda {

// May be used by any number of threads and processes on one directory at the same time.
class CubinCache {
 public:
  explicit CubinCache(std::filesystem::path directory);

  // `key` is everything that decides the result: source, options, compiler version.
  std::optional<KernelImage> find(const std::string& key) const;

  // A directory that cannot be written is logged as a warning: the next run compiles again.
  void insert(const std::string& key, const KernelImage& image) const;

  std::filesystem::path entry(const std::string& key) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace stretto::cuda
