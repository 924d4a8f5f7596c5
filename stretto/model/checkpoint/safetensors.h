// One safetensors file: 8 bytes of little-endian header length, a JSON header that names tensors
// with dtype, shape and byte range, and the data. The file is memory-mapped and everything it
// claims is checked before a tensor can be seen; checkpoint.h puts the shards of a model together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/model/checkpoint/mapped_file.h"

namespace stretto {

// A tensor inside a mapping, row-major and dense. `data` has any alignment, as headers of any
// length stand before it: elements are read with load_element() or std::memcpy.
struct TensorView {
  DType dtype = DType::kF32;
  std::string_view unread_dtype;    // the format's name of a dtype that is not read; else empty
  std::vector<std::int64_t> shape;  // empty for a scalar
  const std::byte* data = nullptr;
  std::size_t size_bytes = 0;

  std::int64_t num_elements() const;
};

// "[4096, 256]"
std::string to_string(std::span<const std::int64_t> shape);

using TensorMap = std::map<std::string, TensorView, std::less<>>;

// Parses a whole file lying in memory; the views point into `bytes`. Throws UserError naming
// `where` and the tensor or field when the header is longer than the file, is not the JSON it
// should be, or names a tensor twice; when a dtype is unknown, a shape negative, overflowing or in
// contradiction to its byte range; when ranges overlap, leave gaps, or end before or after the
// file. What stands under __metadata__ is not looked at.
TensorMap parse_safetensors(std::span<const std::byte> bytes, const std::string& where);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // Views live as long as this file, also when it is moved.
  const TensorMap& tensors() const { return tensors_; }
  // As MappedFile::check_unchanged.
  void check_unchanged() const { file_.check_unchanged(path_); }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  TensorMap tensors_;
};

}  // namespace stretto
