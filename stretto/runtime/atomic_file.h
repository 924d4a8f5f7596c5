// A file that appears whole or not at all: written to a temporary name in the same directory and
// renamed by commit(). A path that names a device or a pipe (/dev/stdout) is written directly.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace stretto {

// Every failure is a UserError naming the path and the reason; the temporary file is then removed.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;       // as given, for messages
  std::filesystem::path target_;     // behind symbolic links
  std::filesystem::path temporary_;  // empty where written directly
  int fd_ = -1;
};

// For work whose result goes to `path`: the UserError that the file would meet in the end, before
// the work begins. Leaves nothing behind; a full disk shows only when it is written.
void check_writable(const std::filesystem::path& path);

}  // namespace stretto
