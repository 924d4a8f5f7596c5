#include "stretto/proof/proof_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/ir/printer.h"
#include "stretto/proof/content_hash.h"

namespace stretto {
namespace {

// Raised whenever the proof learns to reject something it accepted.
constexpr int kProofVersion = 11;

std::string key_text(const Program& program, const ProofOptions& o) {
  return fmt::format("proof {} workers {} queues {} samples {} events {}{}\n{}", kProofVersion,
                     o.max_workers_per_rank, o.max_copy_queues, o.max_samples, o.max_events,
                     o.bounds_only ? " bounds only" : "", print(program));
}

// A truncated or damaged entry does not match; neither does another key's.
std::string content(const std::string& key) { return fmt::format("proved {}\n", key); }

}  // namespace

ProofCache::ProofCache(std::filesystem::path directory) : directory_(std::move(directory)) {}

std::filesystem::path ProofCache::entry(const Program& program, const ProofOptions& options) const {
  return directory_ / (content_hash(key_text(program, options)) + ".proof");
}

bool ProofCache::contains(const Program& program, const ProofOptions& options) const {
  std::filesystem::path path = entry(program, options);
  std::ifstream in(path, std::ios::binary);
  std::string expected = content(path.stem().string());
  std::string found(expected.size() + 1, '\0');
  in.read(found.data(), static_cast<std::streamsize>(found.size()));
  found.resize(static_cast<std::size_t>(in.gcount()));
  return found == expected;
}

void ProofCache::insert(const Program& program, const ProofOptions& options) const {
  std::error_code ignored;
  std::filesystem::create_directories(directory_, ignored);
  std::filesystem::path path = entry(program, options);
  std::filesystem::path draft = path;
  draft += fmt::format(".{}", getpid());
  {
    std::ofstream out(draft, std::ios::binary);
    out << content(path.stem().string());
  }
  std::filesystem::rename(draft, path, ignored);
  if (ignored) std::filesystem::remove(draft, ignored);
}

void require_proved(const Program& program, const ProofOptions& options) {
  ProofCache cache(env_cache_dir() / "proofs");
  if (cache.contains(program, options)) return;
  ProofResult result = prove(program, options);
  if (!result.proved) throw Rejected(result.report);
  cache.insert(program, options);
}

}  // namespace stretto
