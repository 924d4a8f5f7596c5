#include "stretto/executor/kernels/dot.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/convert.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/dot_pairs.h"
#include "stretto/executor/kernels/dot_small.h"
#include "stretto/executor/kernels/dot_tiles.h"
#include "stretto/executor/kernels/elementwise.h"

namespace stretto::kernels {
namespace {

// The calling thread's own: a and b hold operands that had to be rewritten.
struct Scratch {
  std::vector<float> a, b, packed;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

bool is_matrix_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

bool is_double(const DotArgs& args) { return args.a.dtype == DType::kF64; }

bool both_are_bf16(const DotArgs& args) {
  return args.a.dtype == DType::kBF16 && args.b.dtype == DType::kBF16;
}

// A copy in f32 with contiguous columns, for operands that the kernels do not read where they lie.
ConstTileRef rewritten(const ConstTileRef& t, std::vector<float>& scratch) {
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(t.rows * t.cols)));
  TileRef copy{DType::kF32, t.rows, t.cols, scratch.data(), t.cols, 1};
  cast(copy, t);
  return copy;
}

void dot_tiles(const DotArgs& args) {
  Scratch& scratch = thread_scratch();
  ConstTileRef a = args.a, b = args.b;
  if (a.col_stride != 1 && a.cols > 1) a = rewritten(a, scratch.a);
  bool by_rows = b.col_stride == 1 || b.cols == 1;
  if (!by_rows && b.row_stride != 1 && b.rows > 1) {
    b = rewritten(b, scratch.b);
    by_rows = true;
  }
  TileDot t{.acc = args.acc.row<float>(0),
            .acc_stride = args.acc.row_stride,
            .a = a.data,
            .a_dtype = a.dtype,
            .a_row_stride = a.row_stride,
            .b = b.data,
            .b_dtype = b.dtype,
            .b_row_stride = by_rows ? b.row_stride : 1,
            .b_col_stride = by_rows ? 1 : b.col_stride,
            .m = a.rows,
            .n = b.cols,
            .k = a.cols,
            .accumulate = args.accumulate};
#if defined(__x86_64__)
  if (a.dtype == DType::kBF16 && b.dtype == DType::kBF16 && use_pairs()) {  // not rewritten
    return pairs::dot_tiles(t, scratch.packed);
  }
  if (use_avx512()) return avx512::dot_tiles(t, scratch.packed);
  if (use_avx2()) return avx2::dot_tiles(t, scratch.packed);
#endif
  portable::dot_tiles(t, scratch.packed);
}

// Neighbours of a row of bf16 in one word, the first one in the high half; of an odd number the
// last one is left out.
void pair_up(const ConstTileRef& x, float* to, std::ptrdiff_t stride) {
  for (std::int64_t r = 0; r < x.rows; ++r, to += stride) {
    const auto* from = x.row<std::uint16_t>(r);
    for (std::int64_t i = 0; i < x.cols / 2; ++i) {
      const std::uint32_t first = from[2 * i * x.col_stride],
                          second = from[(2 * i + 1) * x.col_stride];
      const std::uint32_t word = first << 16 | second;
      std::memcpy(to + i, &word, sizeof(word));
    }
  }
}

void dot_small(const DotArgs& args, bool by_rows) {
  const std::int64_t m = args.a.rows, k = args.a.cols;
  const bool in_pairs = by_rows && both_are_bf16(args) && use_pairs();
  Scratch& scratch = thread_scratch();
  scratch.a.resize(std::max(scratch.a.size(), static_cast<std::size_t>(m * k)));
  cast(TileRef{DType::kF32, m, k, scratch.a.data(), k, 1}, args.a);
  if (in_pairs) {
    scratch.b.resize(std::max(scratch.b.size(), static_cast<std::size_t>(m * k)));
    pair_up(args.a, scratch.b.data(), k);
  }
  SmallDot s{.acc = args.acc.row<float>(0),
             .acc_stride = args.acc.row_stride,
             .x = scratch.a.data(),
             .x_stride = k,
             .x_pairs = in_pairs ? scratch.b.data() : nullptr,
             .weights = args.b.data,
             .dtype = args.b.dtype,
             .weights_stride = by_rows ? args.b.col_stride : args.b.row_stride,
             .m = m,
             .n = args.b.cols,
             .k = k,
             .accumulate = args.accumulate};
#if defined(__x86_64__)
  if (in_pairs) return pairs::dot_weight_rows(s);
  if (use_avx512()) return by_rows ? avx512::dot_weight_rows(s) : avx512::dot_weight_columns(s);
  if (use_avx2()) return by_rows ? avx2::dot_weight_rows(s) : avx2::dot_weight_columns(s);
#endif
  by_rows ? portable::dot_weight_rows(s) : portable::dot_weight_columns(s);
}

// Each element is its row times its column added up in ascending k, rounded after every product and
// every sum.
void dot_double(const DotArgs& args) {
  thread_local std::vector<double> rows;
  ConstTileRef b = args.b;  // [k, n]
  if (b.col_stride != 1 && b.cols > 1) {
    rows.resize(std::max(rows.size(), static_cast<std::size_t>(b.rows * b.cols)));
    cast(TileRef{DType::kF64, b.rows, b.cols, rows.data(), b.cols, 1}, b);
    b = {DType::kF64, b.rows, b.cols, rows.data(), b.cols};
  }
  if (!args.accumulate) fill(args.acc, 0);
  for (std::int64_t r = 0; r < args.a.rows; ++r) {
    double* acc = args.acc.row<double>(r);
    const double* x = args.a.row<double>(r);
    std::int64_t n = b.cols, k = b.rows;
    std::ptrdiff_t step = args.a.col_stride;
    run_vectorised([=]() STRETTO_INLINED {
      for (std::int64_t i = 0; i < k; ++i) {
        const double factor = x[i * step];
        const double* y = b.row<double>(i);
        STRETTO_INDEPENDENT
        for (std::int64_t c = 0; c < n; ++c) acc[c] += factor * y[c];
      }
    });
  }
}

void check(const DotArgs& args) {
  if (is_double(args)) {
    STRETTO_CHECK(args.acc.dtype == DType::kF64 && args.b.dtype == DType::kF64,
                  "dot: some are f64, others not");
  } else {
    STRETTO_CHECK(args.acc.dtype == DType::kF32, "dot: the accumulator is not f32");
    STRETTO_CHECK(is_matrix_float(args.a.dtype) && is_matrix_float(args.b.dtype),
                  "dot: an operand is neither f32, bf16 nor f16");
  }
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
  if (is_double(args)) return dot_double(args);
  bool stored_by_k = b.row_stride == 1 || b.rows == 1;
  bool stored_by_n = b.col_stride == 1 || b.cols == 1;
  std::optional<FlushScope> flush;
  if (both_are_bf16(args)) flush.emplace();
  if (a.rows <= kMaxSmallRows && (stored_by_k || stored_by_n))
    return dot_small(args, stored_by_k && !(stored_by_n && b.cols > 1));
  dot_tiles(args);
}

}  // namespace stretto::kernels
