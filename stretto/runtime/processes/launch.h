// Starts the processes of a world: one command N times on this host, each with the environment that
// bootstrap_address_of_environment() reads. `stretto launch` and `--launcher processes`.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace stretto {

struct LaunchOptions {
  int num_processes = 1;
  std::vector<std::string> command;  // searched for as a shell does
  // How long the others may go on after one has failed, to report their fault, before SIGTERM, and
  // after that before SIGKILL.
  std::chrono::milliseconds grace{3000};
};

// Returns when all have ended: 0, or the exit code of the first that failed (128 + n for signal n,
// 127 for a command that cannot be started). SIGINT, SIGTERM and SIGHUP are passed on, to be
// followed by SIGKILL after the grace. Each process leads a process group, which is killed with it;
// all are killed when this process ends, however it does. Standard input goes to rank 0 unless it
// is a terminal. Blocks those signals and SIGCHLD in this thread meanwhile; UserError where
// processes or descriptors are short.
int launch_processes(const LaunchOptions& options);

// For a rank that writes the results: where nobody reads them any more, all ranks end at once and
// without a word, as one process would. Else the others would report that this one died.
void end_together_on_broken_pipe();

}  // namespace stretto
