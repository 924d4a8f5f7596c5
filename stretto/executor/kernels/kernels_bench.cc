// Rates of the CPU tile kernels beside the libraries they could have been, on one thread:
//   kernels_bench --benchmark_min_time=0.3
// FLOP/s count a multiplication and an addition each; bytes/s count every operand once. Times are
// of the thread's CPU clock, since other work may share the machine.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "stretto/executor/kernels/copy.h"
#include "stretto/executor/kernels/dot.h"
#include "stretto/executor/kernels/elementwise.h"
#include "stretto/executor/kernels/reduce.h"

#if defined(STRETTO_BENCH_XSMM)
#include <libxsmm.h>
#endif

namespace stretto::kernels {
namespace {

struct Matrix {
  Matrix(DType type, std::int64_t num_rows, std::int64_t num_cols, std::int64_t row_stride = 0)
      : dtype(type), rows(num_rows), cols(num_cols), stride(row_stride ? row_stride : num_cols) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    bytes.resize(static_cast<std::size_t>(rows * stride) * size_bytes(dtype));
    for (std::size_t i = 0; i < bytes.size(); i += size_bytes(dtype))
      store_element(dtype, bytes.data() + i, static_cast<double>(uniform(random)));
  }
  TileRef ref() { return {dtype, rows, cols, bytes.data(), stride, 1}; }
  float* floats() { return reinterpret_cast<float*>(bytes.data()); }

  DType dtype;
  std::int64_t rows, cols, stride;
  std::vector<std::byte> bytes;
};

struct Shape {
  std::int64_t m, n, k, stride;  // stride: leading dimension of a and b, 0 where packed
  bool transposed;               // b is stored as [n, k]
};

void count(benchmark::State& state, double flops, double bytes) {
  using benchmark::Counter;
  if (flops > 0) state.counters["FLOP/s"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["B/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
}

void count_dot(benchmark::State& state, const Shape& s, DType a, DType b) {
  count(state, 2.0 * static_cast<double>(s.m * s.n * s.k),
        static_cast<double>(s.m * s.k) * static_cast<double>(size_bytes(a)) +
            static_cast<double>(s.n * s.k) * static_cast<double>(size_bytes(b)) +
            static_cast<double>(s.m * s.n) * 4);
}

void bench_dot(benchmark::State& state, Shape s, DType a_type, DType b_type) {
  Matrix a(a_type, s.m, s.k, s.stride);
  Matrix b(b_type, s.transposed ? s.n : s.k, s.transposed ? s.k : s.n, s.stride);
  Matrix c(DType::kF32, s.m, s.n);
  ConstTileRef right = s.transposed ? transposed(b.ref()) : ConstTileRef(b.ref());
  for (auto _ : state) dot({c.ref(), a.ref(), right, true});
  count_dot(state, s, a_type, b_type);
}

enum class Library { kOpenBlas, kXsmm };

void call(Library library, const Shape& s, Matrix& a, Matrix& b, Matrix& c) {
  int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  int lda = static_cast<int>(a.stride), ldb = static_cast<int>(b.stride);
  int ldc = static_cast<int>(c.stride);
  [[maybe_unused]] char plain = 'N', order = s.transposed ? 'T' : 'N';
  if (library == Library::kOpenBlas)
    cblas_sgemm(CblasRowMajor, CblasNoTrans, s.transposed ? CblasTrans : CblasNoTrans, m, n, k, 1,
                a.floats(), lda, b.floats(), ldb, 1, c.floats(), ldc);
#if defined(STRETTO_BENCH_XSMM)
  float one = 1;
  if (library == Library::kXsmm)
    libxsmm_sgemm(&order, &plain, &n, &m, &k, &one, b.floats(), &ldb, a.floats(), &lda, &one,
                  c.floats(), &ldc);
#endif
}

void bench_library(benchmark::State& state, Shape s, Library library) {
  openblas_set_num_threads(1);
  Matrix a(DType::kF32, s.m, s.k, s.stride), c(DType::kF32, s.m, s.n);
  Matrix b(DType::kF32, s.transposed ? s.n : s.k, s.transposed ? s.k : s.n, s.stride);
  for (auto _ : state) call(library, s, a, b, c);
  count_dot(state, s, DType::kF32, DType::kF32);
}

// The bandwidth that decode could have: reading bytes once, folded so that none is skipped.
void bench_read(benchmark::State& state, std::int64_t bytes) {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  std::vector<Words> words(static_cast<std::size_t>(bytes) / sizeof(Words), Words{1, 2});
  for (auto _ : state) {
    Words a{}, b{}, c{}, d{};
    for (std::size_t i = 0; i + 4 <= words.size(); i += 4) {
      a ^= words[i];
      b ^= words[i + 1];
      c ^= words[i + 2];
      d ^= words[i + 3];
    }
    benchmark::DoNotOptimize(a ^ b ^ c ^ d);
  }
  count(state, 0, static_cast<double>(bytes));
}

void bench_unary(benchmark::State& state, Unary op) {
  Matrix a(DType::kF32, 128, 256), out(DType::kF32, 128, 256);
  unary(Unary::kAbs, a.ref(), a.ref());
  for (auto _ : state) unary(op, out.ref(), a.ref());
  count(state, 0, 128 * 256 * 8);
}

void bench_binary(benchmark::State& state, Binary op, DType dtype, bool broadcast) {
  Matrix a(dtype, 128, 256), b(dtype, 128, broadcast ? 1 : 256);
  Matrix out(is_comparison(op) ? DType::kBool : dtype, 128, 256);
  for (auto _ : state) binary(op, out.ref(), a.ref(), b.ref());
  double element = static_cast<double>(size_bytes(dtype));
  count(state, 0, 128 * 256 * (2 * element + static_cast<double>(size_bytes(out.dtype))));
}

void bench_where(benchmark::State& state) {
  Matrix p(DType::kBool, 128, 256), a(DType::kF32, 128, 256), out(DType::kF32, 128, 256);
  Matrix b(DType::kF32, 1, 1);
  for (auto _ : state) where(out.ref(), p.ref(), a.ref(), b.ref());
  count(state, 0, 128 * 256 * 9);
}

void bench_reduce(benchmark::State& state, void (*reduce)(const TileRef&, const ConstTileRef&),
                  bool by_rows) {
  Matrix a(DType::kF32, 128, 256);
  Matrix out(DType::kF32, by_rows ? 128 : 1, by_rows ? 1 : 256);
  for (auto _ : state) reduce(out.ref(), a.ref());
  count(state, 0, 128 * 256 * 4);
}

void bench_load(benchmark::State& state, DType to, DType from, bool flip) {
  Matrix a(from, 256, 256, 1024), out(to, 256, 256);
  ConstTileRef source = flip ? transposed(a.ref()) : ConstTileRef(a.ref());
  for (auto _ : state) load(out.ref(), source);
  count(state, 0, 256.0 * 256 * static_cast<double>(size_bytes(to) + size_bytes(from)));
}

template <typename... Args>
void add(const std::string& label, Args... args) {
  benchmark::RegisterBenchmark(label.c_str(), args...);
}

void add_dots(const std::string& label, const Shape& s) {
  add("dot/f32/" + label, bench_dot, s, DType::kF32, DType::kF32);
  add("openblas/f32/" + label, bench_library, s, Library::kOpenBlas);
#if defined(STRETTO_BENCH_XSMM)
  add("libxsmm/f32/" + label, bench_library, s, Library::kXsmm);
#endif
  add("dot/bf16/" + label, bench_dot, s, DType::kBF16, DType::kBF16);
  add("dot/f16/" + label, bench_dot, s, DType::kF16, DType::kF16);
}

void add_matrix_products() {
  add_dots("128x128x64/nt/stride1024", {128, 128, 64, 1024, true});
  add_dots("128x128x64/nn/stride1024", {128, 128, 64, 1024, false});
  add_dots("128x128x64/nt/stride8192", {128, 128, 64, 8192, true});
  add_dots("128x128x64/nn/stride8192", {128, 128, 64, 8192, false});
  add_dots("256x512x1024/nt", {256, 512, 1024, 0, true});
  add_dots("1024x1024x1024/nt", {1024, 1024, 1024, 0, true});
  add_dots("1024x1024x1024/nn", {1024, 1024, 1024, 0, false});
}

void add_decode() {
  constexpr std::pair<DType, DType> kTypes[] = {{DType::kF32, DType::kF32},
                                                {DType::kF32, DType::kBF16},
                                                {DType::kF32, DType::kF16},
                                                {DType::kBF16, DType::kBF16}};
  for (std::int64_t side : {1024, 8192}) {
    for (std::int64_t m : {1, 2, 4, 8, 16, 64}) {
      std::string label =
          "m" + std::to_string(m) + "/" + std::to_string(side) + "x" + std::to_string(side);
      for (auto [rows, weights] : kTypes) {
        std::string types = std::string(short_name(rows)) + "x" + short_name(weights);
        for (bool by_rows : {true, false}) {
          if (!by_rows && side == 8192) continue;
          add("dot/" + types + (by_rows ? "/nt/" : "/nn/") + label, bench_dot,
              Shape{m, side, side, 0, by_rows}, rows, weights);
        }
      }
      add("openblas/f32/nt/" + label, bench_library, Shape{m, side, side, 0, true},
          Library::kOpenBlas);
    }
  }
  add("read/2MiB", bench_read, std::int64_t{2} << 20);
  add("read/128MiB", bench_read, std::int64_t{128} << 20);
}

void add_values() {
  for (int op = 0; op <= static_cast<int>(Unary::kFloor); ++op) {
    add(std::string("unary/") + name(static_cast<Unary>(op)), bench_unary, static_cast<Unary>(op));
  }
  for (Binary op : {Binary::kAdd, Binary::kDiv, Binary::kMax, Binary::kLt}) {
    add(std::string("binary/f32/") + name(op), bench_binary, op, DType::kF32, false);
    add(std::string("binary/f32/column/") + name(op), bench_binary, op, DType::kF32, true);
    add(std::string("binary/i32/") + name(op), bench_binary, op, DType::kI32, false);
  }
  add("where", bench_where);
  add("row_sum", bench_reduce, row_sum, true);
  add("row_max", bench_reduce, row_max, true);
  add("col_sum", bench_reduce, col_sum, false);
  add("load/f32<-bf16", bench_load, DType::kF32, DType::kBF16, false);
  add("load/f32<-f16", bench_load, DType::kF32, DType::kF16, false);
  add("load/f32<-f8e4m3", bench_load, DType::kF32, DType::kF8E4M3, false);
  add("load/f32<-bf16/transposed", bench_load, DType::kF32, DType::kBF16, true);
  add("store/bf16<-f32", bench_load, DType::kBF16, DType::kF32, false);
  add("store/f16<-f32", bench_load, DType::kF16, DType::kF32, false);
  add("copy/f32/transposed", bench_load, DType::kF32, DType::kF32, true);
}

const bool kRegistered = [] {
  add_matrix_products();
  add_decode();
  add_values();
  return true;
}();

}  // namespace
}  // namespace stretto::kernels
