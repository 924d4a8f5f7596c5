#include "stretto/runtime/cuda/cubin_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "stretto/base/keyed_hash.h"
#include "stretto/base/log.h"
#include "stretto/base/own_files.h"

namespace stretto::cuda {
namespace {

constexpr std::string_view kMagic = "stretto-cubin-2";
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr const char* kExtension = ".cubin";
using Clock = std::filesystem::file_time_type::clock;

// One line of sizes; the body, key, log and cubin, follows it.
std::string header(std::size_t key_bytes, const KernelImage& image) {
  return fmt::format("{} {} {} {} {}\n", kMagic, key_bytes, image.log.size(), image.cubin.size(),
                     image.compile_seconds);
}

}  // namespace

CubinCache::CubinCache(std::filesystem::path directory, std::uint64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {}

std::filesystem::path CubinCache::entry(const std::string& key) const {
  return directory_ / (keyed_hash("", key).substr(0, 32) + kExtension);
}

std::optional<KernelImage> CubinCache::find(const std::string& key) const {
  std::optional<std::string> kept =
      SealedFolder(directory_).read(entry(key).filename(), kMostBytes);
  if (!kept) return std::nullopt;
  std::size_t end = std::min(kept->find('\n'), kept->size());
  std::string line = kept->substr(0, end), body = kept->substr(std::min(end + 1, kept->size()));

  std::istringstream fields(line);
  std::string magic;
  std::size_t key_bytes = 0, log_bytes = 0, cubin_bytes = 0;
  KernelImage image;
  fields >> magic >> key_bytes >> log_bytes >> cubin_bytes >> image.compile_seconds;
  if (!fields || key_bytes != key.size() || log_bytes > body.size() || cubin_bytes > body.size() ||
      key_bytes + log_bytes + cubin_bytes != body.size()) {
    return std::nullopt;
  }
  if (body.compare(0, key_bytes, key) != 0) return std::nullopt;
  image.log = body.substr(key_bytes, log_bytes);
  image.cubin = body.substr(key_bytes + log_bytes);
  image.from_cache = true;
  std::error_code ignored;  // of a cache that may only be read: its owner cleans it
  std::filesystem::last_write_time(entry(key), Clock::now(), ignored);
  return image;
}

void CubinCache::insert(const std::string& key, const KernelImage& image) const {
  std::error_code error =
      SealedFolder(directory_)
          .write(entry(key).filename(), header(key.size(), image) + key + image.log + image.cubin);
  if (!error) return make_room(entry(key));
  log_warning(fmt::format("compiled kernels are not kept: {}: {}", entry(key).string(),
                          error.message()));
}

// Other processes may insert, use and remove entries meanwhile: what is gone is no error, and a
// reader of a removed file reads on.
void CubinCache::make_room(const std::filesystem::path& kept) const {
  struct Entry {
    Clock::time_point used;
    std::uintmax_t bytes;
    std::filesystem::path path;
  };
  std::vector<Entry> entries;
  std::uintmax_t total = 0;
  std::error_code failed;
  std::filesystem::directory_iterator files(directory_, failed), end;
  for (; !failed && files != end; files.increment(failed)) {
    if (files->path().extension() != kExtension) continue;
    std::error_code gone;
    Entry e{.used = files->last_write_time(gone), .bytes = 0, .path = files->path()};
    if (!gone) e.bytes = files->file_size(gone);
    if (gone) continue;
    total += e.bytes;
    if (e.path != kept) entries.push_back(std::move(e));
  }
  if (total <= max_bytes_) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  // A tenth more than needed, so that this is not for every insertion.
  for (const Entry& e : entries) {
    if (total <= max_bytes_ - max_bytes_ / 10) break;
    std::error_code ignored;
    std::filesystem::remove(e.path, ignored);
    total -= e.bytes;
  }
}

}  // namespace stretto::cuda
