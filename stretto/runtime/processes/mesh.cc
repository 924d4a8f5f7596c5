#include "stretto/runtime/processes/mesh.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/runtime/processes/bootstrap.h"
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

// So long a rank that aborts stays for those that have not connected yet.
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
  if (!fd) refuse_descriptor(fmt::format("rank {}", to), errno);
  int error = 0;
  while (error == 0 && ::connect(fd.get(), name.generic(), name.length) != 0) {
    error = errno == EAGAIN && ms_until(deadline) > 0 ? 0 : errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (error == 0 && send_all(fd.get(), &own, sizeof own, deadline)) return fd;
  throw bootstrap_fault(own.rank, to,
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

// From the bootstrap to a socket between every two ranks.
class Connections {
 public:
  Connections(const BootstrapAddress& at, Fd listener, Bootstrap all, Deadline deadline)
      : at_(at),
        listener_(std::move(listener)),
        all_(std::move(all)),
        deadline_(deadline),
        sockets_(static_cast<std::size_t>(at.size)) {}

  std::vector<Fd> make() {
    try {
      connect_to_lower();
      while (!all_are_connected()) await_something();
      if (at_.rank > 0) send_all(all_.links[0].get(), &kDone, sizeof kDone, deadline_);
    } catch (const Fault& fault) {
      abort_for(fault.record().waited_for);
      throw;
    }
    return std::move(sockets_);
  }

 private:
  static constexpr char kDone = 'd';  // over its link to rank 0: who has a socket to every rank

  const Fd& socket(int r) const { return sockets_[static_cast<std::size_t>(r)]; }
  Fd& link(int r) { return all_.links[static_cast<std::size_t>(r)]; }

  void connect_to_lower() {
    for (int r = 0; r < at_.rank; ++r) {
      auto i = static_cast<std::size_t>(r);
      Greeting own{.token = all_.token, .rank = at_.rank};
      sockets_[i] = connect_local(all_.socket_names[i], own, r, deadline_);
    }
  }

  bool all_are_connected() {
    accept_waiting();
    require_all_here();
    return first_awaited() == at_.size;
  }

  // The lowest rank above whose socket, or whose last word to rank 0, has not come; the size: none.
  // Rank 0 waits for all ranks to be done, since it alone hears a rank end that has not connected.
  int first_awaited() {
    int r = at_.rank + 1;
    while (r < at_.size && socket(r) && (at_.rank > 0 || !link(r))) ++r;
    return r;
  }

  void require_all_here() {
    for (int r = 0; r < at_.size; ++r) {
      if (at_.rank == 0 && link(r)) hear_link(r);
      if (socket(r)) hear_socket(r);
    }
  }

  // A rank that goes says so at its socket before it closes its link.
  void hear_link(int r) {
    char word;
    ssize_t got = ::recv(link(r).get(), &word, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got == 1) return link(r).reset();
    accept_waiting();
    if (socket(r)) hear_socket(r);
    throw ended(r);
  }

  // It may go because another has ended: that one is named where it is known.
  void hear_socket(int r) {
    std::optional<int> blamed = farewell_of(socket(r).get());
    if (blamed) throw ended(*blamed >= 0 && *blamed != at_.rank ? *blamed : r);
  }

  Fault ended(int r) const {
    return bootstrap_fault(at_.rank, r,
                         fmt::format("rank {} ended while the world was being made", r));
  }

  void await_something() {
    int timeout = ms_until(deadline_);
    if (timeout == 0) {
      int r = first_awaited();
      throw bootstrap_fault(at_.rank, r,
                          fmt::format("deadline: rank {} came, but did not connect to {}", r,
                                      socket(r) ? "all" : fmt::format("rank {}", at_.rank)));
    }
    std::vector<pollfd> ready{{.fd = listener_.get(), .events = POLLIN}};
    for (int r = 0; r < at_.size; ++r) {
      ready.push_back({.fd = socket(r).get(), .events = POLLIN});
      if (at_.rank == 0) ready.push_back({.fd = link(r).get(), .events = POLLIN});
    }
    poll_open(ready, timeout);
  }

  // -1: nobody waits, or somebody who is not expected.
  int accept_one() {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && too_many_descriptors(errno)) refuse_descriptor("another rank", errno);
    int r = socket ? greeted_by(socket.get(), all_.token, deadline_) : -1;
    if (r <= at_.rank || r >= at_.size) return -1;
    sockets_[static_cast<std::size_t>(r)] = std::move(socket);
    return r;
  }

  void accept_waiting() {
    while (accept_one() >= 0) {
    }
  }

  // Ranks above that connect only now would take the own end for the reason.
  void abort_for(int blamed) {
    deadline_ = std::min(deadline_, deadline_in(kLateComers));
    int num_missing = 0;
    for (int r = 0; r < at_.size; ++r) {
      if (socket(r)) say_farewell(socket(r).get(), blamed);
      num_missing += r > at_.rank && r != blamed && !socket(r) ? 1 : 0;
    }
    while (num_missing > 0 && ms_until(deadline_) > 0) {
      pollfd ready{.fd = listener_.get(), .events = POLLIN};
      if (::poll(&ready, 1, ms_until(deadline_)) <= 0) continue;
      int r = accept_one();
      if (r < 0) continue;
      say_farewell(socket(r).get(), blamed);
      num_missing -= r != blamed ? 1 : 0;
    }
  }

  const BootstrapAddress& at_;
  Fd listener_;
  Bootstrap all_;
  Deadline deadline_;
  std::vector<Fd> sockets_;  // [world], the own one empty
};

}  // namespace

std::vector<Fd> connect_peers(const BootstrapAddress& at, std::chrono::milliseconds timeout) {
  std::string name = fresh_name();
  Fd listener = listen_local(name, at.size);
  Bootstrap all = bootstrap(at, name, timeout);
  return Connections(at, std::move(listener), std::move(all), deadline_in(timeout)).make();
}

}  // namespace stretto
