#include "stretto/runtime/processes/peers.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "stretto/base/threads.h"

namespace stretto {
namespace {

enum class MessageKind : std::uint32_t { kFarewell = 1, kMemory };

struct Message {
  MessageKind kind = MessageKind::kFarewell;
  std::int32_t blamed = -1;  // kFarewell: the rank because of which the sender goes
  MemoryKey key;             // kMemory
};

// Room for one descriptor beside a message.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

ssize_t send_message(int socket, Message message, int fd) {
  iovec data{.iov_base = &message, .iov_len = sizeof message};
  Control control{};
  msghdr out{.msg_iov = &data, .msg_iovlen = 1};
  if (fd >= 0) {
    out.msg_control = &control;
    out.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&out);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_message(int socket, Message& message, Fd& fd) {
  iovec data{.iov_base = &message, .iov_len = sizeof message};
  Control control{};
  msghdr in{
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got = ::recvmsg(socket, &in, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&in);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int value = -1;
    std::memcpy(&value, CMSG_DATA(header), sizeof value);
    fd = Fd(value);
  }
  return got;
}

int process_behind(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length);
  return who.pid;
}

Fd watch_process(int pid) {
  if (pid <= 0) return {};
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

void say_farewell(int socket, int blamed) {
  send_message(socket, {.kind = MessageKind::kFarewell, .blamed = blamed}, -1);
}

std::optional<int> farewell_of(int socket) {
  Message message;
  ssize_t got = -1;
  // A peer that closes with words of ours unread resets the connection, its own last words intact.
  do {
    got = ::recv(socket, &message, sizeof message, MSG_PEEK | MSG_DONTWAIT);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got == 0) return -1;
  bool is_farewell = got == sizeof message && message.kind == MessageKind::kFarewell;
  return is_farewell ? std::optional<int>(message.blamed) : std::nullopt;
}

Peers::Peers(int rank, std::vector<Fd> sockets)
    : rank_(rank),
      creator_(::getpid()),
      peers_(sockets.size()),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (std::size_t r = 0; r < sockets.size(); ++r) {
    if (!sockets[r]) continue;
    peers_[r].pid = process_behind(sockets[r].get());
    peers_[r].process = watch_process(peers_[r].pid);
    peers_[r].socket = std::move(sockets[r]);
  }
  if (!stop_) refuse_descriptor("a world", errno);
  SignalsBlocked meanwhile;  // they are for the program's own threads
  reader_ = start_thread("the other ranks' messages", [this] { read_all(); });
}

Peers::~Peers() {
  if (::getpid() != creator_) {
    reader_.detach();  // it did not come along into this child
    return;
  }
  int blamed = blamed_.load(std::memory_order_acquire);
  for (int r = 0; r < size() && blamed < 0; ++r) {
    if (state(r) == PeerState::kDied) blamed = r;
  }
  for (Peer& peer : peers_) {
    if (peer.socket) say_farewell(peer.socket.get(), blamed);
  }
  std::uint64_t one = 1;
  static_cast<void>(!::write(stop_.get(), &one, sizeof one));
  reader_.join();
}

PeerState Peers::state(int rank) const {
  return peers_[static_cast<std::size_t>(rank)].state.load(std::memory_order_acquire);
}

int Peers::first_gone(const std::vector<int>& ranks) const {
  int left = -1, died = -1, blamed = -1;
  int said = said_to_be_gone_.load(std::memory_order_acquire);
  for (int i = static_cast<int>(ranks.size()) - 1; i >= 0; --i) {
    int r = ranks[static_cast<std::size_t>(i)];
    if (state(r) == PeerState::kLeft) left = i;
    if (state(r) == PeerState::kDied) died = i;
    if (r == said && r != rank_) blamed = i;
  }
  if (died >= 0) return died;
  return blamed >= 0 ? blamed : left;
}

bool Peers::send(int to, const MemoryKey& key, int fd, Deadline deadline) {
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  while (state(to) == PeerState::kHere) {
    if (send_message(peer.socket.get(), {.kind = MessageKind::kMemory, .key = key}, fd) >= 0)
      return true;
    if (errno == EPIPE || errno == ECONNRESET) return true;
    if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS) return false;
    pollfd ready{.fd = peer.socket.get(), .events = POLLOUT};
    if (ms_until(deadline) == 0) return false;
    ::poll(&ready, 1, std::min(10, ms_until(deadline)));
  }
  return true;
}

Fd Peers::receive(int from, const MemoryKey& key, Deadline deadline,
                  const std::function<bool()>& aborts) {
  constexpr std::chrono::milliseconds kLook{10};
  std::unique_lock lock(mutex_);
  while (true) {
    auto found = received_.find({from, key});
    if (found != received_.end()) {
      Fd fd = std::move(found->second);
      received_.erase(found);
      if (!fd) refuse_descriptor(fmt::format("the memory of rank {}", from), EMFILE);
      return fd;
    }
    bool late = std::chrono::steady_clock::now() > deadline;
    if (late || state(from) != PeerState::kHere || aborts()) return {};
    changed_.wait_for(lock, kLook);
    lock.unlock();
    Interrupts::look();
    lock.lock();
  }
}

void Peers::discard(std::uint64_t world, std::uint64_t below) {
  std::lock_guard lock(mutex_);
  std::erase_if(received_, [&](const auto& item) {
    const MemoryKey& key = std::get<1>(item.first);
    return key.world == world && key.id < below;
  });
}

int Peers::watch(std::function<void(int, int)> on_death) {
  std::lock_guard lock(mutex_);
  for (int r = 0; r < size(); ++r) {
    if (state(r) == PeerState::kDied) on_death(r, peers_[static_cast<std::size_t>(r)].pid);
  }
  watchers_.emplace(next_token_, std::move(on_death));
  return next_token_++;
}

void Peers::unwatch(int token) {
  std::lock_guard lock(mutex_);
  watchers_.erase(token);
}

void Peers::read_all() {
  pthread_setname_np(pthread_self(), "stretto peers");
  bool goes_on = true;
  while (goes_on) {
    try {
      goes_on = read_next();
    } catch (const std::bad_alloc&) {
      // Who waits for what has come is told at the deadline, or that its own memory is at an end.
      constexpr int kPauseMs = 10;
      pollfd stop{.fd = stop_.get(), .events = POLLIN, .revents = 0};
      goes_on = ::poll(&stop, 1, kPauseMs) <= 0;
    }
  }
}

// What comes next of anybody. False: nobody is to read any more.
bool Peers::read_next() {
  std::vector<pollfd> ready{{.fd = stop_.get(), .events = POLLIN}};
  for (int r = 0; r < size(); ++r) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    bool here = state(r) == PeerState::kHere;
    ready.push_back({.fd = here ? peer.socket.get() : -1, .events = POLLIN});
    ready.push_back({.fd = here ? peer.process.get() : -1, .events = POLLIN});
  }
  if (poll_open(ready, -1) <= 0) return true;
  if (ready[0].revents != 0) return false;
  for (int r = 0; r < size(); ++r) {
    auto at = 1 + 2 * static_cast<std::size_t>(r);
    bool ended = ready[at + 1].revents != 0;  // looked at before its last words are read
    if (ready[at].revents != 0 || ended) read(r);
    if (ended && state(r) == PeerState::kHere) gone(r, PeerState::kDied);
  }
  return true;
}

void Peers::read(int rank) {
  while (state(rank) == PeerState::kHere && take_message(rank)) {
  }
}

// False when there is nothing more to read now.
bool Peers::take_message(int rank) {
  Message message;
  Fd fd;
  ssize_t got = receive_message(peers_[static_cast<std::size_t>(rank)].socket.get(), message, fd);
  // As in farewell_of().
  if (got < 0 && (errno == EINTR || errno == ECONNRESET)) return true;
  if (got < 0 && errno == EAGAIN) return false;
  if (got != sizeof message) {
    gone(rank, PeerState::kDied);
  } else if (message.kind == MessageKind::kFarewell) {
    bool is_rank = message.blamed >= 0 && message.blamed < size();
    if (is_rank) said_to_be_gone_.store(message.blamed, std::memory_order_release);
    gone(rank, PeerState::kLeft);
  } else {  // without a descriptor where this process has no room for it
    std::lock_guard lock(mutex_);
    received_.insert_or_assign({rank, message.key}, std::move(fd));
    changed_.notify_all();
  }
  return true;
}

void Peers::gone(int rank, PeerState state) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::lock_guard lock(mutex_);
  peer.state.store(state, std::memory_order_release);
  if (state == PeerState::kDied) {
    for (const auto& [token, on_death] : watchers_) on_death(rank, peer.pid);
  }
  changed_.notify_all();
}

}  // namespace stretto
