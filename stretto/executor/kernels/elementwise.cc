#include "stretto/executor/kernels/elementwise.h"

#include <cmath>
#include <type_traits>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/convert.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/row_chunks.h"
#include "stretto/executor/kernels/vector_math.h"

namespace stretto::kernels {
namespace {

template <typename To, typename From, typename One>
void map1(TileRef out, ConstTileRef a, One one) {
  flatten_packed(out, a);
  ChunkedOperand<From> left(a, out.rows, out.cols);
  for_each_chunk<To>(out, [&](To* to, std::int64_t r, std::int64_t c, std::int64_t n) {
    const From* x = left.chunk(r, c, n);
    run_vectorised([=]() STRETTO_INLINED {
      STRETTO_INDEPENDENT
      for (std::int64_t i = 0; i < n; ++i) to[i] = one(x[i]);
    });
  });
}

template <typename To, typename From, typename One>
void map2(TileRef out, ConstTileRef a, ConstTileRef b, One one) {
  flatten_packed(out, a, b);
  ChunkedOperand<From> left(a, out.rows, out.cols), right(b, out.rows, out.cols);
  for_each_chunk<To>(out, [&](To* to, std::int64_t r, std::int64_t c, std::int64_t n) {
    const From* x = left.chunk(r, c, n);
    const From* y = right.chunk(r, c, n);
    run_vectorised([=]() STRETTO_INLINED {
      STRETTO_INDEPENDENT
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(one(x[i], y[i]));
    });
  });
}

// Sine for quarter_turns 0, cosine for 1. Beyond the fast reduction's range, the C library's.
void trigonometric(TileRef out, ConstTileRef a, std::int32_t quarter_turns) {
  flatten_packed(out, a);
  ChunkedOperand<float> left(a, out.rows, out.cols);
  for_each_chunk<float>(out, [&](float* to, std::int64_t r, std::int64_t c, std::int64_t n) {
    const float* x = left.chunk(r, c, n);
    bool near = std::all_of(x, x + n, [](float v) { return std::fabs(v) <= math::kTrigLimit; });
    if (near) {
      run_vectorised([=]() STRETTO_INLINED {
        STRETTO_INDEPENDENT
        for (std::int64_t i = 0; i < n; ++i) to[i] = math::sin_shifted(x[i], quarter_turns);
      });
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      double v = x[i];
      bool fast = std::fabs(v) <= static_cast<double>(math::kTrigLimit);
      to[i] = fast ? math::sin_shifted(x[i], quarter_turns)
                   : static_cast<float>(quarter_turns == 0 ? std::sin(v) : std::cos(v));
    }
  });
}

template <typename T>
void unary_float(Unary op, const TileRef& out, const ConstTileRef& a) {
  auto with = [&](auto one) { map1<T, T>(out, a, one); };
  switch (op) {
    case Unary::kNeg:
      return with([](T v) STRETTO_INLINED { return -v; });
    case Unary::kAbs:
      return with([](T v) STRETTO_INLINED { return std::fabs(v); });
    case Unary::kExp:
      return with([](T v) STRETTO_INLINED { return math::exp(v); });
    case Unary::kExp2:
      return with([](T v) STRETTO_INLINED { return math::exp2(v); });
    case Unary::kLog:
      return with([](T v) STRETTO_INLINED { return math::log(v); });
    case Unary::kSqrt:
      return with([](T v) STRETTO_INLINED { return std::sqrt(v); });
    case Unary::kRsqrt:
      return with([](T v) STRETTO_INLINED { return T{1} / std::sqrt(v); });
    case Unary::kRecip:
      return with([](T v) STRETTO_INLINED { return T{1} / v; });
    case Unary::kTanh:
      return with([](T v) STRETTO_INLINED { return math::tanh(v); });
    case Unary::kSigmoid:
      return with([](T v) STRETTO_INLINED { return math::sigmoid(v); });
    case Unary::kSilu:
      return with([](T v) STRETTO_INLINED { return math::silu(v); });
    case Unary::kSin:
      if constexpr (std::is_same_v<T, float>) return trigonometric(out, a, 0);
      return with([](T v) STRETTO_INLINED { return std::sin(v); });
    case Unary::kCos:
      if constexpr (std::is_same_v<T, float>) return trigonometric(out, a, 1);
      return with([](T v) STRETTO_INLINED { return std::cos(v); });
    case Unary::kFloor:
      return with([](T v) STRETTO_INLINED { return std::floor(v); });
    case Unary::kRound:
      return with([](T v) STRETTO_INLINED { return std::nearbyint(v); });
    case Unary::kNot:
      break;
  }
  throw InternalError(std::string("kernels: unary ") + name(op) + " of a float tile");
}

template <typename T>
void unary_integer(Unary op, const TileRef& out, const ConstTileRef& a) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case Unary::kNeg:
      return map1<T, T>(
          out, a, [](T v) STRETTO_INLINED { return static_cast<T>(U{0} - static_cast<U>(v)); });
    case Unary::kAbs:
      return map1<T, T>(out, a, [](T v) STRETTO_INLINED {
        return static_cast<T>(v < 0 ? U{0} - static_cast<U>(v) : static_cast<U>(v));
      });
    case Unary::kFloor:
    case Unary::kRound:
      return map1<T, T>(out, a, [](T v) STRETTO_INLINED { return v; });
    default:
      throw InternalError(std::string("kernels: unary ") + name(op) + " of an integer tile");
  }
}

template <typename T>
STRETTO_INLINED inline T divide(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    return x / y;
  } else if constexpr (std::is_signed_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (y == -1) return static_cast<T>(U{0} - static_cast<U>(x));
  }
  return y == 0 ? T{0} : static_cast<T>(x / y);
}

template <>
STRETTO_INLINED inline float divide(float x, float y) {
  return x / y;
}

// Arithmetic without signed overflow.
template <typename T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

template <typename T>
void arithmetic(Binary op, const TileRef& out, const ConstTileRef& a, const ConstTileRef& b) {
  using W = Wrapping<T>;
  auto with = [&](auto one) { map2<T, T>(out, a, b, one); };
  switch (op) {
    case Binary::kAdd:
      return with([](T x, T y) STRETTO_INLINED { return static_cast<W>(x) + static_cast<W>(y); });
    case Binary::kSub:
      return with([](T x, T y) STRETTO_INLINED { return static_cast<W>(x) - static_cast<W>(y); });
    case Binary::kMul:
      return with([](T x, T y) STRETTO_INLINED { return static_cast<W>(x) * static_cast<W>(y); });
    case Binary::kDiv:
      return with([](T x, T y) STRETTO_INLINED { return divide(x, y); });
    case Binary::kMax:
      return with([](T x, T y) STRETTO_INLINED { return x > y || y != y ? x : y; });
    case Binary::kMin:
      return with([](T x, T y) STRETTO_INLINED { return x < y || y != y ? x : y; });
    case Binary::kAnd:
      if constexpr (std::is_integral_v<T>)
        return with([](T x, T y) STRETTO_INLINED { return x & y; });
      break;
    case Binary::kOr:
      if constexpr (std::is_integral_v<T>)
        return with([](T x, T y) STRETTO_INLINED { return x | y; });
      break;
    default:
      break;
  }
  throw InternalError(std::string("kernels: binary ") + name(op) + " of a float tile");
}

template <typename T>
void compare(Binary op, const TileRef& out, const ConstTileRef& a, const ConstTileRef& b) {
  auto with = [&](auto one) { map2<std::uint8_t, T>(out, a, b, one); };
  switch (op) {
    case Binary::kLt:
      return with([](T x, T y) STRETTO_INLINED { return x < y; });
    case Binary::kLe:
      return with([](T x, T y) STRETTO_INLINED { return x <= y; });
    case Binary::kEq:
      return with([](T x, T y) STRETTO_INLINED { return x == y; });
    case Binary::kNe:
      return with([](T x, T y) STRETTO_INLINED { return x != y; });
    case Binary::kGt:
      return with([](T x, T y) STRETTO_INLINED { return x > y; });
    default:
      return with([](T x, T y) STRETTO_INLINED { return x >= y; });
  }
}

template <typename T>
void binary_of(Binary op, const TileRef& out, const ConstTileRef& a, const ConstTileRef& b) {
  if (is_comparison(op)) return compare<T>(op, out, a, b);
  arithmetic<T>(op, out, a, b);
}

template <typename T>
void select(const TileRef& out, const ConstTileRef& condition, const ConstTileRef& a,
            const ConstTileRef& b) {
  ChunkedOperand<std::uint8_t> chosen(condition, out.rows, out.cols);
  ChunkedOperand<T> left(a, out.rows, out.cols), right(b, out.rows, out.cols);
  for_each_chunk<T>(out, [&](T* to, std::int64_t r, std::int64_t c, std::int64_t n) {
    const std::uint8_t* p = chosen.chunk(r, c, n);
    const T* x = left.chunk(r, c, n);
    const T* y = right.chunk(r, c, n);
    run_vectorised([=]() STRETTO_INLINED {
      STRETTO_INDEPENDENT
      for (std::int64_t i = 0; i < n; ++i) {
        T then = x[i], otherwise = y[i];
        to[i] = p[i] != 0 ? then : otherwise;
      }
    });
  });
}

template <typename T>
void count_from(const TileRef& out, std::int64_t first, int axis) {
  for_each_chunk<T>(out, [&](T* to, std::int64_t r, std::int64_t c, std::int64_t n) {
    std::int64_t start = first + (axis == 0 ? r : c), step = axis == 0 ? 0 : 1;
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(start + i * step);
  });
}

template <typename T>
void fill_with(TileRef out, const void* element) {
  T value;
  std::memcpy(&value, element, sizeof(T));
  flatten_packed(out);
  for_each_chunk<T>(
      out, [=](T* to, std::int64_t, std::int64_t, std::int64_t n) { std::fill_n(to, n, value); });
}

// Calls f(T{}) with an unsigned integer as wide as the dtype's elements.
template <typename F>
void with_bits(DType dtype, F f) {
  switch (size_bytes(dtype)) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

}  // namespace

const char* name(Unary op) {
  constexpr const char* kNames[] = {"neg",   "abs",   "exp",   "exp2",    "log",  "sqrt",
                                    "rsqrt", "recip", "tanh",  "sigmoid", "silu", "sin",
                                    "cos",   "floor", "round", "not"};
  return kNames[static_cast<std::size_t>(op)];
}

const char* name(Binary op) {
  constexpr const char* kNames[] = {"add", "sub", "mul", "div", "max", "min", "lt",
                                    "le",  "eq",  "ne",  "gt",  "ge",  "and", "or"};
  return kNames[static_cast<std::size_t>(op)];
}

bool is_comparison(Binary op) { return op >= Binary::kLt && op <= Binary::kGe; }

void unary(Unary op, const TileRef& out, const ConstTileRef& a) {
  STRETTO_CHECK(out.dtype == a.dtype, "unary: output and operand differ in dtype");
  switch (a.dtype) {
    case DType::kF32:
      return unary_float<float>(op, out, a);
    case DType::kF64:
      return unary_float<double>(op, out, a);
    case DType::kI32:
      return unary_integer<std::int32_t>(op, out, a);
    case DType::kI64:
      return unary_integer<std::int64_t>(op, out, a);
    case DType::kBool:
      STRETTO_CHECK(op == Unary::kNot, "unary: only `not` takes bool");
      return map1<std::uint8_t, std::uint8_t>(
          out, a, [](std::uint8_t v) STRETTO_INLINED -> std::uint8_t { return v == 0; });
    default:
      throw InternalError(std::string("unary: not a register dtype: ") + name(a.dtype));
  }
}

void binary(Binary op, const TileRef& out, const ConstTileRef& a, const ConstTileRef& b) {
  STRETTO_CHECK(a.dtype == b.dtype, "binary: operands differ in dtype");
  STRETTO_CHECK(out.dtype == (is_comparison(op) ? DType::kBool : a.dtype),
                "binary: output of another dtype than the operation gives");
  switch (a.dtype) {
    case DType::kF32:
      return binary_of<float>(op, out, a, b);
    case DType::kF64:
      return binary_of<double>(op, out, a, b);
    case DType::kI32:
      return binary_of<std::int32_t>(op, out, a, b);
    case DType::kI64:
      return binary_of<std::int64_t>(op, out, a, b);
    case DType::kU8:
    case DType::kBool:
      return binary_of<std::uint8_t>(op, out, a, b);
    case DType::kI8:
      return binary_of<std::int8_t>(op, out, a, b);
    default:
      throw InternalError(std::string("binary: not a register dtype: ") + name(a.dtype));
  }
}

void where(const TileRef& out, const ConstTileRef& condition, const ConstTileRef& a,
           const ConstTileRef& b) {
  STRETTO_CHECK(a.dtype == out.dtype && b.dtype == out.dtype, "where: dtypes differ");
  STRETTO_CHECK(size_bytes(condition.dtype) == 1, "where: the condition is not bool");
  TileRef to = out;
  ConstTileRef p = condition, x = a, y = b;
  flatten_packed(to, p, x, y);
  with_bits(out.dtype, [&]<typename T>(T) { select<T>(to, p, x, y); });
}

void fill(const TileRef& out, double value) {
  std::uint64_t element = 0;
  store_element(out.dtype, &element, value);
  with_bits(out.dtype, [&]<typename T>(T) { fill_with<T>(out, &element); });
}

void iota(const TileRef& out, std::int64_t first, int axis) {
  STRETTO_CHECK(out.dtype == DType::kI32 || out.dtype == DType::kI64, "iota: not i32 or i64");
  if (out.dtype == DType::kI32) return count_from<std::int32_t>(out, first, axis);
  count_from<std::int64_t>(out, first, axis);
}

void cast(const TileRef& out, const ConstTileRef& a) {
  TileRef to = out;
  ConstTileRef from = a;
  flatten_packed(to, from);
  with_bits(from.dtype, [&]<typename From>(From) {
    ChunkedOperand<From> source(from, to.rows, to.cols);
    with_bits(to.dtype, [&]<typename To>(To) {
      for_each_chunk<To>(to, [&](To* dst, std::int64_t r, std::int64_t c, std::int64_t n) {
        convert(to.dtype, dst, from.dtype, source.chunk(r, c, n), n);
      });
    });
  });
}

void round_tile(const TileRef& tile, DType dtype) {
  STRETTO_CHECK(tile.dtype == DType::kF32 && is_float(dtype), "round_tile: not floats");
  if (dtype == DType::kF32) return;
  TileRef out = tile;
  flatten_packed(out);
  ChunkedOperand<float> source(out, out.rows, out.cols);
  for_each_chunk<float>(out, [&](float* to, std::int64_t r, std::int64_t c, std::int64_t n) {
    const float* from = source.chunk(r, c, n);
    if (to != from) std::copy_n(from, n, to);
    round_to(dtype, to, n);
  });
}

}  // namespace stretto::kernels
