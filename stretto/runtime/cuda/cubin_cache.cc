#include "stretto/runtime/cuda/cubin_cache.h"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto::cuda {
namespace {

constexpr std::string_view kMagic = "stretto-cubin-1";

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

CubinCache::CubinCache(std::filesystem::path directory) : directory_(std::move(directory)) {}

std::filesystem::path CubinCache::entry(const std::string& key) const {
  return directory_ / fmt::format("{:016x}.cubin", fnv1a(key));
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
  } catch (const UserError& e) {
    log().warn("compiled kernels are not kept: {}", e.what());
  }
}

}  // namespace stretto::cuda
