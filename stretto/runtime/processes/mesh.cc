#include "stretto/runtime/processes/mesh.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/runtime/processes/introduction.h"
#include "stretto/runtime/processes/peers.h"
#include "stretto/runtime/processes/tcp.h"

namespace stretto {
namespace {

struct Greeting {
  std::uint64_t token = 0;
  std::int32_t rank = -1;
};

struct Name {
  explicit Name(const std::string& text) {
    address.sun_family = AF_UNIX;  // sun_path[0] stays 0: an abstract name
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length;
};

// So long a rank that gives up stays for those that have not connected yet.
constexpr std::chrono::milliseconds kLateComers{1000};
constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

std::string fresh_name() {
  std::random_device random;
  return fmt::format("stretto-{}-{:08x}{:08x}", ::getpid(), random(), random());
}

Fd listen_local(const std::string& text, int backlog) {
  Name name(text);
  Fd fd(::socket(AF_UNIX, kKind, 0));
  if (!fd || ::bind(fd.get(), name.generic(), name.length) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    throw UserError(fmt::format("no local socket for a world: {}", std::strerror(errno)));
  }
  return fd;
}

Fd connect_local(const std::string& text, const Greeting& own, int to, Deadline deadline) {
  Name name(text);
  Fd fd(::socket(AF_UNIX, kKind, 0));
  int error = fd ? 0 : errno;
  while (error == 0 && ::connect(fd.get(), name.generic(), name.length) != 0) {
    error = errno == EAGAIN && ms_until(deadline) > 0 ? 0 : errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (error == 0 && send_all(fd.get(), &own, sizeof own, deadline)) return fd;
  throw meeting_fault(own.rank, to,
                      fmt::format("rank {} ended while the world was being made: {}", to,
                                  std::strerror(error == 0 ? errno : error)));
}

// The rank that greets on `socket`; -1 for somebody else's process.
int greeted_by(int socket, std::uint64_t token, Deadline deadline) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return -1;
  Greeting greeting;
  if (who.uid != ::geteuid() || !receive_all(socket, &greeting, sizeof greeting, deadline)) {
    return -1;
  }
  return greeting.token == token ? greeting.rank : -1;
}

// Whether the process behind has ended without farewell.
bool has_ended(int socket) {
  char byte;
  ssize_t got = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

// From every rank above the own. A rank that does not come may have gone because another ended:
// that one is named where it is known.
void accept_all(const MeetingPoint& at, int listener, std::uint64_t token, Deadline deadline,
                std::vector<Fd>& sockets) {
  auto first_missing = [&] {
    int r = at.rank + 1;
    while (r < at.size && sockets[static_cast<std::size_t>(r)]) ++r;
    return r;
  };
  constexpr int kLookMs = 20;
  while (first_missing() < at.size) {
    for (int r = 0; r < at.size; ++r) {
      const Fd& socket = sockets[static_cast<std::size_t>(r)];
      if (!socket || !has_ended(socket.get())) continue;
      throw meeting_fault(at.rank, r,
                          fmt::format("rank {} ended while the world was being made", r));
    }
    pollfd ready{.fd = listener, .events = POLLIN};
    int timeout = std::min(ms_until(deadline), kLookMs);
    if (timeout == 0) {
      throw meeting_fault(at.rank, first_missing(),
                          fmt::format("deadline: rank {} came, but did not connect to rank {}",
                                      first_missing(), at.rank));
    }
    if (::poll(&ready, 1, timeout) <= 0) continue;
    Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;
    int r = greeted_by(socket.get(), token, deadline);
    if (r > at.rank && r < at.size) sockets[static_cast<std::size_t>(r)] = std::move(socket);
  }
}

// Ranks above that connect only now would take the own end for the reason.
void tell_late_comers(const MeetingPoint& at, int listener, std::uint64_t token, int blamed,
                      Deadline deadline, std::vector<Fd>& sockets) {
  auto is_missing = [&](int r) { return r != blamed && !sockets[static_cast<std::size_t>(r)]; };
  int num_missing = 0;
  for (int r = at.rank + 1; r < at.size; ++r) num_missing += is_missing(r) ? 1 : 0;
  while (num_missing > 0 && ms_until(deadline) > 0) {
    pollfd ready{.fd = listener, .events = POLLIN};
    if (::poll(&ready, 1, ms_until(deadline)) <= 0) continue;
    Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    int r = socket ? greeted_by(socket.get(), token, deadline) : -1;
    if (r <= at.rank || r >= at.size || !is_missing(r)) continue;
    say_farewell(socket.get(), blamed);
    sockets[static_cast<std::size_t>(r)] = std::move(socket);
    --num_missing;
  }
}

}  // namespace

std::vector<Fd> connect_peers(const MeetingPoint& at, std::chrono::milliseconds timeout) {
  std::string name = fresh_name();
  Fd listener = listen_local(name, at.size);
  Introduction all = introduce(at, name, timeout);
  Deadline deadline = deadline_in(timeout);
  std::vector<Fd> sockets(static_cast<std::size_t>(at.size));
  try {
    for (int r = 0; r < at.rank; ++r) {
      auto i = static_cast<std::size_t>(r);
      Greeting own{.token = all.token, .rank = at.rank};
      sockets[i] = connect_local(all.socket_names[i], own, r, deadline);
    }
    accept_all(at, listener.get(), all.token, deadline, sockets);
  } catch (const Fault& fault) {
    for (const Fd& socket : sockets) {
      if (socket) say_farewell(socket.get(), fault.record().waited_for);
    }
    tell_late_comers(at, listener.get(), all.token, fault.record().waited_for,
                     std::min(deadline, deadline_in(kLateComers)), sockets);
    throw;
  }
  return sockets;
}

}  // namespace stretto
