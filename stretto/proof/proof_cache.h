// Proofs kept on disk, so that a program is proved once per machine and not once per process or
// rank. The key is the printed program, the options and the version of the proof itself; an entry
// holds the verdict. Rejections are not kept, and an entry that cannot be read is as good as none.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "stretto/proof/prove.h"

namespace stretto {

class ProofCache {
 public:
  explicit ProofCache(std::filesystem::path directory);

  // The verdict that is kept, if any: never a rejection.
  std::optional<Verdict> find(const Program& program, const ProofOptions& options) const;
  // Best effort: a directory that cannot be written costs time, not correctness.
  void insert(const Program& program, const ProofOptions& options, Verdict verdict) const;
  std::filesystem::path entry(const Program& program, const ProofOptions& options) const;

  struct Proving {
    std::function<ProofResult(const Program&, const ProofOptions&)> prove =
        [](const Program& p, const ProofOptions& o) { return stretto::prove(p, o); };
    // For another's proof, which takes minutes where a program is large. One that dies is noticed
    // at once, one that was stopped only so.
    std::chrono::milliseconds longest_wait = std::chrono::minutes(10);
  };
  // Returns when the program is proved, or looked at without a finding as far as the proof goes;
  // throws Rejected with the report, also for a program that is beyond the proof's limits. Where
  // several threads and
  // processes ask for the same at the same time, in the same directory, one proves and the
  // others wait for its verdict: the ranks of a world, which meet next, then come together however
  // long it took. Where the directory cannot be written or its files not be locked, each proves.
  void require(const Program& program, const ProofOptions& options, const Proving& by) const;

 private:
  std::optional<Verdict> find(const std::string& key) const;
  void keep(const std::string& key, Verdict verdict) const;
  std::filesystem::path entry_of(const std::string& key) const;

  std::filesystem::path directory_;
};

// The same in the cache of this machine's user, env_cache_dir().
void require_proved(const Program& program, const ProofOptions& options = {});

}  // namespace stretto
