#include "stretto/base/downloaded_file.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto {

namespace fs = std::filesystem;

void check_model_directory(const fs::path& path) {
  std::error_code ignored;
  if (path.empty()) throw UserError("the name of the model's directory is empty");
  if (!fs::is_directory(path, ignored)) {
    throw UserError(fmt::format("{}: is not a readable directory", path.string()));
  }
  if (fs::is_directory(path / "snapshots", ignored) && is_absent(path / "config.json")) {
    throw UserError(
        fmt::format("{}: is a folder of the hub's cache; the model's directory is one "
                    "of those in its snapshots",
                    path.string()));
  }
}

bool is_absent(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

void check_regular_file(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  switch (type) {
    case fs::file_type::regular:
      return;
    case fs::file_type::directory:
      throw UserError(fmt::format("{}: is a directory, need a file", path.string()));
    case fs::file_type::not_found:
      if (is_absent(path)) throw UserError(fmt::format("{}: is missing", path.string()));
      throw UserError(fmt::format("{}: is a link to '{}', which is missing", path.string(),
                                  printable(fs::read_symlink(path, error).string())));
    default:
      throw UserError(error ? fmt::format("{}: cannot be opened for reading: {}", path.string(),
                                          error.message())
                            : fmt::format("{}: is not a regular file", path.string()));
  }
}

void refuse_stand_in(std::string_view bytes, const std::string& where) {
  if (!bytes.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw UserError(fmt::format(
      "{}: is a Git LFS pointer, not the file itself; 'git lfs pull' fetches that", where));
}

std::string read_downloaded_file(const fs::path& path, std::size_t max_bytes) {
  check_regular_file(path);
  std::string bytes = read_file(path, max_bytes);
  refuse_stand_in(bytes, path.string());
  return bytes;
}

}  // namespace stretto
