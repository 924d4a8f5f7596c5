#include "stretto/model/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>
#include <tuple>

#include "stretto/base/downloaded_file.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensor data is used as it lies in the file");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxRank = 16;

struct StoredDType {
  std::string_view name;
  DType dtype;
};

constexpr std::array<StoredDType, 8> kDTypes = {{{"F32", DType::kF32},
                                                 {"F16", DType::kF16},
                                                 {"BF16", DType::kBF16},
                                                 {"F8_E4M3", DType::kF8E4M3},
                                                 {"I32", DType::kI32},
                                                 {"I64", DType::kI64},
                                                 {"U8", DType::kU8},
                                                 {"BOOL", DType::kBool}}};

// The format's other dtypes. Tensors of them are counted and bounded, not read: they stand beside
// weights that are.
struct UnreadDType {
  std::string_view name;
  std::int64_t bits;
};

constexpr std::array<UnreadDType, 14> kUnread = {{{"F4", 4},
                                                  {"F6_E2M3", 6},
                                                  {"F6_E3M2", 6},
                                                  {"F8_E5M2", 8},
                                                  {"F8_E8M0", 8},
                                                  {"F8_E4M3FNUZ", 8},
                                                  {"F8_E5M2FNUZ", 8},
                                                  {"I8", 8},
                                                  {"I16", 16},
                                                  {"U16", 16},
                                                  {"U32", 32},
                                                  {"U64", 64},
                                                  {"F64", 64},
                                                  {"C64", 64}}};

// Sets the dtype of `view`; returns the bits of one element.
std::int64_t read_dtype(const JsonFields& fields, TensorView& view) {
  std::string text = fields.text("dtype");
  for (const StoredDType& known : kDTypes) {
    if (text != known.name) continue;
    view.dtype = known.dtype;
    return 8 * static_cast<std::int64_t>(size_bytes(known.dtype));
  }
  for (const UnreadDType& known : kUnread) {
    if (text != known.name) continue;
    view.dtype = DType::kU8;
    view.unread_dtype = known.name;
    return known.bits;
  }
  std::string names;
  for (const StoredDType& known : kDTypes) names += fmt::format(" {}", known.name);
  fields.fail("dtype",
              fmt::format("'{}' is not known; weights have one of:{}", printable(text), names));
}

std::vector<std::int64_t> read_shape(const JsonFields& fields) {
  const Json* shape = fields.find("shape");
  if (shape == nullptr || !shape->is_array() || shape->size() > kMaxRank) {
    fields.fail("shape", fmt::format("need an array of at most {} sizes", kMaxRank));
  }
  return fields.integers("shape", 0, std::numeric_limits<std::int64_t>::max());
}

// Bytes of a dense tensor; refused when any partial product leaves 63 bits.
std::uint64_t dense_bytes(const JsonFields& fields, std::int64_t bits,
                          const std::vector<std::int64_t>& shape) {
  for (std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) {
      fields.fail("shape", fmt::format("{} overflows", to_string(shape)));
    }
  }
  if (bits % 8 != 0) fields.fail("shape", fmt::format("{} is no whole bytes", to_string(shape)));
  return static_cast<std::uint64_t>(bits / 8);
}

// The parts of the file; data_at is the offset of the data section from the start of the file.
struct Layout {
  std::string_view header;
  std::size_t data_at;
  std::size_t data_bytes;
};

Layout read_layout(std::span<const std::byte> bytes, const std::string& where) {
  refuse_stand_in({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
  if (bytes.size() < kLengthBytes) {
    throw UserError(fmt::format("{}: header length: the file has {} bytes, need at least {}", where,
                                bytes.size(), kLengthBytes));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  std::uint64_t rest = bytes.size() - kLengthBytes;
  if (length > rest || length > kMaxHeaderBytes) {
    throw UserError(fmt::format(
        "{}: header length: {} bytes claimed, {} bytes follow and at most {} are allowed", where,
        length, rest, kMaxHeaderBytes));
  }
  auto header_bytes = static_cast<std::size_t>(length);
  std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  if (header.empty() || header[0] != '{') {
    throw UserError(fmt::format("{}: header: does not start with '{{'", where));
  }
  std::size_t data_at = kLengthBytes + header_bytes;
  return {header, data_at, bytes.size() - data_at};
}

TensorView read_tensor(const JsonFields& fields, std::span<const std::byte> bytes,
                       const Layout& layout) {
  TensorView view;
  std::int64_t bits = read_dtype(fields, view);
  view.shape = read_shape(fields);
  const Json* range = fields.find("data_offsets");
  if (range == nullptr || !range->is_array() || range->size() != 2) {
    fields.fail("data_offsets", "need an array of begin and end");
  }
  std::vector<std::int64_t> offsets =
      fields.integers("data_offsets", 0, static_cast<std::int64_t>(layout.data_bytes));
  auto begin = static_cast<std::size_t>(offsets[0]);
  auto end = static_cast<std::size_t>(offsets[1]);
  if (end < begin) fields.fail("data_offsets", fmt::format("end {} before begin {}", end, begin));
  std::uint64_t need = dense_bytes(fields, bits, view.shape);
  if (need != end - begin) {
    fields.fail("data_offsets",
                fmt::format("[{}, {}] are {} bytes, but {} {} takes {}", begin, end, end - begin,
                            fields.text("dtype"), to_string(view.shape), need));
  }
  view.data = bytes.data() + layout.data_at + begin;
  view.size_bytes = end - begin;
  return view;
}

// Every byte of the data section belongs to exactly one tensor.
void check_cover(const TensorMap& tensors, std::span<const std::byte> bytes, const Layout& layout,
                 const std::string& where) {
  std::vector<const TensorMap::value_type*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->second.data, a->second.size_bytes) <
           std::tie(b->second.data, b->second.size_bytes);
  });
  const std::byte* covered = bytes.data() + layout.data_at;
  for (const auto* entry : order) {
    std::ptrdiff_t step = entry->second.data - covered;
    if (step != 0) {
      throw UserError(fmt::format(
          "{}: tensor '{}': data_offsets: {} {} bytes", where, printable(entry->first),
          step < 0 ? "overlap the tensor before by" : "leave a gap of", step < 0 ? -step : step));
    }
    covered += entry->second.size_bytes;
  }
  std::ptrdiff_t left = bytes.data() + bytes.size() - covered;
  if (left != 0) {
    throw UserError(fmt::format("{}: {} bytes at the end belong to no tensor", where, left));
  }
}

}  // namespace

std::int64_t TensorView::num_elements() const {
  return static_cast<std::int64_t>(size_bytes / stretto::size_bytes(dtype));
}

std::string to_string(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

TensorMap parse_safetensors(std::span<const std::byte> bytes, const std::string& where) {
  Layout layout = read_layout(bytes, where);
  Json header = parse_json(layout.header, where + ": header",
                           {.max_bytes = kMaxHeaderBytes, .max_depth = 16});
  TensorMap tensors;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") continue;  // not used
    JsonFields fields(value, fmt::format("{}: tensor '{}'", where, printable(key)));
    tensors.emplace(key, read_tensor(fields, bytes, layout));
  }
  check_cover(tensors, bytes, layout, where);
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), tensors_(parse_safetensors(file_.bytes(), path.string())) {}

}  // namespace stretto
