#include "stretto/executor/kernels/dot.h"

#include <cblas.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/convert.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/dot_native.h"
#include "stretto/executor/kernels/dot_small.h"
#include "stretto/executor/kernels/elementwise.h"

namespace stretto::kernels {
namespace {

// Blocks of converted operands: 4 MiB of scratch a side at most. k is short enough for a panel to
// stay in the second-level cache until OpenBLAS packs it, m and n long enough that packing each
// panel once more is lost in the product (AMD EPYC Zen 3, 2026-11-21, kernels_bench).
constexpr std::int64_t kBlockK = 512, kBlockMN = 2048;

struct Scratch {
  std::vector<float> a, b;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// A matrix as cblas_sgemm takes it.
struct Panel {
  const float* data;
  CBLAS_TRANSPOSE order;
  int stride;
};

bool is_matrix_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

// cblas wants a leading dimension of at least the row's length, also where there is one row.
bool usable_in_place(std::int64_t rows, std::int64_t cols, std::ptrdiff_t row_stride) {
  return rows <= 1 || (row_stride >= cols && row_stride <= INT_MAX);
}

ConstTileRef part(ConstTileRef t, std::int64_t row, std::int64_t col, std::int64_t rows,
                  std::int64_t cols) {
  std::ptrdiff_t offset = row * t.row_stride + col * t.col_stride;
  t.data = static_cast<const std::byte*>(t.data) +
           offset * static_cast<std::ptrdiff_t>(size_bytes(t.dtype));
  t.rows = rows;
  t.cols = cols;
  return t;
}

bool is_by_rows(const ConstTileRef& t) { return t.col_stride == 1 || t.cols == 1; }

// An f32 tile in place, where cblas can read it there.
bool in_place(const ConstTileRef& t) {
  if (t.dtype != DType::kF32) return false;
  if (is_by_rows(t)) return usable_in_place(t.rows, t.cols, t.row_stride);
  return (t.row_stride == 1 || t.rows == 1) && usable_in_place(t.cols, t.rows, t.col_stride);
}

int leading(std::int64_t rows, std::int64_t cols, std::ptrdiff_t stride) {
  return static_cast<int>(rows <= 1 ? cols : stride);
}

// The hardware's prefetchers stop at pages, which is where the rows of a wide tensor lie apart.
constexpr std::int64_t kRowsAhead = 8;

void prefetch_row(const ConstTileRef& t, std::int64_t row) {
  if (row >= t.rows) return;
  const auto* p = static_cast<const char*>(part(t, row, 0, 1, t.cols).data);
  auto bytes = t.cols * static_cast<std::int64_t>(size_bytes(t.dtype));
  for (std::int64_t at = 0; at < std::min<std::int64_t>(bytes, 256); at += 64)
    __builtin_prefetch(p + at);
}

Panel panel_of(const ConstTileRef& t, std::vector<float>& scratch) {
  auto* data = static_cast<const float*>(t.data);
  if (in_place(t)) {
    if (is_by_rows(t)) return {data, CblasNoTrans, leading(t.rows, t.cols, t.row_stride)};
    return {data, CblasTrans, leading(t.cols, t.rows, t.col_stride)};
  }
  bool by_rows = is_by_rows(t) || t.row_stride != 1;
  ConstTileRef rows = by_rows ? t : transposed(t);
  // An odd number of cache lines per row, so that rows do not compete for the same cache sets.
  std::int64_t stride = ((rows.cols + 15) / 16 | 1) * 16;
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(rows.rows * stride)));
  if (rows.col_stride == 1) {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      prefetch_row(rows, r + kRowsAhead);
      convert(DType::kF32, scratch.data() + r * stride, rows.dtype,
              part(rows, r, 0, 1, rows.cols).data, rows.cols);
    }
  } else {
    cast(TileRef{DType::kF32, rows.rows, rows.cols, scratch.data(), stride, 1}, rows);
  }
  return {scratch.data(), by_rows ? CblasNoTrans : CblasTrans, static_cast<int>(stride)};
}

struct Block {
  std::int64_t m0, n0, k0, m, n, k;
};

void multiply_block(const DotArgs& args, const Block& at, const Panel& b) {
  Panel a = panel_of(part(args.a, at.m0, at.k0, at.m, at.k), thread_scratch().a);
  bool add = args.accumulate || at.k0 > 0;
  float* acc = args.acc.row<float>(at.m0) + at.n0;
  cblas_sgemm(CblasRowMajor, a.order, b.order, static_cast<int>(at.m), static_cast<int>(at.n),
              static_cast<int>(at.k), 1.0f, a.data, a.stride, b.data, b.stride, add ? 1.0f : 0.0f,
              acc, leading(args.acc.rows, args.acc.cols, args.acc.row_stride));
}

void dot_blas(const DotArgs& args) {
  // OpenBLAS has one number of threads for the process; ours is one per rank already.
  static const bool single_threaded = (openblas_set_num_threads(1), true);
  (void)single_threaded;
  std::int64_t m = args.a.rows, n = args.b.cols, k = args.a.cols;
  bool direct = in_place(args.a) && in_place(args.b);
  std::int64_t step = direct ? INT_MAX : kBlockMN, step_k = direct ? INT_MAX : kBlockK;
  for (std::int64_t n0 = 0; n0 < n; n0 += step) {
    for (std::int64_t k0 = 0; k0 < k; k0 += step_k) {
      std::int64_t width = std::min(step, n - n0), depth = std::min(step_k, k - k0);
      Panel b = panel_of(part(args.b, k0, n0, depth, width), thread_scratch().b);
      for (std::int64_t m0 = 0; m0 < m; m0 += step)
        multiply_block(args, {m0, n0, k0, std::min(step, m - m0), width, depth}, b);
    }
  }
}

void dot_small(const DotArgs& args, bool by_rows) {
  std::int64_t m = args.a.rows, k = args.a.cols;
  std::int64_t stride = (k + 7) / 8 * 8;
  std::vector<float>& x = thread_scratch().a;
  x.resize(std::max(x.size(), static_cast<std::size_t>(m * stride)));
  for (std::int64_t r = 0; r < m; ++r) std::fill_n(x.data() + r * stride + k, stride - k, 0.0f);
  cast(TileRef{DType::kF32, m, k, x.data(), stride, 1}, args.a);
  SmallDot s{.acc = args.acc.row<float>(0),
             .acc_stride = args.acc.row_stride,
             .x = x.data(),
             .x_stride = stride,
             .weights = args.b.data,
             .dtype = args.b.dtype,
             .weights_stride = by_rows ? args.b.col_stride : args.b.row_stride,
             .m = m,
             .n = args.b.cols,
             .k = k,
             .accumulate = args.accumulate};
#if defined(__x86_64__)
  if (use_avx2()) return by_rows ? avx2::dot_weight_rows(s) : avx2::dot_weight_columns(s);
#endif
  by_rows ? portable::dot_weight_rows(s) : portable::dot_weight_columns(s);
}

bool has_unit_stride(const ConstTileRef& t) {
  bool by_columns = t.row_stride == 1 || t.rows == 1;
  bool by_rows = t.col_stride == 1 || t.cols == 1;
  return (by_rows && (t.rows <= 1 || t.row_stride >= t.cols)) ||
         (by_columns && (t.cols <= 1 || t.col_stride >= t.rows));
}

void check(const DotArgs& args) {
  STRETTO_CHECK(args.acc.dtype == DType::kF32, "dot: the accumulator is not f32");
  STRETTO_CHECK(is_matrix_float(args.a.dtype) && is_matrix_float(args.b.dtype),
                "dot: an operand is neither f32, bf16 nor f16");
  STRETTO_CHECK(
      args.a.rows == args.acc.rows && args.b.cols == args.acc.cols && args.a.cols == args.b.rows,
      "dot: shapes do not fit");
  STRETTO_CHECK(args.acc.col_stride == 1 || args.acc.cols <= 1,
                "dot: the accumulator's columns are not contiguous");
  STRETTO_CHECK(args.acc.rows <= 1 ||
                    (args.acc.row_stride >= args.acc.cols && args.acc.row_stride <= INT_MAX),
                "dot: the accumulator's rows overlap");
  STRETTO_CHECK(std::max({args.acc.rows, args.acc.cols, args.a.cols}) <= INT_MAX,
                "dot: an extent above 2^31");
}

}  // namespace

void dot(const DotArgs& args) {
  check(args);
  const ConstTileRef &a = args.a, &b = args.b;
  if (a.rows == 0 || b.cols == 0) return;
  if (a.cols == 0) {
    if (!args.accumulate) fill(args.acc, 0);
    return;
  }
  bool stored_by_k = b.row_stride == 1 || b.rows == 1;
  bool stored_by_n = b.col_stride == 1 || b.cols == 1;
  if (a.rows <= kMaxSmallRows && (stored_by_k || stored_by_n))
    return dot_small(args, stored_by_k && !(stored_by_n && b.cols > 1));
  bool both_bf16 = a.dtype == DType::kBF16 && b.dtype == DType::kBF16;
  if (both_bf16 && has_native_bf16() && has_unit_stride(a) && has_unit_stride(b))
    return dot_native_bf16(args);
  dot_blas(args);
}

}  // namespace stretto::kernels
