// What the kernel tests share: a printed seed, tiles inside guarded memory, and both instruction
// sets.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels::testing {

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16, DType::kBF16, DType::kF8E4M3,
                                       DType::kF64,  DType::kI32, DType::kI64,  DType::kU8,
                                       DType::kBool, DType::kI8};

// Each test case draws its own inputs; STRETTO_TEST_SEED repeats them.
class Random {
 public:
  Random() {
    seed_ = static_cast<unsigned>(test_seed());
    engine_.seed(seed_);
    trace_ = std::make_unique<::testing::ScopedTrace>(__FILE__, __LINE__,
                                                      "STRETTO_TEST_SEED=" + std::to_string(seed_));
  }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

 private:
  unsigned seed_;
  std::mt19937 engine_;
  std::unique_ptr<::testing::ScopedTrace> trace_;
};

enum class Layout { kRows, kColumns, kStrided };  // what is contiguous

// A tile in the middle of memory filled with one byte: whatever a kernel writes outside the tile,
// or leaves unwritten inside, shows.
class GuardedTile {
 public:
  GuardedTile(DType dtype, std::int64_t rows, std::int64_t cols, Layout layout = Layout::kRows,
              std::int64_t padding = 3)
      : dtype_(dtype), rows_(rows), cols_(cols) {
    std::int64_t step = layout == Layout::kStrided ? 2 : 1;
    bool by_rows = layout != Layout::kColumns;
    row_stride_ = by_rows ? cols * step + padding : 1;
    col_stride_ = by_rows ? step : rows + padding;
    std::int64_t span = (by_rows ? rows * row_stride_ : cols * col_stride_) + 2 * kGuard;
    bytes_.assign(static_cast<std::size_t>(span) * size_bytes(dtype), std::byte{kPoison});
  }
  TileRef ref() { return {dtype_, rows_, cols_, at(0, 0), row_stride_, col_stride_}; }
  ConstTileRef cref() { return ref(); }
  double get(std::int64_t r, std::int64_t c) { return load_element(dtype_, at(r, c)); }
  void set(std::int64_t r, std::int64_t c, double v) { store_element(dtype_, at(r, c), v); }
  std::vector<double> values() {  // row by row
    std::vector<double> all;
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c) all.push_back(get(r, c));
    return all;
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }

  // f(r, c) -> double for every element.
  template <typename F>
  void fill_by(F f) {
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c) set(r, c, f(r, c));
  }
  void fill_random(Random& random, double low, double high) {
    fill_by([&](std::int64_t, std::int64_t) { return random.uniform(low, high); });
  }

  void expect_guards_intact() {
    std::vector<bool> inside(bytes_.size(), false);
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c)
        for (std::size_t i = 0; i < size_bytes(dtype_); ++i)
          inside[static_cast<std::size_t>(at(r, c) - bytes_.data()) + i] = true;
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      if (!inside[i]) {
        ASSERT_EQ(bytes_[i], std::byte{kPoison}) << "byte " << i << " outside the tile was written";
      }
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr unsigned char kPoison = 0xff;  // NaN in every float but bool's and u8's 255

  std::byte* at(std::int64_t r, std::int64_t c) {
    auto element = static_cast<std::size_t>(kGuard + r * row_stride_ + c * col_stride_);
    return bytes_.data() + element * size_bytes(dtype_);
  }

  DType dtype_;
  std::int64_t rows_, cols_, row_stride_, col_stride_;
  std::vector<std::byte> bytes_;
};

inline bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b;
}

}  // namespace stretto::kernels::testing
