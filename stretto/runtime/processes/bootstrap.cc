#include "stretto/runtime/processes/bootstrap.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "stretto/base/printable.h"
#include "stretto/runtime/processes/tcp.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;

constexpr std::array<char, 8> kMagic = {'s', 't', 'r', 'e', 't', 't', 'o', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr int kMaxRanks = 64;
constexpr std::size_t kNameBytes = 64;
// What does not say who it is is dropped when so many of them wait.
constexpr std::size_t kMaxStrangers = 256;
// A rank waits so much longer for the answer than rank 0 for the ranks, to hear who is missing.
constexpr milliseconds kAnswerGrace{2000};

template <std::size_t N>
void put(std::array<char, N>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), N - 1));
}

template <std::size_t N>
std::string get(const std::array<char, N>& field) {
  return {field.data(), ::strnlen(field.data(), N)};
}

// Both on one host, so that plain memory will do.
struct Hello {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t rank = 0, size = 0;
  std::array<char, kNameBytes> host{}, job{}, socket_name{};
};

enum class Verdict : std::uint32_t { kWelcome, kRefused, kMissing };

struct Answer {
  std::array<char, 8> magic = kMagic;
  Verdict verdict = Verdict::kWelcome;
  std::int32_t missing = -1;
  std::uint64_t token = 0;
  std::array<char, 1024> text{};
  std::array<std::array<char, kNameBytes>, kMaxRanks> socket_names{};
};

constexpr std::size_t kFirstWord = sizeof Answer::magic;

std::string this_host() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// Two jobs differ in what is kept of their names.
std::string job_mark(const std::string& job) {
  return fmt::format("{:016x}", std::hash<std::string>()(job));
}

Hello hello_of(const BootstrapAddress& at, const std::string& socket_name) {
  Hello hello{.rank = at.rank, .size = at.size};
  put(hello.host, this_host());
  put(hello.job, job_mark(at.job));
  put(hello.socket_name, socket_name);
  return hello;
}

[[noreturn]] void fail(const BootstrapAddress& at, const Answer& answer) {
  if (answer.verdict == Verdict::kRefused) throw UserError(get(answer.text));
  throw bootstrap_fault(at.rank, answer.missing, get(answer.text));
}

Bootstrap bootstrap_of(const Answer& answer, int size, std::vector<Fd> links) {
  Bootstrap all{.token = answer.token, .links = std::move(links)};
  for (int r = 0; r < size; ++r) {
    all.socket_names.push_back(get(answer.socket_names[static_cast<std::size_t>(r)]));
  }
  return all;
}

// Rank 0: takes everyone in.
class Host {
 public:
  Host(const BootstrapAddress& at, const std::string& socket_name, milliseconds timeout)
      : at_(at),
        timeout_(timeout),
        deadline_(deadline_in(timeout)),
        listener_(at, deadline_),
        own_(hello_of(at, socket_name)),
        guests_(static_cast<std::size_t>(at.size)),
        gone_(static_cast<std::size_t>(at.size), false) {
    std::random_device random;
    answer_.token = (std::uint64_t{random()} << 32) | random();
    put(answer_.socket_names[0], socket_name);
  }

  Bootstrap run() {
    while (answer_.verdict == Verdict::kWelcome && first_missing() > 0) {
      if (!poll_once()) {
        close_with(Verdict::kMissing, first_missing(),
                   fmt::format("deadline: rank{} did not come within {} ms", missing_ranks(),
                               timeout_.count()));
      }
    }
    for (const Fd& guest : guests_) {
      if (guest) send_rest(guest.get());
    }
    if (answer_.verdict != Verdict::kWelcome) {
      tell_late_comers();
      fail(at_, answer_);
    }
    return bootstrap_of(answer_, at_.size, std::move(guests_));
  }

 private:
  struct Stranger {
    Fd socket;
    std::size_t received = 0;
    Hello hello;
  };

  void close_with(Verdict verdict, int missing, const std::string& text) {
    if (answer_.verdict != Verdict::kWelcome) return;
    answer_.verdict = verdict;
    answer_.missing = missing;
    put(answer_.text, text);
  }

  // Who comes after the verdict must hear it too, instead of finding nobody here.
  void tell_late_comers() {
    deadline_ = std::min(deadline_, deadline_in(kAnswerGrace));
    while (first_missing() > 0 && poll_once()) {
    }
  }

  int first_missing() const {
    for (int r = 1; r < at_.size; ++r) {
      auto i = static_cast<std::size_t>(r);
      if (!guests_[i] && !gone_[i]) return r;
    }
    return -1;
  }

  std::string missing_ranks() const {
    std::string text;
    int count = 0;
    for (int r = 1; r < at_.size; ++r) {
      if (guests_[static_cast<std::size_t>(r)]) continue;
      text += fmt::format("{}{}", count++ > 0 ? ", " : " ", r);
    }
    return (count > 1 ? "s" : "") + text;
  }

  // False when the deadline has passed.
  bool poll_once() {
    std::vector<pollfd> ready{{.fd = listener_.fd(), .events = POLLIN}};
    for (const Stranger& s : strangers_) ready.push_back({.fd = s.socket.get(), .events = POLLIN});
    for (const Fd& guest : guests_) ready.push_back({.fd = guest.get(), .events = POLLIN});
    int timeout = ms_until(deadline_);
    if (timeout == 0) return false;
    if (poll_open(ready, timeout) <= 0) return true;
    std::size_t num_strangers = strangers_.size();
    for (std::size_t r = 0; r < guests_.size(); ++r) {
      // A guest says nothing more, so that only its end can be read.
      if (ready[1 + num_strangers + r].revents != 0) {
        close_with(Verdict::kMissing, static_cast<int>(r),
                   fmt::format("rank {} ended while the world was being made", r));
        gone_[r] = true;
        guests_[r].reset();
      }
    }
    for (std::size_t i = num_strangers; i-- > 0;) {
      if (ready[1 + i].revents != 0 && !listen_to(strangers_[i])) {
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (ready[0].revents != 0) {
      Fd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && too_many_descriptors(errno)) refuse_descriptor("another rank", errno);
      if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
      if (socket) strangers_.push_back({.socket = std::move(socket)});
    }
    return true;
  }

  // False when the stranger is done with: taken in, turned away or gone.
  bool listen_to(Stranger& s) {
    auto* at = reinterpret_cast<char*>(&s.hello) + s.received;
    ssize_t got = ::recv(s.socket.get(), at, sizeof s.hello - s.received, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    s.received += static_cast<std::size_t>(got);
    std::size_t magic_bytes = std::min(s.received, kMagic.size());
    if (std::memcmp(&s.hello, kMagic.data(), magic_bytes) != 0) return false;
    if (s.received < sizeof s.hello) return true;
    take_in(s);
    return false;
  }

  void take_in(Stranger& s) {
    const Hello& h = s.hello;
    if (h.job != own_.job) {
      Answer away{.verdict = Verdict::kRefused};
      put(away.text, fmt::format("another job's world is being made at {}:{}: choose another "
                                 "STRETTO_MASTER_PORT",
                                 printable(at_.address), at_.port));
      send_all(s.socket.get(), &away, sizeof away, deadline_in(kAnswerGrace));
      return;
    }
    std::string wrong = objection(h);
    if (!wrong.empty()) {
      close_with(Verdict::kRefused, -1, wrong);
      send_all(s.socket.get(), &answer_, sizeof answer_, deadline_in(kAnswerGrace));
      return;
    }
    auto r = static_cast<std::size_t>(h.rank);
    answer_.socket_names[r] = h.socket_name;
    // From its first word on, the guest takes an end of this socket for the end of rank 0.
    send_all(s.socket.get(), &answer_, kFirstWord, deadline_in(kAnswerGrace));
    if (answer_.verdict != Verdict::kWelcome) send_rest(s.socket.get());
    guests_[r] = std::move(s.socket);
  }

  void send_rest(int guest) {
    auto* rest = reinterpret_cast<const char*>(&answer_) + kFirstWord;
    send_all(guest, rest, sizeof answer_ - kFirstWord, deadline_in(kAnswerGrace));
  }

  std::string objection(const Hello& h) const {
    if (h.version != kVersion) {
      return fmt::format("rank 0 speaks version {} of the protocol, another rank version {}",
                         kVersion, h.version);
    }
    if (h.size != at_.size) {
      return fmt::format("world size differs between ranks: rank 0 says {}, rank {} says {}",
                         at_.size, h.rank, h.size);
    }
    if (h.rank < 0 || h.rank >= at_.size) return fmt::format("there is no rank {}", h.rank);
    if (h.rank == 0 || guests_[static_cast<std::size_t>(h.rank)]) {
      return fmt::format("two processes claim to be rank {}", h.rank);
    }
    if (h.host != own_.host) {
      return fmt::format(
          "rank {} runs on another host than rank 0: a world of processes is of "
          "one host",
          h.rank);
    }
    return "";
  }

  const BootstrapAddress& at_;
  milliseconds timeout_;
  Deadline deadline_;
  TcpListener listener_;
  Hello own_;
  Answer answer_;
  std::vector<Fd> guests_;  // [world], [0] empty
  std::vector<bool> gone_;  // [world]: guests that ended
  std::vector<Stranger> strangers_;
};

// The others. Nothing where rank 0 was not there: who closes without a word was somebody else, or
// rank 0 that goes about another world.
std::optional<Bootstrap> visit_once(const BootstrapAddress& at, const Hello& hello, Fd socket,
                                       Deadline deadline) {
  Answer answer;
  if (!send_all(socket.get(), &hello, sizeof hello, deadline) ||
      !receive_all(socket.get(), &answer, kFirstWord, deadline)) {
    return std::nullopt;
  }
  if (answer.magic != kMagic) {
    throw UserError(fmt::format("what listens at {}:{} is not rank 0 of a stretto world",
                                printable(at.address), at.port));
  }
  auto* rest = reinterpret_cast<char*>(&answer) + kFirstWord;
  if (!receive_all(socket.get(), rest, sizeof answer - kFirstWord, deadline)) {
    if (ms_until(deadline) == 0) return std::nullopt;
    throw bootstrap_fault(at.rank, 0, "rank 0 ended while the world was being made");
  }
  if (answer.verdict != Verdict::kWelcome) fail(at, answer);
  std::vector<Fd> links(static_cast<std::size_t>(at.size));
  links[0] = std::move(socket);
  return bootstrap_of(answer, at.size, std::move(links));
}

// What came of looking for rank 0, for who waits for it in vain.
struct Search {
  int closed = 0;       // connections that ended before a word of it
  bool silent = false;  // one stood until the deadline
  std::string refused;  // why there was none at the end

  std::string to_string() const {
    if (silent) return "connected, but nothing was said";
    std::string text;
    if (closed > 0) {
      text =
          fmt::format("{} connection{} closed without a word of it", closed, closed > 1 ? "s" : "");
    }
    if (refused.empty()) return text;
    return fmt::format("{}{}nobody listens there ({})", text, closed > 0 ? ", now " : "", refused);
  }
};

Bootstrap visit(const BootstrapAddress& at, const std::string& socket_name, milliseconds timeout) {
  Deadline deadline = deadline_in(timeout);
  Hello hello = hello_of(at, socket_name);
  Search search;
  do {
    Fd socket = connect_tcp(at, deadline, &search.refused);
    if (!socket) break;
    Deadline answered = deadline_in(timeout + kAnswerGrace);
    auto all = visit_once(at, hello, std::move(socket), answered);
    if (all) return std::move(*all);
    search.silent = ms_until(answered) == 0;
    search.closed += search.silent ? 0 : 1;
    std::this_thread::sleep_for(milliseconds(20));
  } while (ms_until(deadline) > 0);
  throw bootstrap_fault(
      at.rank, 0,
      fmt::format("deadline: rank 0 did not answer at {}:{} within {} ms: {}",
                  printable(at.address), at.port, timeout.count(), search.to_string()));
}

}  // namespace

Fault bootstrap_fault(int rank, int missing, const std::string& reason) {
  return Fault({.program = "world",
                .role = "rendezvous",
                .rank = rank,
                .waited_for = missing,
                .reason = reason});
}

Bootstrap bootstrap(const BootstrapAddress& at, const std::string& socket_name,
                       milliseconds timeout) {
  STRETTO_CHECK(at.size <= kMaxRanks && socket_name.size() < kNameBytes, "too large a world");
  if (at.size == 1) {
    Bootstrap alone{.socket_names = {socket_name}};
    alone.links.resize(1);
    return alone;
  }
  if (at.rank == 0) return Host(at, socket_name, timeout).run();
  return visit(at, socket_name, timeout);
}

}  // namespace stretto
