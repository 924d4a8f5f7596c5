#include "stretto/proof/proof_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/interrupts.h"
#include "stretto/base/json.h"
#include "stretto/base/log.h"
#include "stretto/base/own_files.h"
#include "stretto/base/slow_notice.h"
#include "stretto/base/turn.h"
#include "stretto/ir/printer.h"
#include "stretto/proof/content_hash.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

std::string text_of(const SyncTable& table) {
  std::string text = fmt::format("{} {}", table.coherent_loads, table.shared_reductions);
  for (const SyncSteps& row : table.rows) {
    text += ';';
    for (const SyncStep& s : row) {
      text += fmt::format(" {}.{}.{}", static_cast<int>(s.kind), static_cast<int>(s.by),
                          static_cast<int>(s.scope));
    }
  }
  return text;
}

std::string sizes_of(const ProofOptions& o) {
  if (!o.bounds_only) return "";
  std::string text = " bounds only";
  for (const std::vector<std::int64_t>& extents : o.also_at) {
    text += fmt::format(" and {}", fmt::join(extents, ","));
  }
  return text;
}

// A rejection as it lies in the file of a turn, whole or not at all.
std::string rejection(const std::string& report) {
  return fmt::format("rejected {}\n{}", report.size(), report);
}

void throw_rejection(const std::string& text) {
  std::string report = text.substr(std::min(text.size(), text.find('\n') + 1));
  if (text == rejection(report)) throw Rejected(report);
}

nlohmann::json to_json(const std::vector<Missing>& missing) {
  nlohmann::json out = nlohmann::json::array();
  for (const Missing& m : missing) out.push_back({m.what, m.where, m.expression});
  return out;
}

std::optional<std::vector<Missing>> missing_of(const std::string& line) {
  std::vector<Missing> out;
  nlohmann::json all = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array()) return {};
  for (const nlohmann::json& m : all) {
    if (!m.is_array() || m.size() != 3) return {};
    for (const nlohmann::json& text : m) {
      if (!text.is_string()) return {};
    }
    out.push_back({.what = m[0], .where = m[1], .expression = m[2]});
  }
  return out;
}

}  // namespace

std::string ProofCache::content(const std::string& key, const Kept& kept) {
  return fmt::format("{}: {}\n{}\n", name(kept.verdict), key, to_line(to_json(kept.missing)));
}

// A truncated or damaged entry does not match; neither does another key's.
std::optional<ProofCache::Kept> ProofCache::parsed(const std::string& key,
                                                   const std::string& text) {
  std::optional<Verdict> verdict = verdict_named(text.substr(0, text.find(':')));
  if (!verdict || *verdict == Verdict::kRejected) return {};
  std::optional<std::vector<Missing>> missing =
      missing_of(text.substr(std::min(text.size(), text.find('\n'))));
  if (!missing || missing->empty() != (*verdict != Verdict::kNotComplete)) return {};
  Kept kept{*verdict, std::move(*missing)};
  return text == content(key, kept) ? std::optional(std::move(kept)) : std::nullopt;
}

ProofCache::ProofCache(std::filesystem::path directory, int version)
    : directory_(std::move(directory)), version_(version) {}

// Without the limit of time: a verdict that it ended is not kept, and others do not go by it.
std::string ProofCache::key_of(const Program& program, const ProofOptions& o) const {
  return content_hash(
      fmt::format("proof {} workers {} queues {} enumerated {}{} samples {} events {}{}\n"
                  "{}\n{}",
                  version_, o.max_workers_per_rank, o.max_copy_queues, o.max_enumerated,
                  o.partition ? "" : " all", o.max_samples, o.max_events, sizes_of(o),
                  text_of(*o.table), print(program)));
}

std::filesystem::path ProofCache::entry_of(const std::string& key) const {
  return directory_ / (key + ".proof");
}

std::optional<ProofCache::Kept> ProofCache::find(const std::string& key) const {
  constexpr std::size_t kMostBytes = 1 << 16;
  std::optional<std::string> found =
      SealedFolder(directory_).read(entry_of(key).filename(), kMostBytes);
  return found ? parsed(key, *found) : std::nullopt;
}

void ProofCache::keep(const std::string& key, const Kept& kept) const {
  std::error_code not_kept =
      SealedFolder(directory_).write(entry_of(key).filename(), content(key, kept));
  static_cast<void>(not_kept);
}

std::filesystem::path ProofCache::entry(const Program& program, const ProofOptions& options) const {
  return entry_of(key_of(program, options));
}

std::optional<Verdict> ProofCache::find(const Program& program, const ProofOptions& options) const {
  std::optional<Kept> kept = find(key_of(program, options));
  return kept ? std::optional(kept->verdict) : std::nullopt;
}

void ProofCache::insert(const Program& program, const ProofOptions& options, Verdict verdict,
                        const std::vector<Missing>& missing) const {
  keep(key_of(program, options), {verdict, missing});
}

ProofCache::Kept ProofCache::verdict_of(const Program& program, const ProofOptions& options,
                                        const Proving& by) const {
  const std::string key = key_of(program, options);
  if (std::optional<Kept> kept = find(key)) return *kept;
  SlowNotice notice(fmt::format("proving '{}', kept for later runs", program.name));
  make_own_folder(directory_);  // where that fails each process proves
  Turn turn(directory_ / (key + ".lock"));
  TurnPauses pauses(by.longest_wait);
  for (;;) {
    Turn::Status status = turn.ask();
    // Now: who had the turn kept it before giving the turn away.
    if (std::optional<Kept> kept = find(key)) return *kept;
    if (status == Turn::Status::kOver) {
      const std::string said = turn.read();
      throw_rejection(said);
      if (std::optional<Kept> kept = parsed(key, said)) return *kept;
    }
    // Over without a verdict: the proof failed, or could not be kept.
    if (status != Turn::Status::kTaken) break;
    if (!pauses.wait()) {
      log_warning(fmt::format("'{}' is proved here as well: {} has been at it for {} s",
                              program.name, turn.read(), by.longest_wait.count() / 1000));
      break;
    }
  }
  ProofResult result = by.prove(program, options);
  if (result.rejected()) {
    turn.write(rejection(result.report));
    throw Rejected(result.report);
  }
  Kept found{result.verdict, std::move(result.missing)};
  if (result.within_limits) {
    keep(key, found);
  } else {  // for those that wait: another time, with another limit, it may be proved
    turn.write(content(key, found));
  }
  return found;
}

Verdict ProofCache::require(const Program& program, const ProofOptions& options,
                            const Proving& by) const {
  Kept found = verdict_of(program, options, by);
  if (found.verdict != Verdict::kNotComplete || !by.waiver.empty()) return found.verdict;
  throw NotComplete(fmt::format("{} on {} rank{}", program.name, program.world_size,
                                program.world_size == 1 ? "" : "s"),
                    std::move(found.missing));
}

Verdict require_proved(const Program& program, const ProofOptions& options,
                       const std::string& waiver) {
  ProofOptions limited = options;
  if (limited.time_limit.count() == 0) limited.time_limit = env_proof_limit();
  // Whoever waits for another's proof gives it as long.
  return ProofCache(env_cache_dir() / "proofs")
      .require(program, limited, {.longest_wait = limited.time_limit, .waiver = waiver});
}

}  // namespace stretto
