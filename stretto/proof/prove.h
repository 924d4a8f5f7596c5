// The proof: is this program free of races and deadlocks, is every read covered and every output
// written exactly once, and may it be launched again and again without a reset? Comes after the
// passes, before a launch: an operator refuses to run what was not proved (proof_cache.h).
//
// Exhaustive over ranks, workers, tiles and schedules for given extents; extents are taken at their
// boundaries, the same at every launch and alternating; tables as sample.h and expand.h say.
#pragma once

#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/proof/check.h"

namespace stretto {

struct ProofOptions {
  int max_workers_per_rank = 132;  // SMs of the device
  int max_copy_queues = 4;
  int max_samples = 48;  // combinations of extents, and as many alternations of two
  // Large programs are looked at in fewer places: at least 8, and so many that their launches'
  // events add up to this.
  std::size_t max_events = 600'000;
  int max_findings = 4;
};

struct ProofStats {
  int samples = 0;         // combinations of extents and tables
  std::size_t events = 0;  // of the largest launch
  std::size_t clocks = 0;  // of the largest timeline
  int components = 0, launches = 0, rounds = 0;
  double seconds = 0;
};

struct ProofResult {
  bool proved = false;
  std::string report;  // the verdict first; for humans
  std::vector<Finding> findings;
  ProofStats stats;
};

// `program` at schedule level, or at tile level without tile primitives. Whatever is wrong with the
// program is a finding, not an exception.
ProofResult prove(const Program& program, const ProofOptions& options = {});

}  // namespace stretto
