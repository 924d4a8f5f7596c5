#include "stretto/runtime/processes/bootstrap_address.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

constexpr int kMaxPort = 65535;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

int number(const char* name, int lo, int hi) {
  std::string text = variable(name);
  if (text.empty()) {
    throw UserError(fmt::format("{} is not set: torchrun and `stretto launch` set it", name));
  }
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lo || value > hi) {
    throw UserError(fmt::format("{} is '{}': need a whole number from {} to {}", name,
                                printable(text), lo, hi));
  }
  return value;
}

// A process may have lost the descriptor on its way here, or have another under that number.
bool listens_at(int fd, int port) {
  int accepts = 0;
  socklen_t length = sizeof accepts;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &length) != 0 || accepts == 0) {
    return false;
  }
  sockaddr_in6 address{};  // holds IPv4 too, with the port at the same place
  length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  return ntohs(address.sin6_port) == port;
}

}  // namespace

int derived_port(int master_port) {
  constexpr int kFirst = 1024, kStep = 1717;
  int port = master_port + kStep;
  return port > kMaxPort ? port - kMaxPort - 1 + kFirst : port;
}

std::optional<BootstrapAddress> bootstrap_address_of_environment() {
  if (variable("RANK").empty() && variable("WORLD_SIZE").empty()) return std::nullopt;
  BootstrapAddress at;
  at.size = number("WORLD_SIZE", 1, 1 << 20);
  at.rank = number("RANK", 0, at.size - 1);
  if (std::string address = variable("MASTER_ADDR"); !address.empty()) at.address = address;
  if (!variable("STRETTO_MASTER_PORT").empty()) {
    at.port = number("STRETTO_MASTER_PORT", 1, kMaxPort);
  } else if (at.size > 1) {
    at.port = derived_port(number("MASTER_PORT", 1, kMaxPort));
  }
  at.job = variable("TORCHELASTIC_RUN_ID");
  if (at.rank == 0 && !variable("STRETTO_LISTENER").empty()) {
    int fd = number("STRETTO_LISTENER", 0, 1 << 20);
    if (listens_at(fd, at.port)) at.listener = fd;
  }
  return at;
}

}  // namespace stretto
