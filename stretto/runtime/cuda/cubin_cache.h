// Compiled kernels on disk, named by the content they were compiled from. An entry appears whole or
// not at all; one that is truncated, damaged or of another key is not found and written anew. Where
// they take more than the limit, those not used for longest go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::cuda {

// May be used by any number of threads and processes on one directory at the same time.
class CubinCache {
 public:
  CubinCache(std::filesystem::path directory, std::uint64_t max_bytes);

  // `key` is everything that decides the result: source, options, compiler version. What is found
  // counts as used now.
  std::optional<KernelImage> find(const std::string& key) const;

  // A directory that cannot be written is logged as a warning: the next run compiles again. This
  // entry stays even if it alone is over the limit.
  void insert(const std::string& key, const KernelImage& image) const;

  std::filesystem::path entry(const std::string& key) const;

 private:
  void make_room(const std::filesystem::path& kept) const;

  std::filesystem::path directory_;
  std::uint64_t max_bytes_;
};

}  // namespace stretto::cuda
