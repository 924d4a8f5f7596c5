#include "stretto/base/scratch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/interrupts.h"
#include "stretto/base/own_files.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

namespace fs = std::filesystem;

// The end of its input is the end of who made it. What it has signalled may take a moment to end.
constexpr const char* kKeeper =
    "trap '' HUP INT TERM; read -r _; kill -TERM 0; rm -rf -- \"$1\"; sleep 0.2; "
    "rm -rf -- \"$1\"; kill -KILL 0";

// sh -c `script`, in the process group `group` (0: its own), with `input` as its input or none.
// Where it has none, its errors, the shell's own included, go to `messages` if that is named.
pid_t start_shell(const char* script, const std::string& argument, pid_t group, int input,
                  const fs::path& messages = {}) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  if (input >= 0) {
    posix_spawn_file_actions_adddup2(&files, input, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
  } else {
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (!messages.empty()) {
      posix_spawn_file_actions_addopen(&files, 2, messages.c_str(), O_WRONLY | O_TRUNC, 0);
    }
  }
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) {
    sigaddset(&usual, signal);
  }
  posix_spawnattr_setflags(&how,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&how, group);
  posix_spawnattr_setsigmask(&how, &none);
  posix_spawnattr_setsigdefault(&how, &usual);
  std::vector<char*> arguments;
  for (const char* text : {"sh", "-c", script, "sh", argument.c_str()}) {
    arguments.push_back(const_cast<char*>(text));
  }
  arguments.push_back(nullptr);
  pid_t child = 0;
  int error = posix_spawn(&child, "/bin/sh", &files, &how, arguments.data(), environ);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw UserError(fmt::format("no process for sh: {}", std::strerror(error)));
  return child;
}

void wait_for(pid_t child) {
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

// The keeper comes first, so that no moment is left in which the folder is there without it.
Scratch::Scratch() {
  fs::path place = temporary_folder();
  std::uint64_t number = 0;
  int ends[2] = {-1, -1};
  bool good = ::getrandom(&number, sizeof number, 0) == sizeof number;
  if (good && ::pipe2(ends, O_CLOEXEC) == 0) {
    path_ = place / fmt::format("stretto-{:016x}", number);
    lifeline_ = ends[1];
    try {
      keeper_ = start_shell(kKeeper, fs::absolute(path_), 0, ends[0]);
    } catch (...) {
      ::close(ends[0]);
      ::close(ends[1]);
      throw;
    }
    ::close(ends[0]);
    if (::mkdir(path_.c_str(), 0700) == 0) {
      ::chmod(path_.c_str(), 0700);  // whatever the umask takes
      return;
    }
  }
  std::string why = std::strerror(errno);
  end_keeper();
  throw UserError(fmt::format("{}: no folder for what is compiled: {} (TMPDIR chooses another)",
                              printable(place.string(), 300), why));
}

void Scratch::end_keeper() {
  if (keeper_ == 0) return;
  ::kill(-keeper_, SIGKILL);
  wait_for(keeper_);
  ::close(lifeline_);
}

Scratch::~Scratch() {
  end_keeper();
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Scratch::require_room() const {
  constexpr std::uint64_t kEnough = std::uint64_t{4} << 20;
  struct statvfs disk = {};
  if (::statvfs(path_.c_str(), &disk) != 0) return;
  bool has_files = disk.f_files == 0 || disk.f_favail > 0;  // some count none
  if (disk.f_bavail * disk.f_frsize >= kEnough && has_files) return;
  throw UserError(fmt::format("{}: no room for what is compiled (TMPDIR chooses another)",
                              printable(path_.parent_path().string(), 300)));
}

int Scratch::run(const std::string& command, const std::filesystem::path& messages) const {
  if (!messages.empty()) {
    std::ofstream(messages).flush();
    ::chmod(messages.c_str(), 0600);  // whatever the umask takes
  }
  pid_t child = start_shell(("umask 077; " + command).c_str(), "", keeper_, -1, messages);
  constexpr std::chrono::milliseconds kLook{2};
  try {
    for (int status = 0;; std::this_thread::sleep_for(kLook)) {
      pid_t ended = ::waitpid(child, &status, WNOHANG);
      if (ended == child) return status;
      if (ended < 0 && errno != EINTR) return 0x7f00;  // another has taken it
      Interrupts::look();
    }
  } catch (...) {
    ::kill(child, SIGKILL);
    wait_for(child);
    throw;
  }
}

std::string env_compiler() {
  const char* text = std::getenv("CXX");
  bool named = text != nullptr && text[std::strspn(text, " \t")] != '\0';
  return named ? text : "c++";
}

}  // namespace stretto
