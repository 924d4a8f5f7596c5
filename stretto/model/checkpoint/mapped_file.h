// A regular file mapped read-only into memory: the bytes under a safetensors file. Nothing is
// copied; pages are read when touched. A file that another process truncates while it is mapped
// faults on access, as with every mapping; apps/cut_short.h tells it then. One that is removed, or
// replaced by another, stays as it was.
#pragma once

#include <cstddef>
#include <ctime>
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
  // UserError naming `path` where another program has written to the file since it was mapped.
  void check_unchanged(const std::filesystem::path& path) const;

 private:
  std::span<const std::byte> bytes_;
  int fd_ = -1;             // the file's, whoever has its name by now
  timespec modified_ = {};  // when it was mapped
};

}  // namespace stretto
