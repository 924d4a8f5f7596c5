#include "stretto/runtime/processes/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"
#include "stretto/base/say.h"
#include "stretto/runtime/processes/tcp.h"

namespace stretto {
namespace {

constexpr int kCannotStart = 127;
// A process that is killed may end so long after the others know.
constexpr std::chrono::milliseconds kDying{200}, kLook{2};

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGPIPE}) sigaddset(&set, signal);
  return set;
}

// Everything of a child that allocates is made before the fork.
struct Start {
  std::vector<std::string> environment;
  std::vector<char*> arguments;
  bool takes_input = false;
  int listener = -1;  // for rank 0
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    sigset_t set = handled_signals();
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~Launcher() {
    kill_all(SIGKILL);
    while (num_running() > 0) {
      if (!reap()) ::usleep(1000);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  int run() {
    int port = 0, master_port = 0;
    Fd listener = listen_anywhere(&port);
    // A port for whoever reads MASTER_PORT by its own name, free at this moment.
    listen_anywhere(&master_port).reset();
    for (int r = 0; r < options_.num_processes; ++r) start(r, listener.get(), port, master_port);
    listener.reset();
    while (num_running() > 0) wait_for_news();
    return first_failure_;
  }

 private:
  void start(int rank, int listener, int port, int master_port);
  [[noreturn]] void become(const Start& start, pid_t parent);
  void wait_for_news();
  struct Ended {
    std::size_t rank;
    int status;
  };
  bool reap();
  std::vector<Ended> reaped();
  void ended(std::size_t rank, int status);
  // All at once: they stand still meanwhile, so none of them tells of another's end.
  void kill_all(int signal) {
    signal_each(SIGSTOP);
    await_standstill();
    signal_each(signal);
    signal_each(SIGCONT);
  }
  void signal_each(int signal) const {
    for (pid_t pid : pids_) {
      if (pid > 0) ::kill(-pid, signal);
    }
  }
  void await_standstill() const;
  int num_running() const {
    int count = 0;
    for (pid_t pid : pids_) count += pid > 0 ? 1 : 0;
    return count;
  }
  void stop_within(std::chrono::milliseconds grace, int next_signal) {
    if (stopping_) return;
    stopping_ = true;
    next_signal_ = next_signal;
    next_ = deadline_in(grace);
  }

  const LaunchOptions& options_;
  sigset_t before_;
  std::vector<pid_t> pids_;  // [world], 0 after its end
  int first_failure_ = 0;
  bool stopping_ = false;
  int next_signal_ = SIGTERM;
  Deadline next_;
};

void Launcher::start(int rank, int listener, int port, int master_port) {
  Start start{.takes_input = rank == 0 && ::isatty(0) == 0, .listener = rank == 0 ? listener : -1};
  auto set = [&](const char* name, const auto& value) {
    start.environment.push_back(fmt::format("{}={}", name, value));
  };
  set("RANK", rank);
  set("LOCAL_RANK", rank);
  set("WORLD_SIZE", options_.num_processes);
  set("LOCAL_WORLD_SIZE", options_.num_processes);
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", master_port);
  set("STRETTO_MASTER_PORT", port);
  set("STRETTO_LISTENER", rank == 0 ? std::to_string(listener) : "");
  for (const std::string& argument : options_.command) {
    start.arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  start.arguments.push_back(nullptr);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) {
    throw UserError(fmt::format("no process for rank {}: {}", rank, std::strerror(errno)));
  }
  if (pid == 0) become(start, parent);
  ::setpgid(pid, pid);  // here too: a signal may have to be passed on before the child has run
  pids_.push_back(pid);
}

void Launcher::become(const Start& start, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotStart);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  ::signal(SIGXFSZ, SIG_DFL);  // ignored by this command, not by others
  for (const std::string& variable : start.environment) {
    ::putenv(const_cast<char*>(variable.c_str()));
  }
  if (!start.takes_input) {
    int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::close(nothing);
  }
  // The listener is inherited by rank 0 alone.
  if (start.listener < 0) ::unsetenv("STRETTO_LISTENER");
  ::execvp(start.arguments[0], start.arguments.data());
  std::string why = fmt::format("stretto: error: cannot start '{}': {}\n",
                                printable(start.arguments[0]), std::strerror(errno));
  static_cast<void>(!::write(2, why.data(), why.size()));
  ::_exit(kCannotStart);
}

void Launcher::wait_for_news() {
  sigset_t set = handled_signals();
  timespec longest{.tv_sec = 1, .tv_nsec = 0};
  if (stopping_) longest = {.tv_sec = 0, .tv_nsec = 10'000'000};
  int signal = ::sigtimedwait(&set, nullptr, &longest);
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
    kill_all(signal);
    if (first_failure_ == 0) first_failure_ = 128 + signal;
    stop_within(options_.grace, SIGKILL);
  }
  if (signal == SIGPIPE) {  // end_together_on_broken_pipe()
    if (first_failure_ == 0) first_failure_ = 128 + signal;
    kill_all(SIGKILL);
  }
  while (reap()) {
  }
  if (!stopping_ || ms_until(next_) > 0) return;
  kill_all(next_signal_);
  next_signal_ = SIGKILL;
  next_ = deadline_in(options_.grace);
}

void Launcher::await_standstill() const {
  auto moves = [](pid_t pid) {
    siginfo_t news{};
    int look = WSTOPPED | WEXITED | WNOWAIT | WNOHANG;
    return pid > 0 && ::waitid(P_PID, static_cast<id_t>(pid), &news, look) == 0 && news.si_pid == 0;
  };
  for (Deadline until = deadline_in(kDying);
       std::any_of(pids_.begin(), pids_.end(), moves) && ms_until(until) > 0;) {
    std::this_thread::sleep_for(kLook);
  }
}

// Of those that have ended since, who was killed comes first: the others' faults are of that. They
// know of it as soon as its sockets are closed, and may end before it has given its memory back.
bool Launcher::reap() {
  std::vector<Ended> gone = reaped();
  auto was_killed = [](const Ended& process) { return WIFSIGNALED(process.status); };
  auto unexplained = [&] {
    return first_failure_ == 0 && !stopping_ &&
           std::none_of(gone.begin(), gone.end(), was_killed) &&
           std::any_of(gone.begin(), gone.end(), [](const Ended& e) { return e.status != 0; });
  };
  for (Deadline until = deadline_in(kDying); unexplained() && ms_until(until) > 0;) {
    std::this_thread::sleep_for(kLook);
    std::vector<Ended> more = reaped();
    gone.insert(gone.end(), more.begin(), more.end());
  }
  std::stable_partition(gone.begin(), gone.end(), was_killed);
  for (const Ended& e : gone) ended(e.rank, e.status);
  return !gone.empty();
}

std::vector<Launcher::Ended> Launcher::reaped() {
  std::vector<Ended> gone;
  for (std::size_t r = 0; r < pids_.size(); ++r) {
    int status = 0;
    if (pids_[r] > 0 && ::waitpid(pids_[r], &status, WNOHANG) > 0) gone.push_back({r, status});
  }
  return gone;
}

void Launcher::ended(std::size_t rank, int status) {
  ::kill(-pids_[rank], SIGKILL);  // what it has left running
  pids_[rank] = 0;
  int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (code == 0) return;
  if (first_failure_ == 0) {
    first_failure_ = code;
    // It could not say so itself, and the others may not have met it yet.
    if (WIFSIGNALED(status)) {
      say("stretto: rank {} was ended by signal {} ({})\n", rank, WTERMSIG(status),
          ::strsignal(WTERMSIG(status)));
    }
  }
  stop_within(options_.grace, SIGTERM);
}

}  // namespace

void end_together_on_broken_pipe() {
  struct sigaction before = {};
  const char* listener = std::getenv("STRETTO_LISTENER");
  if (listener == nullptr || *listener == '\0') return;  // not rank 0 of launch_processes()
  if (::sigaction(SIGPIPE, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction told = {};
  told.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  told.sa_handler = [](int) {
    ::kill(::getppid(), SIGPIPE);
    ::sleep(10);       // it kills this process meanwhile
    ::raise(SIGPIPE);  // or it is no launcher
  };
  ::sigaction(SIGPIPE, &told, nullptr);
}

int launch_processes(const LaunchOptions& options) {
  if (options.num_processes < 1) throw UserError("launch: need at least one process");
  if (options.command.empty()) throw UserError("launch: no command given");
  return Launcher(options).run();
}

}  // namespace stretto
