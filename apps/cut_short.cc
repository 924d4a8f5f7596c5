#include "apps/cut_short.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stretto {
namespace {

// Here is only what a signal handler may call: no allocation, no lock.

void write_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(STDERR_FILENO, text.data(), text.size());
    if (done <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

std::uintptr_t take_hex(std::string_view& text) {
  std::uintptr_t out = 0;
  while (!text.empty()) {
    const char c = text.front();
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(c >= 'a' && c <= 'f')) break;
    out = out * 16 + static_cast<std::uintptr_t>(is_digit ? c - '0' : c - 'a' + 10);
    text.remove_prefix(1);
  }
  return out;
}

// The path of a line of /proc/self/maps whose range has `address`; else empty.
std::string_view path_of(std::string_view line, std::uintptr_t address) {
  const std::uintptr_t begin = take_hex(line);
  if (line.empty() || line.front() != '-') return {};
  line.remove_prefix(1);
  const std::uintptr_t end = take_hex(line);
  const std::size_t path = line.find('/');
  if (address < begin || address >= end || path == line.npos) return {};
  return line.substr(path);
}

void tell(std::string_view path) {
  write_text("stretto: error: ");
  write_text(path);
  write_text(": was cut short or cannot be read any more, while it was in use\n");
  ::_exit(2);
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> text;
  std::size_t size = 0;
  for (;;) {
    const ssize_t got = ::read(maps, text.data() + size, text.size() - size);
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
    std::string_view left(text.data(), size);
    for (std::size_t end; (end = left.find('\n')) != left.npos; left.remove_prefix(end + 1)) {
      const std::string_view path = path_of(left.substr(0, end), address);
      if (!path.empty()) tell(path);
    }
    if (left.size() == text.size()) break;  // no path is as long
    size = left.size();
    std::memmove(text.data(), left.data(), size);
  }
  std::signal(number, SIG_DFL);  // of something else: returning repeats it
}

}  // namespace

void tell_files_cut_short() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace stretto
