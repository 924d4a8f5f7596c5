// A regular file mapped read-only into memory: the bytes under a safetensors file. Nothing is
// copied; pages are read when touched. A file that another process truncates while it is mapped
// faults on access, as with every mapping.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace stretto {

class MappedFile {
 public:
  // UserError naming the path when it is not a readable regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid while this object, or the one it was moved into, lives. Page-aligned.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace stretto
