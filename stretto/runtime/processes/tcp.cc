#include "stretto/runtime/processes/tcp.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kRetry{20};

struct FreeAddresses {
  void operator()(addrinfo* a) const { ::freeaddrinfo(a); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const BootstrapAddress& at) {
  addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(at.address.c_str(), std::to_string(at.port).c_str(), &hints, &found);
  if (error != 0) {
    throw UserError(fmt::format("the address of rank 0, '{}': {}", printable(at.address),
                                ::gai_strerror(error)));
  }
  return Addresses(found);
}

// Of one that listens and of all that connect: a closed connection keeps its port for a minute, and
// lets a listener have it only where it was opened so itself.
void let_port_be_reused(int fd) {
  int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

Fd open_listener(const addrinfo& address) {
  Fd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  let_port_be_reused(fd.get());
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return {};
  if (::listen(fd.get(), kBacklog) != 0) return {};
  return fd;
}

bool wait_ready(int fd, short events, Deadline deadline) {
  pollfd ready{.fd = fd, .events = events};
  while (int ms = ms_until(deadline)) {
    int n = ::poll(&ready, 1, ms);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
  return false;
}

// Empty, with what the system says of it in `error`.
Fd try_connect(const addrinfo& address, Deadline deadline, int& error) {
  Fd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = errno;
  if (!fd && too_many_descriptors(error)) refuse_descriptor("rank 0", error);
  if (!fd) return {};
  let_port_be_reused(fd.get());
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  error = errno;
  if (error != EINPROGRESS) return {};
  error = ETIMEDOUT;
  if (!wait_ready(fd.get(), POLLOUT, deadline)) return {};
  socklen_t length = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? std::move(fd) : Fd();
}

// A port of this host connected to from itself may be answered by the connecting socket.
bool is_own_echo(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length);
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length);
  return own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

}  // namespace

// Tried until the deadline where the port is taken: by the listener of the world before, at best.
TcpListener::TcpListener(const BootstrapAddress& at, Deadline deadline) : given_(at.listener) {
  if (given_ >= 0) return;
  Addresses addresses = resolve(at);
  int error = 0;
  do {
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      opened_ = open_listener(*a);
      if (opened_) return;
      error = errno;
    }
    if (error != EADDRINUSE) break;
    std::this_thread::sleep_for(kRetry);
  } while (ms_until(deadline) > 0);
  throw UserError(
      fmt::format("rank 0 cannot listen at {}:{}: {}; STRETTO_MASTER_PORT names "
                  "another port",
                  printable(at.address), at.port, std::strerror(error)));
}

Fd listen_anywhere(int* port) {
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof address;
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!fd || ::bind(fd.get(), generic, length) != 0 || ::listen(fd.get(), kBacklog) != 0 ||
      ::getsockname(fd.get(), generic, &length) != 0) {
    throw UserError(fmt::format("no TCP port to meet at: {}", std::strerror(errno)));
  }
  *port = ntohs(address.sin_port);
  return fd;
}

Fd connect_tcp(const BootstrapAddress& at, Deadline deadline, std::string* why) {
  Addresses addresses = resolve(at);
  int error = 0;
  do {
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      Fd fd = try_connect(*a, deadline, error);
      if (fd && !is_own_echo(fd.get())) return fd;
    }
    std::this_thread::sleep_for(kRetry);
  } while (ms_until(deadline) > 0);
  if (why != nullptr) *why = std::strerror(error);
  return {};
}

bool send_all(int socket, const void* data, std::size_t bytes, Deadline deadline) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::send(socket, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno != EAGAIN || !wait_ready(socket, POLLOUT, deadline))) return false;
    if (n < 0) continue;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool receive_all(int socket, void* data, std::size_t bytes, Deadline deadline) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t n = ::recv(socket, at, bytes, MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno != EAGAIN || !wait_ready(socket, POLLIN, deadline))) return false;
    if (n < 0) continue;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace stretto
