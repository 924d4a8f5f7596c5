#include "stretto/simulator/image.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

namespace stretto::simulator {
namespace {

constexpr char kHead[] = "SIMULATED GPU 1\n";
constexpr std::size_t kHeadBytes = sizeof kHead - 1 + sizeof(std::uint64_t);

std::map<std::string, void*>& opened() {
  static std::map<std::string, void*> all;
  return all;
}
std::mutex opened_mutex;

}  // namespace

std::string image_of(const std::string& object) {
  std::uint64_t bytes = object.size();
  std::string out = kHead;
  out.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  return out + object;
}

void* open_image(const void* image) {
  const auto* head = static_cast<const char*>(image);
  if (std::memcmp(head, kHead, sizeof kHead - 1) != 0) return nullptr;
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, head + sizeof kHead - 1, sizeof bytes);
  std::string object(head + kHeadBytes, bytes);
  std::lock_guard lock(opened_mutex);
  void*& library = opened()[object];
  if (library != nullptr) return library;
  int file = memfd_create("simulated_kernel", MFD_CLOEXEC);
  if (file < 0 ||
      write(file, object.data(), object.size()) != static_cast<ssize_t>(object.size())) {
    return nullptr;
  }
  library = dlopen(fmt::format("/proc/self/fd/{}", file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "simulated GPU: %s\n", dlerror());
  return library;  // the file stays open: the next one has another name
}

}  // namespace stretto::simulator
