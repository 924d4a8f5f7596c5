#include "stretto/runtime/ready_file.h"

#include <system_error>

#include "stretto/runtime/atomic_file.h"

namespace stretto {

ReadyFile::ReadyFile(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  check_writable(path_);
  withdraw();
}

void ReadyFile::announce(const std::string& url) {
  if (path_.empty()) return;
  AtomicFile file(path_);
  file.write(url + "\n");
  file.commit();
}

void ReadyFile::withdraw() {
  std::error_code error;  // of what is no longer there
  // Devices and pipes stay, and what a link leads to.
  if (std::filesystem::is_regular_file(path_, error)) std::filesystem::remove(path_, error);
}

}  // namespace stretto
