// For tests: runs one function on every rank of a world of either kind, and hears what came of it.
// Processes are forked from the test, and killed when they take too long.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "stretto/runtime/processes/fd.h"
#include "stretto/runtime/processes/tcp.h"
#include "stretto/runtime/world.h"

namespace stretto {

// What a body returned, or "UserError: ...", "Fault: ...", "error: ...".
inline std::string outcome_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const UserError& e) {
    return std::string("UserError: ") + e.what();
  } catch (const Fault& e) {
    return std::string("Fault: ") + e.what();
  } catch (const std::exception& e) {
    return std::string("error: ") + e.what();
  }
}

inline int num_entries(const char* directory, const char* with = "") {
  int count = 0;
  DIR* dir = ::opendir(directory);
  for (dirent* entry; dir != nullptr && (entry = ::readdir(dir)) != nullptr;) {
    count += std::string(entry->d_name).find(with) != std::string::npos;
  }
  if (dir != nullptr) ::closedir(dir);
  return count;
}

// What is left where other programs, too, make and remove what they share.
inline int num_shared() { return num_entries("/dev/shm", "stretto"); }

class RankProcesses {
 public:
  using Body = std::function<std::string(const BootstrapAddress&)>;

  // `absent` ranks are not started.
  RankProcesses(int size, const Body& body, const std::vector<int>& absent = {}) {
    int port = 0;
    Fd listener = listen_anywhere(&port);
    for (int r = 0; r < size; ++r) {
      Child child;
      bool starts = std::find(absent.begin(), absent.end(), r) == absent.end();
      int ends[2] = {-1, -1};
      if (starts && ::pipe2(ends, O_CLOEXEC) == 0) {
        BootstrapAddress at{.rank = r, .size = size, .port = port};
        if (r == 0) at.listener = listener.get();
        child.pid = ::fork();
        if (child.pid == 0) {
          if (r != 0) listener.reset();
          std::string text = outcome_of([&] { return body(at); });
          static_cast<void>(
              !::write(ends[1], text.data(), std::min<std::size_t>(text.size(), 4000)));
          ::_exit(0);
        }
        ::close(ends[1]);
        child.report = Fd(ends[0]);
      }
      children_.push_back(std::move(child));
    }
  }
  ~RankProcesses() { wait(); }

  int pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  void kill(int rank, int signal = SIGKILL) { ::kill(pid(rank), signal); }

  // What each rank reported; "" for those absent or killed, "late" for those that had to be: only a
  // rank that hangs takes so long, also where other processes take the machine.
  std::vector<std::string> wait(std::chrono::seconds longest = std::chrono::seconds(300)) {
    Deadline deadline = deadline_in(longest);
    std::vector<std::string> reports;
    for (Child& child : children_) reports.push_back(child.wait(deadline));
    return reports;
  }

  // Until that one has ended, whatever the others do.
  void wait_for(int rank) {
    children_[static_cast<std::size_t>(rank)].wait(deadline_in(std::chrono::seconds(300)));
  }

 private:
  struct Child {
    int pid = -1;
    Fd report;
    std::string text;

    std::string wait(Deadline deadline) {
      if (pid <= 0) return text;
      bool late = false;
      while (::waitpid(pid, nullptr, WNOHANG) == 0) {
        late = ms_until(deadline) == 0;
        if (late) ::kill(pid, SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      pid = -1;
      text.resize(4000);
      ssize_t got = ::read(report.get(), text.data(), text.size());
      text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
      if (late) text = "late";
      return text;
    }
  };
  std::vector<Child> children_;
};

enum class WorldKind { kThreads, kProcesses };

// body(rank) on every rank, within run() of one world; by rank what it returned or how it failed.
inline std::vector<std::string> on_every_rank(WorldKind kind, int size,
                                              std::chrono::milliseconds timeout,
                                              const std::function<std::string(Rank&)>& body) {
  if (kind == WorldKind::kProcesses) {
    RankProcesses processes(size, [&](const BootstrapAddress& at) {
      World world(ProcessWorldOptions{.bootstrap = at, .timeout = timeout});
      std::string text;
      world.run([&](Rank& rank) { text = body(rank); });
      return text;
    });
    return processes.wait();
  }
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  World world(WorldOptions{.size = size, .timeout = timeout});
  try {
    world.run([&](Rank& rank) {
      std::string& text = texts[static_cast<std::size_t>(rank.index())];
      std::exception_ptr error;
      text = outcome_of([&] {
        try {
          return body(rank);
        } catch (...) {
          error = std::current_exception();
          throw;
        }
      });
      if (error) std::rethrow_exception(error);
    });
  } catch (const std::exception&) {
  }
  return texts;
}

}  // namespace stretto
