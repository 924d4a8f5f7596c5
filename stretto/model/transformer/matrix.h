// A weight or a table of a model in the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "stretto/base/dtype.h"
#include "stretto/model/checkpoint/safetensors.h"

namespace stretto {

// Row-major, 64-byte aligned, owned.
class Matrix {
 public:
  Matrix() = default;
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols);  // zeros

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  bool empty() const { return rows_ * cols_ == 0; }
  std::byte* data() const { return data_.get(); }
  std::byte* row(std::int64_t r) const;

  // Copies `count` rows of `from` ([*, cols]) starting at `first`, to rows starting at `to`,
  // converting to this dtype; columns [first_col, first_col + num_cols) land at column to_col.
  struct Cut {
    std::int64_t first = 0, count = 0, to = 0;
    std::int64_t first_col = 0, num_cols = -1, to_col = 0;  // -1: all
  };
  void copy_from(const TensorView& from, const Cut& cut);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  DType dtype_ = DType::kF32;
  std::int64_t rows_ = 0, cols_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace stretto
