// Proofs kept on disk, so that a program is proved once per machine and not once per process. The
// key is the printed program, the options and the version of the proof itself; only verdicts of
// `proved` are kept, and an entry that cannot be read is as good as none.
#pragma once

#include <filesystem>

#include "stretto/proof/prove.h"

namespace stretto {

class ProofCache {
 public:
  explicit ProofCache(std::filesystem::path directory);

  bool contains(const Program& program, const ProofOptions& options) const;
  // Best effort: a directory that cannot be written costs time, not correctness.
  void insert(const Program& program, const ProofOptions& options) const;
  std::filesystem::path entry(const Program& program, const ProofOptions& options) const;

 private:
  std::filesystem::path directory_;
};

// Returns when the schedule-level program is proved, here or earlier on this machine
// (env_cache_dir()); throws Rejected with the report otherwise.
void require_proved(const Program& program, const ProofOptions& options = {});

}  // namespace stretto
