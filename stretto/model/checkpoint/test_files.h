// Files for the tests of this folder: a writer of safetensors files, honest or not, and a directory
// that goes away.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace stretto {

// One header entry exactly as it shall be claimed, whatever the data says.
struct ClaimedTensor {
  std::string name;
  std::string dtype = "F32";
  std::string shape = "[1]";  // JSON text
  std::int64_t begin = 0;
  std::int64_t end = 4;
};

// Header JSON of these entries, padded with spaces to `align` bytes together with the length word.
std::string safetensors_header(const std::vector<ClaimedTensor>& tensors, std::size_t align = 8);
// Length word, header, data.
std::string safetensors_bytes(const std::string& header, const std::string& data);

struct HonestTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};
std::string safetensors_bytes(const std::vector<HonestTensor>& tensors);

// A fresh directory, removed with everything in it at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

}  // namespace stretto
