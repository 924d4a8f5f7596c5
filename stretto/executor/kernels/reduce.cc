#include "stretto/executor/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/row_chunks.h"

namespace stretto::kernels {
namespace {

constexpr int kLanes = 16;

template <typename T>
constexpr T lowest() {
  if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
  return std::numeric_limits<T>::lowest();
}
template <typename T>
constexpr T highest() {
  if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::infinity();
  return std::numeric_limits<T>::max();
}

template <typename T>
struct Sum {
  static constexpr T kIdentity = 0;
  static constexpr bool kIgnoresNan = false;
  STRETTO_INLINED static T join(T x, T y) {
    using W = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                          std::type_identity<T>>::type;
    return static_cast<T>(static_cast<W>(x) + static_cast<W>(y));
  }
};
// The comparison is false for a NaN in y, which thus never replaces x.
template <typename T>
struct Max {
  static constexpr T kIdentity = lowest<T>();
  static constexpr bool kIgnoresNan = true;
  STRETTO_INLINED static T join(T x, T y) { return y > x ? y : x; }
};
template <typename T>
struct Min {
  static constexpr T kIdentity = highest<T>();
  static constexpr bool kIgnoresNan = true;
  STRETTO_INLINED static T join(T x, T y) { return y < x ? y : x; }
};

template <typename Op, typename T>
STRETTO_INLINED inline T reduce_packed(const T* x, std::int64_t n) {
  T lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = Op::kIdentity;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = Op::join(lanes[j], x[i + j]);
  }
  for (int j = 0; i + j < n; ++j) lanes[j] = Op::join(lanes[j], x[i + j]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = Op::join(lanes[j], lanes[j + half]);
  }
  return lanes[0];
}

template <typename T>
bool all_nan(const T* x, std::int64_t n) {
  if constexpr (!std::is_floating_point_v<T>) return false;
  return n > 0 && std::all_of(x, x + n, [](T v) { return v != v; });
}

// The row's elements side by side: in place, or copied into `buffer`.
template <typename T>
const T* packed_row(const ConstTileRef& a, std::int64_t r, std::vector<T>& buffer) {
  const T* first = a.row<T>(r);
  if (a.col_stride == 1 || a.cols <= 1) return first;
  buffer.resize(static_cast<std::size_t>(a.cols));
  for (std::int64_t c = 0; c < a.cols; ++c)
    buffer[static_cast<std::size_t>(c)] = first[c * a.col_stride];
  return buffer.data();
}

template <typename Op, typename T>
void reduce_rows(const TileRef& out, const ConstTileRef& a) {
  std::vector<T> buffer;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const T* x = packed_row<T>(a, r, buffer);
    std::int64_t n = a.cols;
    T result;
    run_vectorised([=, &result]() STRETTO_INLINED { result = reduce_packed<Op>(x, n); });
    if (Op::kIgnoresNan && result == Op::kIdentity && all_nan(x, n)) result = x[0];
    *out.row<T>(r) = result;
  }
}

template <typename Op, typename T>
void reduce_columns(const TileRef& out, const ConstTileRef& a) {
  ChunkedOperand<T> source(a, a.rows, a.cols);
  for_each_chunk<T>(out, [&](T* to, std::int64_t, std::int64_t c, std::int64_t n) {
    std::fill_n(to, n, Op::kIdentity);
    for (std::int64_t r = 0; r < a.rows; ++r) {
      const T* x = source.chunk(r, c, n);
      run_vectorised([=]() STRETTO_INLINED {
        STRETTO_INDEPENDENT
        for (std::int64_t i = 0; i < n; ++i) to[i] = Op::join(to[i], x[i]);
      });
    }
    for (std::int64_t i = 0; Op::kIgnoresNan && a.rows > 0 && i < n; ++i) {
      if (to[i] != Op::kIdentity) continue;
      bool only_nan = true;
      for (std::int64_t r = 0; r < a.rows && only_nan; ++r) {
        T v = a.row<T>(r)[(c + i) * a.col_stride];
        only_nan = v != v;
      }
      if (only_nan) to[i] = a.row<T>(0)[(c + i) * a.col_stride];
    }
  });
}

template <typename T>
std::int32_t argmax(const T* x, std::int64_t n) {
  if (n == 0) return -1;
  T largest;
  run_vectorised([=, &largest]() STRETTO_INLINED { largest = reduce_packed<Max<T>>(x, n); });
  const T* at = std::find(x, x + n, largest);
  return at == x + n ? 0 : static_cast<std::int32_t>(at - x);
}

template <typename T>
void argmax_rows(const TileRef& out, const ConstTileRef& a) {
  std::vector<T> buffer;
  for (std::int64_t r = 0; r < a.rows; ++r)
    *out.row<std::int32_t>(r) = argmax(packed_row<T>(a, r, buffer), a.cols);
}

template <template <typename> typename Op>
void reduce(const TileRef& out, const ConstTileRef& a, bool by_rows) {
  STRETTO_CHECK(out.dtype == a.dtype, "reduce: output and operand differ in dtype");
  STRETTO_CHECK(out.rows == (by_rows ? a.rows : 1) && out.cols == (by_rows ? 1 : a.cols),
                "reduce: output of a wrong shape");
  auto run = [&]<typename T>(T) {
    by_rows ? reduce_rows<Op<T>, T>(out, a) : reduce_columns<Op<T>, T>(out, a);
  };
  if (a.dtype == DType::kF32) return run(float{});
  if (a.dtype == DType::kF64) return run(double{});
  if (a.dtype == DType::kI32) return run(std::int32_t{});
  STRETTO_CHECK(a.dtype == DType::kI64, "reduce: neither f32, f64, i32 nor i64");
  run(std::int64_t{});
}

}  // namespace

void row_sum(const TileRef& out, const ConstTileRef& a) { reduce<Sum>(out, a, true); }
void row_max(const TileRef& out, const ConstTileRef& a) { reduce<Max>(out, a, true); }
void row_min(const TileRef& out, const ConstTileRef& a) { reduce<Min>(out, a, true); }
void col_sum(const TileRef& out, const ConstTileRef& a) { reduce<Sum>(out, a, false); }
void col_max(const TileRef& out, const ConstTileRef& a) { reduce<Max>(out, a, false); }
void col_min(const TileRef& out, const ConstTileRef& a) { reduce<Min>(out, a, false); }

void row_argmax(const TileRef& out, const ConstTileRef& a) {
  STRETTO_CHECK(out.dtype == DType::kI32, "row_argmax: the output is not i32");
  STRETTO_CHECK(out.rows == a.rows && out.cols == 1, "row_argmax: output of a wrong shape");
  if (a.dtype == DType::kF32) return argmax_rows<float>(out, a);
  if (a.dtype == DType::kF64) return argmax_rows<double>(out, a);
  if (a.dtype == DType::kI32) return argmax_rows<std::int32_t>(out, a);
  STRETTO_CHECK(a.dtype == DType::kI64, "row_argmax: neither f32, f64, i32 nor i64");
  argmax_rows<std::int64_t>(out, a);
}

void col_argmax(const TileRef& out, const ConstTileRef& a) {
  STRETTO_CHECK(out.rows == 1 && out.cols == a.cols, "col_argmax: output of a wrong shape");
  TileRef column{out.dtype, out.cols, 1, out.data, out.col_stride, 1};
  row_argmax(column, transposed(a));
}

}  // namespace stretto::kernels
