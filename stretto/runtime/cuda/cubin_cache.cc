#include "stretto/runtime/cuda/cubin_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto::cuda {
namespace {

constexpr std::string_view kMagic = "stretto-cubin-1";
constexpr const char* kExtension = ".cubin";
using Clock = std::filesystem::file_time_type::clock;

// FNV-1a (Fowler, Noll, Vo; RFC 9923). Names entries and finds accidents, not attacks: whoever can
// write the user's cache can write machine code too. The key itself is stored and compared, so two
// keys of one hash cost a compilation and nothing else.
constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325;
std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = kFnvStart) {
  for (char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return hash;
}

// One line of sizes and a checksum of everything else; the body, key, log and cubin, follows it.
std::string header(std::size_t key_bytes, const KernelImage& image, std::string_view body) {
  std::string sizes = fmt::format("{} {} {} {} {}", kMagic, key_bytes, image.log.size(),
                                  image.cubin.size(), image.compile_seconds);
  return fmt::format("{} {:016x}\n", sizes, fnv1a(body, fnv1a(sizes)));
}

}  // namespace

CubinCache::CubinCache(std::filesystem::path directory, std::uint64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {}

std::filesystem::path CubinCache::entry(const std::string& key) const {
  return directory_ / fmt::format("{:016x}{}", fnv1a(key), kExtension);
}

std::optional<KernelImage> CubinCache::find(const std::string& key) const {
  std::ifstream in(entry(key), std::ios::binary);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  std::string body((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());

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
  if (line + "\n" != header(key_bytes, image, body)) return std::nullopt;
  image.from_cache = true;
  std::error_code ignored;  // of a cache that may only be read: its owner cleans it
  std::filesystem::last_write_time(entry(key), Clock::now(), ignored);
  return image;
}

void CubinCache::insert(const std::string& key, const KernelImage& image) const {
  std::string body = key + image.log + image.cubin;
  try {
    std::error_code ignored;  // shows in the opening of the file
    std::filesystem::create_directories(directory_, ignored);
    AtomicFile file(entry(key));
    file.write(header(key.size(), image, body));
    file.write(body);
    file.commit();
    make_room(entry(key));
  } catch (const UserError& e) {
    log_warning(fmt::format("compiled kernels are not kept: {}", e.what()));
  }
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
