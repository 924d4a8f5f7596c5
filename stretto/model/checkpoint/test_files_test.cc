// Named _test so that it is built into the tests and not into the library.
#include "stretto/model/checkpoint/test_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

namespace stretto {

std::string safetensors_header(const std::vector<ClaimedTensor>& tensors, std::size_t align) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  for (const ClaimedTensor& t : tensors) {
    header += fmt::format(",\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                          t.name, t.dtype, t.shape, t.begin, t.end);
  }
  header += "}";
  while ((header.size() + 8) % align != 0) header += ' ';
  return header;
}

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string safetensors_bytes(const std::vector<HonestTensor>& tensors) {
  std::vector<ClaimedTensor> claims;
  std::string data;
  for (const HonestTensor& t : tensors) {
    auto begin = static_cast<std::int64_t>(data.size());
    data += t.data;
    claims.push_back({.name = t.name,
                      .dtype = t.dtype,
                      .shape = fmt::format("[{}]", fmt::join(t.shape, ",")),
                      .begin = begin,
                      .end = static_cast<std::int64_t>(data.size())});
  }
  return safetensors_bytes(safetensors_header(claims), data);
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "stretto_checkpoint_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TemporaryDirectory::write(const std::string& name,
                                                std::string_view bytes) const {
  std::filesystem::path path = path_ / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace stretto
