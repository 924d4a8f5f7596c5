#include "stretto/proof/proof_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <thread>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/interrupts.h"
#include "stretto/base/log.h"
#include "stretto/base/own_files.h"
#include "stretto/ir/printer.h"
#include "stretto/proof/content_hash.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

// Raised whenever the proof learns to reject something it accepted, or to say of something that it
// is not complete; not for a change of the table that says what generated code does, which is part
// of the key.
constexpr int kProofVersion = 19;

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

std::string key_of(const Program& program, const ProofOptions& o) {
  return content_hash(
      fmt::format("proof {} workers {} queues {} enumerated {}{} samples {} events {}{}\n"
                  "{}\n{}",
                  kProofVersion, o.max_workers_per_rank, o.max_copy_queues, o.max_enumerated,
                  o.partition ? "" : " all", o.max_samples, o.max_events,
                  sizes_of(o), text_of(*o.table), print(program)));
}

// A truncated or damaged entry does not match; neither does another key's.
std::string content(const std::string& key, Verdict verdict) {
  return fmt::format("{}: {}\n", name(verdict), key);
}

// The turn to prove one key: an flock of a file beside the entry, which the kernel releases however
// its holder ends, and which keeps threads apart as well as processes. Who has a verdict writes it
// into the file and removes the file: those that wait have it open, and those that come later do
// not take an old verdict for one of now.
class Turn {
 public:
  enum class Status {
    kTaken,        // by another
    kMine,         // nobody has been through since this was opened
    kOver,         // somebody has; read() says more
    kWithoutLocks  // neither can be told here
  };

  explicit Turn(std::filesystem::path path) : path_(std::move(path)) {}
  // Unlocked in so many words, since a child of fork() may have the file open too.
  ~Turn() {
    if (fd_ < 0) return;
    if (holds_) ::unlink(path_.c_str());
    ::flock(fd_, LOCK_UN);
    ::close(fd_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  Status ask() {
    if (fd_ < 0) fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd_ < 0) return Status::kWithoutLocks;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return Status::kTaken;
      ::unlink(path_.c_str());  // or it would stay for ever
      return Status::kWithoutLocks;
    }
    struct stat opened = {}, there = {};
    if (::fstat(fd_, &opened) != 0) return Status::kWithoutLocks;
    holds_ = ::stat(path_.c_str(), &there) == 0 && opened.st_ino == there.st_ino &&
             opened.st_dev == there.st_dev;
    if (!holds_) return Status::kOver;
    write(fmt::format("process {}", getpid()));  // for whoever waits too long
    return Status::kMine;
  }

  // What the holder has written last; short where it could not.
  std::string read() const {
    std::string text;
    char part[4096];
    for (ssize_t n; (n = ::pread(fd_, part, sizeof part, static_cast<off_t>(text.size()))) > 0;) {
      text.append(part, static_cast<std::size_t>(n));
    }
    return text;
  }

  void write(std::string_view text) {
    struct stat before = {};
    if (!holds_ || ::fstat(fd_, &before) != 0) return;
    // Not for nothing: ext4 sends what was truncated to the disk when it is closed.
    if (before.st_size > 0 && ::ftruncate(fd_, 0) != 0) return;
    for (std::size_t done = 0; done < text.size();) {
      ssize_t n = ::pwrite(fd_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (n <= 0) return;
      done += static_cast<std::size_t>(n);
    }
  }

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  bool holds_ = false;
};

// A rejection as it lies in the file of a turn, whole or not at all.
std::string rejection(const std::string& report) {
  return fmt::format("rejected {}\n{}", report.size(), report);
}

void throw_rejection(const std::string& text) {
  std::string report = text.substr(std::min(text.size(), text.find('\n') + 1));
  if (text == rejection(report)) throw Rejected(report);
}

}  // namespace

ProofCache::ProofCache(std::filesystem::path directory) : directory_(std::move(directory)) {}

std::filesystem::path ProofCache::entry_of(const std::string& key) const {
  return directory_ / (key + ".proof");
}

std::optional<Verdict> ProofCache::find(const std::string& key) const {
  constexpr std::size_t kMostBytes = 1 << 10;
  std::optional<std::string> found =
      SealedFolder(directory_).read(entry_of(key).filename(), kMostBytes);
  if (!found) return std::nullopt;
  std::optional<Verdict> verdict = verdict_named(found->substr(0, found->find(':')));
  bool kept = verdict && *verdict != Verdict::kRejected && *found == content(key, *verdict);
  return kept ? verdict : std::nullopt;
}

void ProofCache::keep(const std::string& key, Verdict verdict) const {
  std::error_code not_kept =
      SealedFolder(directory_).write(entry_of(key).filename(), content(key, verdict));
  static_cast<void>(not_kept);
}

std::filesystem::path ProofCache::entry(const Program& program, const ProofOptions& options) const {
  return entry_of(key_of(program, options));
}

std::optional<Verdict> ProofCache::find(const Program& program, const ProofOptions& options) const {
  return find(key_of(program, options));
}

void ProofCache::insert(const Program& program, const ProofOptions& options,
                        Verdict verdict) const {
  keep(key_of(program, options), verdict);
}

void ProofCache::require(const Program& program, const ProofOptions& options,
                         const Proving& by) const {
  const std::string key = key_of(program, options);
  if (find(key)) return;
  make_own_folder(directory_);  // where that fails each process proves
  Turn turn(directory_ / (key + ".lock"));
  constexpr std::chrono::milliseconds kLongestPause{10};
  std::chrono::milliseconds pause{1};
  const Clock::time_point deadline = Clock::now() + by.longest_wait;
  for (;;) {
    Turn::Status status = turn.ask();
    if (find(key)) return;  // now: who had the turn kept it before giving the turn away
    if (status == Turn::Status::kOver) throw_rejection(turn.read());
    // Over without a verdict: the proof failed, or could not be kept.
    if (status != Turn::Status::kTaken) break;
    if (Clock::now() > deadline) {
      log_warning(fmt::format("'{}' is proved here as well: {} has been at it for {} s",
                              program.name, turn.read(), by.longest_wait.count() / 1000));
      break;
    }
    Interrupts::look();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  ProofResult result = by.prove(program, options);
  if (!result.rejected() && result.within_limits) {
    keep(key, result.verdict);
  } else {
    turn.write(rejection(result.report));
    throw Rejected(result.report);
  }
}

void require_proved(const Program& program, const ProofOptions& options) {
  ProofCache(env_cache_dir() / "proofs").require(program, options, {});
}

}  // namespace stretto
