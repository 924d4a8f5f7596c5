// Proofs kept on disk, so that a program is proved once per machine and not once per process or
// rank. The key is the printed program, the options and the version of the proof itself; an entry
// holds the verdict, and what is missing where it is not complete. Neither rejections are kept nor
// what a limit of the proof ended, and an entry that cannot be read is as good as none.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/prove.h"

namespace stretto {

class ProofCache {
 public:
  // Raised whenever the proof learns to reject something it accepted, to say of something that it
  // is not complete, or to show what it did not, and where entries hold something else; not for a
  // change of the table that says what generated code does, which is part of the key.
  static constexpr int kProofVersion = 35;

  // Entries of another `version` do not count.
  explicit ProofCache(std::filesystem::path directory, int version = kProofVersion);

  // The verdict that is kept, if any: never a rejection.
  std::optional<Verdict> find(const Program& program, const ProofOptions& options) const;
  // Best effort: a directory that cannot be written costs time, not correctness.
  // `missing`: of one that is not complete, never empty there.
  void insert(const Program& program, const ProofOptions& options, Verdict verdict,
              const std::vector<Missing>& missing = {}) const;
  std::filesystem::path entry(const Program& program, const ProofOptions& options) const;

  struct Proving {
    std::function<ProofResult(const Program&, const ProofOptions&)> prove =
        [](const Program& p, const ProofOptions& o) { return stretto::prove(p, o); };
    // For another's proof, which takes minutes where a program is large. One that dies is noticed
    // at once, one that was stopped only so.
    std::chrono::milliseconds longest_wait = std::chrono::minutes(10);
    // Why a program is let pass whose proof is not complete; empty: it is not.
    std::string waiver = {};
  };
  // The verdict, where the program is proved, or nothing wrong was found in it and there is a
  // waiver. Throws Rejected with the report, or NotComplete with what is missing. Where several
  // threads and processes ask for the same at the same time, in the same directory, one proves and
  // the others wait for its verdict: the ranks of a world, which meet next, then come together
  // however long it took. Where the directory cannot be written or its files not be locked, each
  // proves. What takes longer than people wait without a word is said on standard error.
  Verdict require(const Program& program, const ProofOptions& options, const Proving& by) const;

 private:
  struct Kept {
    Verdict verdict;
    std::vector<Missing> missing;
  };
  static std::string content(const std::string& key, const Kept& kept);
  static std::optional<Kept> parsed(const std::string& key, const std::string& text);
  std::optional<Kept> find(const std::string& key) const;
  void keep(const std::string& key, const Kept& kept) const;
  Kept verdict_of(const Program& program, const ProofOptions& options, const Proving& by) const;
  std::string key_of(const Program& program, const ProofOptions& options) const;
  std::filesystem::path entry_of(const std::string& key) const;

  std::filesystem::path directory_;
  int version_;
};

// The same in the cache of this machine's user, env_cache_dir(), for as long as env_proof_limit()
// unless the options have a limit.
Verdict require_proved(const Program& program, const ProofOptions& options = {},
                       const std::string& waiver = "");

}  // namespace stretto
