// GPUs of a world of processes: results of operators against their references, many launches,
// memory that comes and goes, and a process that is killed while kernels of others wait for it.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/base/json.h"

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

// Of the command that starts them.
struct ProcessesResult {
  int ranks = 0;
  bool one_device = false;
  bool work = false;         // every case was right on every rank
  bool death = false;        // the others named the killed rank, soon
  bool memory_back = false;  // of processes that have ended nothing was left on GPU 0
  double seconds = 0;
  std::string error;  // what of it was not so; empty: nothing

  std::string to_string() const;
  Json to_json() const;
};

// Starts the processes, which print a line per case, "ok" or "FAILED". Ends within minutes,
// whatever hangs. DeviceError without a GPU.
ProcessesResult check_processes(const ProcessesOptions& options);

// One of them, whose part is not empty; its exit status.
int run_processes_part(const ProcessesOptions& options);

}  // namespace stretto::bench
