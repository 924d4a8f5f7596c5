// The proof: is this program free of races and deadlocks, is every read covered and every output
// written exactly once, and may it be launched again and again without a reset? Comes after the
// passes, before a launch: an operator refuses to run what was not proved (proof_cache.h).
//
// Exhaustive over ranks, workers, tiles and schedules for given extents; extents are taken at their
// boundaries, launches of different sizes as launch_orders.h says; tables as sample.h and expand.h
// say. A report of a program too large for all its boundaries says so. docs/proof.md explains the
// rest.
#pragma once

#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/ir/sync_table.h"
#include "stretto/proof/check.h"
#include "stretto/proof/expand.h"

namespace stretto {

struct ProofOptions {
  int max_workers_per_rank = 132;  // SMs of the device
  int max_copy_queues = 4;
  // Cases of run-time sizes per extent. Where a bound is smaller than this every size is a case,
  // otherwise 0, 1, the bound and the tile and rank boundaries +-1.
  int max_samples = 72;
  // Large programs are looked at in fewer cases, the boundaries in the middle thinned out evenly:
  // at least 16, and so many that their launches' events add up to this; half as many orders of
  // launches that synchronise differently come on top (launch_orders.h).
  std::size_t max_events = 1'000'000;
  bool bounds_only = false;  // launches have every extent at its bound: the only case
  int max_findings = 4;
  // Run-time sizes, side by side; the verdict does not depend on it. 0: one per core up to 16, and
  // one for small programs.
  int threads = 0;
  std::size_t few_pairs = kFewPairs;       // as in check.h; the verdict does not depend on it
  const TableWitness* tables = nullptr;    // look at these tables alone
  const SyncTable* table = &sync_table();  // what the lowered code does
};

struct ProofStats {
  int cases = 0;               // patterns of extents and tables
  bool every_boundary = true;  // false: boundaries were thinned out
  bool every_table = true;     // false: tables were sampled
  bool every_order = true;     // false: too many kinds of launches for all of launch_orders.h
  std::string sampled_because;
  std::size_t events = 0;  // of the largest launch
  std::size_t clocks = 0;  // of the largest timeline
  int components = 0, launches = 0, rounds = 0;
  double seconds = 0;
};

struct ProofResult {
  bool proved = false;
  std::string report;  // the verdict first; for humans
  std::vector<Finding> findings;
  std::vector<std::string> notes;  // what may be meant otherwise, of a program that is proved
  ProofStats stats;
};

// `program` at schedule level, or at tile level without tile primitives. Whatever is wrong with the
// program is a finding, not an exception.
ProofResult prove(const Program& program, const ProofOptions& options = {});

}  // namespace stretto
