// A file that names the server while it is ready, for scripts that wait for it: not there before,
// nor afterwards, however the server ends, if not by SIGKILL. Comes after atomic_file.h.
#pragma once

#include <filesystem>
#include <string>

namespace stretto {

class ReadyFile {
 public:
  // An empty path: no file. Removes an earlier server's. UserError for a path that cannot be
  // written.
  explicit ReadyFile(const std::string& path);
  ~ReadyFile() { withdraw(); }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  // Appears with this line, whole.
  void announce(const std::string& url);
  // Disappears, before what takes long at the end.
  void withdraw();

 private:
  std::filesystem::path path_;
};

}  // namespace stretto
