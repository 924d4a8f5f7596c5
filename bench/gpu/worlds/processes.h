// GPUs of a world of processes: results of operators against their references, many launches,
// memory that comes and goes, and a process that is killed while kernels of others wait for it.
#pragma once

#include <cstdint>
#include <string>

namespace stretto::bench {

struct ProcessesOptions {
  int ranks = 2;
  bool one_device = false;  // all on GPU 0, whose kernels take turns: slow, but needs no second GPU
  std::string only;         // cases whose label contains this; empty: two of each of some operators
  std::uint64_t seed = 0;
  // Of the processes that the command starts, one per rank.
  std::string part;  // "work" or "death"
  int report = -1;   // a file, of which each rank that ended well marks its byte
};

// Prints a line per case, "ok" or "FAILED"; the exit status. Ends within minutes, whatever hangs.
// DeviceError without a GPU.
int run_processes(const ProcessesOptions& options);

}  // namespace stretto::bench
