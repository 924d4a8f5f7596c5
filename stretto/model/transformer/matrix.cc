#include "stretto/model/transformer/matrix.h"

#include <cstring>
#include <new>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

void Matrix::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{kAlignment});
}

Matrix::Matrix(DType dtype, std::int64_t rows, std::int64_t cols)
    : dtype_(dtype), rows_(rows), cols_(cols) {
  std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_bytes(dtype);
  data_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment})));
  std::memset(data_.get(), 0, bytes);
}

std::byte* Matrix::row(std::int64_t r) const {
  return data_.get() + static_cast<std::size_t>(r * cols_) * size_bytes(dtype_);
}

void Matrix::copy_from(const TensorView& from, const Cut& cut) {
  // A vector is one row, or one column when this matrix is one.
  std::int64_t from_cols = from.shape.size() >= 2 ? from.shape[1] : cols_ == 1 ? 1 : from.shape[0];
  std::int64_t count_cols = cut.num_cols < 0 ? from_cols : cut.num_cols;
  STRETTO_CHECK(cut.to_col + count_cols <= cols_ && cut.to + cut.count <= rows_,
                "a weight does not fit its shard");
  std::size_t from_size = size_bytes(from.dtype), to_size = size_bytes(dtype_);
  for (std::int64_t r = 0; r < cut.count; ++r) {
    const std::byte* source =
        from.data +
        static_cast<std::size_t>((cut.first + r) * from_cols + cut.first_col) * from_size;
    std::byte* target = row(cut.to + r) + static_cast<std::size_t>(cut.to_col) * to_size;
    if (from.dtype == dtype_) {
      std::memcpy(target, source, static_cast<std::size_t>(count_cols) * to_size);
      continue;
    }
    for (std::int64_t i = 0; i < count_cols; ++i) {
      auto at = static_cast<std::size_t>(i);
      store_element(dtype_, target + at * to_size,
                    load_element(from.dtype, source + at * from_size));
    }
  }
}

}  // namespace stretto
