// A folder for what another program makes, and that program with it. Both are gone in the end, also
// where this process is killed meanwhile: a keeper, a process that waits for the end of this one,
// then ends what runs and removes the folder.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace stretto {

class Scratch {
 public:
  // UserError naming the folder and TMPDIR where none can be made.
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::filesystem::path operator/(const char* name) const { return path_ / name; }

  // UserError where the disk has no room left for more.
  void require_room() const;

  // Runs a shell command without input, in the keeper's process group; its status as of wait().
  // What it makes is for this user alone. Errors, the shell's own included, go to the file
  // `messages` if that is named. Ends early by what Interrupts throws.
  int run(const std::string& command, const std::filesystem::path& messages = {}) const;

 private:
  void end_keeper();

  std::filesystem::path path_;
  pid_t keeper_ = 0;
  int lifeline_ = -1;  // its other end is the keeper's input
};

// CXX: the compiler of program files, with arguments maybe; c++ where it is unset or empty.
std::string env_compiler();

}  // namespace stretto
