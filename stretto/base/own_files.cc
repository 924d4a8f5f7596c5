#include "stretto/base/own_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/keyed_hash.h"
#include "stretto/base/log.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeyBytes = 32;
constexpr std::string_view kSealWord = "\nsealed ";
constexpr std::size_t kSealBytes = kSealWord.size() + 64;
constexpr int kMostLinks = 40;  // as the kernel

std::error_code last_error() { return {errno, std::generic_category()}; }

// Whether a user namespace hides who owns files of users that it does not map, root maybe.
bool owners_are_hidden() {
  std::ifstream map("/proc/self/uid_map");
  unsigned long inside = 0, outside = 0, count = 0;
  return (map >> inside >> outside >> count) && count < 4'000'000'000;
}

bool is_trusted(uid_t owner) {
  constexpr uid_t kHidden = 65534;
  return owner == ::geteuid() || owner == 0 || (owner == kHidden && owners_are_hidden());
}

// Debian gives each user a group of the same name, whose only member the user is.
bool is_private(gid_t gid) {
  passwd user{}, *found_user = nullptr;
  group its{}, *found_group = nullptr;
  std::vector<char> names(1 << 14), members(1 << 14);
  ::getpwuid_r(::geteuid(), &user, names.data(), names.size(), &found_user);
  ::getgrgid_r(gid, &its, members.data(), members.size(), &found_group);
  if (found_user == nullptr || found_group == nullptr) return false;
  if (std::string_view(its.gr_name) != user.pw_name) return false;
  for (char** member = its.gr_mem; *member != nullptr; ++member) {
    if (std::string_view(*member) != user.pw_name) return false;
  }
  return true;
}

std::string user_name(uid_t uid) {
  passwd user{}, *found = nullptr;
  std::vector<char> names(1 << 14);
  ::getpwuid_r(uid, &user, names.data(), names.size(), &found);
  return found == nullptr ? fmt::format("user {}", uid) : fmt::format("user '{}'", user.pw_name);
}

bool others_may_write(const struct stat& file) {
  if ((file.st_mode & S_IWOTH) != 0) return true;
  return (file.st_mode & S_IWGRP) != 0 && !is_private(file.st_gid);
}

// What is wrong with one name on the way; `is_last` where it is what the path leads to.
std::string why_not(const fs::path& name, const struct stat& file, bool is_last) {
  std::string shown = printable(name.string(), 300);
  if (!is_trusted(file.st_uid)) {
    return fmt::format("{} belongs to {}", shown, user_name(file.st_uid));
  }
  if (S_ISLNK(file.st_mode) || !others_may_write(file)) return "";
  // Nothing is in what is no folder, as /dev/null, the home of some users.
  if (!S_ISDIR(file.st_mode) && !is_last) return "";
  bool is_shared = S_ISDIR(file.st_mode) && (file.st_mode & S_ISVTX) != 0;
  return is_shared && !is_last ? "" : fmt::format("{} can be written by other users", shown);
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why,
                         const std::string& chosen_by) {
  throw UserError(fmt::format(
      "{}: refused, since others could put code there: {}. Make it yours alone (chown, chmod "
      "go-w), or choose another with {}",
      printable(path.string(), 300), why, chosen_by));
}

// One walk from the root, through links.
struct Walk {
  int links = 0;

  std::string look(const fs::path& path, bool is_last) {
    fs::path at = path.root_path();
    std::vector<fs::path> names;
    for (const fs::path& name : path.relative_path()) {
      if (!name.empty() && name != ".") names.push_back(name);
    }
    for (std::size_t i = 0; i <= names.size(); ++i) {
      if (i > 0) at = names[i - 1] == ".." ? parent_of(at) : at / names[i - 1];
      struct stat file = {};
      if (::lstat(at.c_str(), &file) != 0) return "";  // made by us, or told when it is opened
      if (std::string why = why_not(at, file, is_last && i == names.size()); !why.empty()) {
        return why;
      }
      if (!S_ISLNK(file.st_mode)) continue;
      std::error_code error;
      fs::path target = fs::read_symlink(at, error);
      if (error) return "";
      if (++links > kMostLinks) return fmt::format("{} is a loop of links", at.string());
      fs::path next = target.is_absolute() ? target : at.parent_path() / target;
      for (; i < names.size(); ++i) next /= names[i];
      return look(next, is_last);
    }
    return "";
  }

  // Links before it have been followed.
  static fs::path parent_of(const fs::path& folder) { return folder.parent_path(); }
};

// The key, or nothing where it is not there as it should be.
std::optional<std::string> read_key(const fs::path& file) {
  int fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  struct stat found = {};
  std::string key(kKeyBytes + 1, '\0');
  bool good = ::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == ::geteuid() &&
              (found.st_mode & 077) == 0;
  good = good && ::read(fd, key.data(), key.size()) == static_cast<ssize_t>(kKeyBytes);
  ::close(fd);
  key.resize(kKeyBytes);
  return good ? std::optional(key) : std::nullopt;
}

std::error_code write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return last_error();
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// A new file beside `path`, for this user alone.
std::error_code write_draft(const fs::path& path, std::string_view bytes, fs::path& draft) {
  static std::atomic<unsigned> count{0};
  draft = path.parent_path() /
          fmt::format(".{}-{}-{}", path.filename().string(), ::getpid(), count.fetch_add(1));
  ::unlink(draft.c_str());  // of a process that had this number before, and was killed
  int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return last_error();
  std::error_code error = write_all(fd, bytes);
  if (::fchmod(fd, 0600) != 0 && !error) error = last_error();  // whatever the umask takes
  if (::close(fd) != 0 && !error) error = last_error();
  if (error) ::unlink(draft.c_str());
  return error;
}

// Of several processes that make it at once, one wins.
std::error_code make_key(const fs::path& file) {
  std::string key(kKeyBytes, '\0');
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    return last_error();
  }
  fs::path draft;
  if (std::error_code error = write_draft(file, key, draft)) return error;
  std::error_code error;
  if (::link(draft.c_str(), file.c_str()) != 0 && errno != EEXIST) {
    if (::rename(draft.c_str(), file.c_str()) != 0) error = last_error();  // no links here
  }
  ::unlink(draft.c_str());
  return error;
}

// Looked at again once it is there: another may have been first.
std::error_code prepare(const fs::path& folder) {
  require_own(folder, "STRETTO_CACHE_DIR");
  std::error_code error = make_own_folder(folder);
  if (!error) require_own(folder, "STRETTO_CACHE_DIR");
  return error;
}

// What cannot be sealed is not kept, of whatever kind: said once.
void warn_of_key(const fs::path& file, const std::error_code& error) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  log_warning(fmt::format(
      "{} cannot be written: {}. Without this key nothing is kept in {}: proofs, kernels and "
      "compiled files are made anew each time. STRETTO_CACHE_DIR chooses another folder",
      printable(file.string(), 300), error.message(), printable(file.parent_path().string(), 300)));
}

// This user's key, made where there is none or others could have read it.
std::optional<std::string> user_key(std::error_code& error) {
  fs::path folder = env_cache_dir(), file = folder / "seal.key";
  error = prepare(folder);
  if (error) {
    warn_of_key(file, error);
    return std::nullopt;
  }
  if (std::optional<std::string> key = read_key(file)) return key;
  struct stat found = {};
  if (::lstat(file.c_str(), &found) == 0 && !read_key(file)) ::unlink(file.c_str());
  error = make_key(file);
  std::optional<std::string> key = error ? std::nullopt : read_key(file);
  if (!key && !error) error = std::make_error_code(std::errc::permission_denied);
  if (!key) warn_of_key(file, error);
  return key;
}

}  // namespace

std::string why_not_own(const fs::path& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (error) return fmt::format("{}: {}", printable(path.string(), 300), error.message());
  return Walk().look(absolute, true);
}

void require_own(const fs::path& path, const char* chosen_by) {
  std::string why = why_not_own(path);
  if (!why.empty()) refuse(path, why, chosen_by);
}

std::error_code make_own_folder(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return {};
  fs::path path = folder.has_filename() ? folder : folder.parent_path();
  if (path.has_parent_path() && path != path.parent_path()) {
    if (std::error_code above = make_own_folder(path.parent_path())) return above;
  }
  if (::mkdir(path.c_str(), 0700) == 0) {
    return ::chmod(path.c_str(), 0700) == 0 ? std::error_code() : last_error();
  }
  error = last_error();
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return {};  // another was first
  bool is_there = error == std::errc::file_exists;
  return is_there ? std::make_error_code(std::errc::not_a_directory) : error;
}

fs::path temporary_folder() {
  std::string variable = "TMPDIR";
  fs::path folder = "/tmp";
  for (const char* name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    variable = name;
    folder = text;
    break;
  }
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (!error) error = std::make_error_code(std::errc::not_a_directory);
    throw UserError(fmt::format("{}: no folder for temporary files: {} ({} chooses another)",
                                printable(folder.string(), 300), error.message(), variable));
  }
  // Others may write to the folder itself where it is sticky.
  std::string why = Walk().look(fs::absolute(folder, error), false);
  if (!why.empty()) refuse(folder, why, variable);
  return folder;
}

SealedFolder::SealedFolder(fs::path folder) : folder_(std::move(folder)) {}

std::string SealedFolder::seal(const std::string& key, const std::string& name,
                               std::string_view bytes) const {
  std::string kind = folder_.filename().string(), all;
  all.reserve(kind.size() + name.size() + bytes.size() + 2);
  all.append(kind).append(1, '\0').append(name).append(1, '\0').append(bytes);
  return std::string(kSealWord) + keyed_hash(key, all);
}

std::optional<std::string> SealedFolder::read(const std::string& name,
                                              std::size_t max_bytes) const {
  require_own(folder_, "STRETTO_CACHE_DIR");
  int fd = ::open(path(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  struct stat found = {};
  std::string bytes;
  bool good = ::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) &&
              static_cast<std::size_t>(found.st_size) <= max_bytes &&
              static_cast<std::size_t>(found.st_size) >= kSealBytes;
  if (good) {
    bytes.resize(static_cast<std::size_t>(found.st_size));
    std::size_t have = 0;
    for (ssize_t n = 1; n > 0 && have < bytes.size();) {
      n = ::read(fd, bytes.data() + have, bytes.size() - have);
      if (n > 0) have += static_cast<std::size_t>(n);
      if (n < 0 && errno == EINTR) n = 1;
    }
    good = have == bytes.size();
  }
  ::close(fd);
  if (!good) return std::nullopt;
  std::error_code error;
  std::optional<std::string> key = user_key(error);
  if (!key) return std::nullopt;
  std::string_view content = std::string_view(bytes).substr(0, bytes.size() - kSealBytes);
  if (std::string_view(bytes).substr(content.size()) != seal(*key, name, content)) {
    return std::nullopt;
  }
  bytes.resize(content.size());
  return bytes;
}

std::error_code SealedFolder::write(const std::string& name, std::string_view bytes) const {
  std::error_code error = prepare(folder_);
  if (error) return error;
  std::optional<std::string> key = user_key(error);
  if (!key) return error;
  std::string whole(bytes);
  whole += seal(*key, name, bytes);
  fs::path draft;
  error = write_draft(path(name), whole, draft);
  if (error) return error;
  if (::rename(draft.c_str(), path(name).c_str()) == 0) return {};
  error = last_error();
  ::unlink(draft.c_str());
  return error;
}

}  // namespace stretto
