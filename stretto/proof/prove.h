// The proof: is this program free of races and deadlocks, is every read covered and every output
// written exactly once, and may it be launched again and again without a reset? Comes after the
// passes, before a launch: an operator refuses to run what was not proved (proof_cache.h).
//
// It looks at all ranks, workers, tiles and schedules for given extents. Launches with other sizes
// follow each other as launch_orders.h says; tables are taken as sample.h and expand.h say.
// What was not shown is part of the result (verdict.h). docs/concepts/proof.md explains the rest.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/gpu_target.h"
#include "stretto/ir/program.h"
#include "stretto/ir/sync_table.h"
#include "stretto/proof/finding.h"
#include "stretto/proof/verdict.h"

namespace stretto {

class TableWitness;  // table_witness.h

struct ProofOptions {
  int max_workers_per_rank = GpuTarget{}.sms;
  int max_copy_queues = 4;
  // Every vector of run-time sizes is a case, or every piece of them, where their launches' events
  // add up to no more than this, as counted at the bounds.
  std::size_t max_enumerated = 4'000'000;
  // More than some 70 vectors are cut into pieces of sizes that do alike (size_partition.h).
  bool partition = true;
  // Where no rank has to do with another and all do the same, one is looked at (alike_ranks.h).
  bool one_of_alike = true;
  // Cases of run-time sizes per extent otherwise: 0, 1, the bound and the tile and rank boundaries
  // +-1.
  int max_samples = 72;
  // Large programs are looked at in fewer cases, the boundaries in the middle thinned out evenly:
  // at least 16, and so many that their launches' events add up to this; twice as many orders of
  // launches that synchronise differently come on top (launch_orders.h).
  std::size_t max_events = 1'000'000;
  // Sequences of launches are laid out only where promises do not do (launch_promises.h).
  bool promises = true;
  bool bounds_only = false;  // launches have every extent at its bound: the only case
  // Beside the bounds, with bounds_only: launches may have these extents, too, in any sequence.
  std::vector<std::vector<std::int64_t>> also_at;
  int max_findings = 4;
  // On the clock; what takes longer is not complete. 0: any time.
  std::chrono::milliseconds time_limit{0};
  // How many run-time sizes are looked at side by side; the verdict does not depend on it. 0: one
  // per core up to 16, and one for small programs.
  int threads = 0;
  std::size_t few_pairs = 64;              // as in check.h; the verdict does not depend on it
  const TableWitness* tables = nullptr;    // look at these tables alone
  const SyncTable* table = &sync_table();  // what the lowered code does
};

struct ProofStats {
  int cases = 0;            // patterns of extents and tables
  bool every_size = true;   // false: only some sizes were looked at
  bool every_table = true;  // false: tables were sampled
  bool every_order = true;  // false: too many kinds of launches for all of launch_orders.h
  std::string sampled_because;
  std::size_t events = 0;  // the largest launch's
  std::size_t clocks = 0;  // the largest timeline's
  int components = 0, launches = 0, rounds = 0;
  double seconds = 0;
};

struct ProofResult {
  Verdict verdict = Verdict::kRejected;
  std::vector<Missing> missing;  // from a proof that is not complete
  // Whether it could be looked at whole: it is not too large, and the time was enough. Where not,
  // nothing at all is known of it.
  bool within_limits = true;
  std::string report;  // the verdict first; for humans
  std::vector<Finding> findings;
  std::vector<std::string> notes;  // what may be meant otherwise, of a program that is proved
  ProofStats stats;

  bool proved() const {
    return verdict == Verdict::kProved || verdict == Verdict::kProvedAtFixedSizes;
  }
  bool rejected() const { return verdict == Verdict::kRejected; }
};

// `program` is at schedule level, or at tile level without tile primitives. What is wrong with it
// is a finding, not an exception; a limit of the proof is something missing.
ProofResult prove(const Program& program, const ProofOptions& options = {});

}  // namespace stretto
