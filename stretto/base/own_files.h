// What this process reads back and runs or trusts must be its user's own: the one place that
// decides which folders are, and that keeps files in them under a seal.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace stretto {

// Why others than this user and root could change what is at `path`: whose it is, or a folder or a
// link on the way to it. Empty where nobody could. The part of a path that does not exist counts as
// ours. Others may write to a folder with the sticky bit on the way to it, but not to `path`.
std::string why_not_own(const std::filesystem::path& path);

// The same, but a UserError with the remedy. `chosen_by` is the variable that chooses another.
void require_own(const std::filesystem::path& path, const char* chosen_by);

// Makes what is missing of the path, for this user alone whatever the umask.
std::error_code make_own_folder(const std::filesystem::path& folder);

// The folder for temporary files that TMPDIR (or TMP, TEMP, TEMPDIR) names, else /tmp. UserError
// naming the variable where it is none, or where others could exchange what is made there.
std::filesystem::path temporary_folder();

// Files under a seal that only this user can make: a keyed hash of the kind, the name and the
// bytes, whose key is env_cache_dir()/seal.key. Any number of threads and processes may use one
// folder at the same time; a file appears whole or not at all.
class SealedFolder {
 public:
  // The folder's own name is the kind.
  explicit SealedFolder(std::filesystem::path folder);

  // The bytes as write() was given them; nothing where the file is missing, damaged, longer than
  // `max_bytes` or sealed by another. UserError where the folder is not this user's.
  std::optional<std::string> read(const std::string& name, std::size_t max_bytes) const;
  // Error where the file could not be kept, which leaves what was there. UserError as read().
  std::error_code write(const std::string& name, std::string_view bytes) const;

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

 private:
  std::string seal(const std::string& key, const std::string& name, std::string_view bytes) const;

  std::filesystem::path folder_;
};

}  // namespace stretto
