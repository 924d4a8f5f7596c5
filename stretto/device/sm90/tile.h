// Tile: a thread's part of a 2-D value, in registers, and elementwise operations on it. Values are
// computed in float (integers in i32) and rounded to the tile's type when written; bytes wrap then.
#pragma once

#include "stretto/device/ptx/math.h"
#include "stretto/device/sm90/layout.h"

template <class T>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<i32> {
  using type = i32;
};
template <>
struct ComputeType<i8> {
  using type = i32;
};
template <>
struct ComputeType<u8> {
  using type = i32;
};
template <>
struct ComputeType<bool> {
  using type = bool;
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

template <class T>
constexpr bool kByte = kSame<T, i8> || kSame<T, u8>;

// Into the range of bytes T: a float is truncated, and what is not a number is 0.
template <class T>
STRETTO_DEVICE T saturated(i32 v) {
  return T(kSame<T, i8> ? max(-128, min(127, v)) : max(0, min(255, v)));
}
template <class T>
STRETTO_DEVICE T saturated(float v) {
  return v == v ? saturated<T>(i32(fmaxf(-256.f, fminf(256.f, v)))) : T(0);
}
template <class T>
STRETTO_DEVICE T saturated(bool v) {
  return T(v);
}

// What is computed in C as an element in memory. Integers stay what they are: on the way through
// float they would lose bits past 2^24.
template <class T, class C>
STRETTO_DEVICE T element_of(C v) {
  if constexpr (kSame<T, C>) {
    return v;
  } else if constexpr (kSame<T, i32> || kSame<T, i64>) {
    return T(v);
  } else if constexpr (kByte<T>) {
    return saturated<T>(v);
  } else {
    return from_float<T>(to_float(v));
  }
}

// An integer as a float from which a second rounding, to 16 or 8 bits, gives what one rounding of
// the integer gives: past 2^24 its last eight bits become one that says whether any was set, and is
// below those that the second rounding looks at.
STRETTO_DEVICE float to_float_once(i32 v) {
  bool exact = v > -(1 << 24) && v < 1 << 24;
  return float(exact ? v : (v & ~0xff) | ((v & 0xff) != 0 ? 0x80 : 0));
}
template <class T>
STRETTO_DEVICE T to_float_once(T v) {
  return v;
}

// What a tile V computes in, of a value that another tile computed.
template <class V, class X>
STRETTO_DEVICE typename V::Compute computed(X x) {
  if constexpr (kSame<typename V::Compute, float> && sizeof(typename V::Element) < 4) {
    return float(to_float_once(x));
  } else if constexpr (kSame<typename V::Compute, i32> && kSame<X, float>) {
    return __float2int_rz(x);  // saturates
  } else {
    return typename V::Compute(x);
  }
}

template <class T, int R, int C>
struct Tile {
  using Element = T;
  using Compute = typename ComputeType<T>::type;
  static constexpr int kR = R, kC = C;
  T x[R][C];
  STRETTO_DEVICE Compute at(int i, int j) const {
    if constexpr (sizeof(Compute) == sizeof(T) || kByte<T>) {
      return x[i][j];
    } else {
      return to_float(x[i][j]);
    }
  }
  STRETTO_DEVICE void put(int i, int j, Compute v) {
    if constexpr (sizeof(Compute) == sizeof(T) || kByte<T>) {
      x[i][j] = T(v);
    } else {
      x[i][j] = from_float<T>(v);
    }
  }
};

// 16-bit floats lie in pairs, as matrix instructions and vector stores take them.
template <class T, int R, int C>
struct PairTile {
  using Element = T;
  using Compute = float;
  static constexpr int kR = R, kC = C;
  u32 w[R][C / 2];
  STRETTO_DEVICE float at(int i, int j) const {
    u32 pair = w[i][j / 2];
    return to_float(T{u16(j % 2 == 0 ? pair & 0xffff : pair >> 16)});
  }
  STRETTO_DEVICE void put2(int i, int j, float lo, float hi) { w[i][j / 2] = pack2<T>(lo, hi); }
};
template <int R, int C>
requires(C % 2 == 0) struct Tile<bf16, R, C> : PairTile<bf16, R, C> {
};
template <int R, int C>
requires(C % 2 == 0) struct Tile<f16, R, C> : PairTile<f16, R, C> {
};

template <class V>
concept Paired = requires(V v) {
  v.w;
};

// Writes v(i, j) = f(i, j) for every slot.
template <class V, class F>
STRETTO_DEVICE void generate(V& v, F f) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    if constexpr (Paired<V>) {
#pragma unroll
      for (int j = 0; j < V::kC; j += 2) {
        v.put2(i, j, computed<V>(f(i, j)), computed<V>(f(i, j + 1)));
      }
    } else {
#pragma unroll
      for (int j = 0; j < V::kC; ++j) v.put(i, j, computed<V>(f(i, j)));
    }
  }
}

// Slot (i, j) of a value that may be [r,1], [1,c] or [1,1] beside larger ones.
template <class V>
STRETTO_DEVICE auto slot(const V& v, int i, int j) {
  return v.at(V::kR == 1 ? 0 : i, V::kC == 1 ? 0 : j);
}

template <class V, class T>
STRETTO_DEVICE void fill(V& v, T value) {
  generate(v, [&](int, int) { return typename V::Compute(value); });
}
template <class V, class A>
STRETTO_DEVICE void assign(V& v, const A& a) {
  using T = typename V::Element;
  if constexpr (kByte<T> && !kSame<T, typename A::Element>) {
    generate(v, [&](int i, int j) { return i32(saturated<T>(slot(a, i, j))); });
  } else if constexpr (kSame<T, i32> && kSame<typename A::Compute, float>) {
    generate(v, [&](int i, int j) { return __float2int_rz(slot(a, i, j)); });  // saturates
  } else {
    generate(v, [&](int i, int j) { return slot(a, i, j); });
  }
}
// v = the columns of a from its slot kFirst on.
template <int kFirst, class V, class A>
STRETTO_DEVICE void columns(V& v, const A& a) {
  if constexpr (Paired<V> && Paired<A>) {
#pragma unroll
    for (int i = 0; i < V::kR; ++i) {
#pragma unroll
      for (int j = 0; j < V::kC / 2; ++j) v.w[i][j] = a.w[i][kFirst / 2 + j];
    }
  } else {
    generate(v, [&](int i, int j) { return a.at(i, kFirst + j); });
  }
}
template <class F, class V, class A>
STRETTO_DEVICE void map(V& v, const A& a, F f) {
  generate(v, [&](int i, int j) { return f(slot(a, i, j)); });
}
template <class F, class V, class A, class B>
STRETTO_DEVICE void map(V& v, const A& a, const B& b, F f) {
  generate(v, [&](int i, int j) { return f(slot(a, i, j), slot(b, i, j)); });
}
template <class V, class M, class A, class B>
STRETTO_DEVICE void where(V& v, const M& condition, const A& a, const B& b) {
  generate(v, [&](int i, int j) { return slot(condition, i, j) ? slot(a, i, j) : slot(b, i, j); });
}
// A row or a column that is the only one is every thread's.
template <class L, class V>
STRETTO_DEVICE void iota_rows(V& v, const Team& t, i64 first) {
  generate(v, [&](int i, int) { return i32(first) + (L::kTileRows == 1 ? 0 : L::row(t, i)); });
}
template <class L, class V>
STRETTO_DEVICE void iota_cols(V& v, const Team& t, i64 first) {
  generate(v, [&](int, int j) { return i32(first) + (L::kTileCols == 1 ? 0 : L::col(t, j)); });
}

// v = a with its rows scaled, where factors mostly are one: a warp none of whose rows has another
// leaves them alone.
template <class V, class A, class B>
STRETTO_DEVICE void rescale(V& v, const A& a, const B& factors) {
  bool any = false;
#pragma unroll
  for (int i = 0; i < B::kR; ++i) any |= factors.at(i, 0) != 1.f;
  if (__any_sync(0xffffffffu, any)) {
    generate(v, [&](int i, int j) { return slot(a, i, j) * slot(factors, i, j); });
  } else {
    assign(v, a);
  }
}

struct Neg {
  STRETTO_DEVICE float operator()(float a) const { return -a; }
};
struct Abs {
  STRETTO_DEVICE float operator()(float a) const { return fabsf(a); }
};
struct Exp {
  STRETTO_DEVICE float operator()(float a) const { return exp_fast(a); }
};
struct Exp2 {
  STRETTO_DEVICE float operator()(float a) const { return exp2_approx(a); }
};
struct Log {
  STRETTO_DEVICE float operator()(float a) const { return logf(a); }
};
struct Sqrt {
  STRETTO_DEVICE float operator()(float a) const { return sqrtf(a); }
};
struct Rsqrt {
  STRETTO_DEVICE float operator()(float a) const { return rsqrtf(a); }
};
struct Recip {
  STRETTO_DEVICE float operator()(float a) const { return 1.f / a; }
};
struct Tanh {
  STRETTO_DEVICE float operator()(float a) const { return tanhf(a); }
};
// An exact division takes some ten instructions and a branch, and fills a memory-bound loop's issue
// slots; from a divisor of 2^126 on this one gives 0.
struct Sigmoid {
  STRETTO_DEVICE float operator()(float a) const { return __fdividef(1.f, 1.f + exp_fast(-a)); }
};
struct Silu {
  STRETTO_DEVICE float operator()(float a) const { return __fdividef(a, 1.f + exp_fast(-a)); }
};
struct Sin {
  STRETTO_DEVICE float operator()(float a) const { return sinf(a); }
};
struct Cos {
  STRETTO_DEVICE float operator()(float a) const { return cosf(a); }
};
struct Floor {
  STRETTO_DEVICE float operator()(float a) const { return floorf(a); }
};
// To nearest even.
struct Round {
  STRETTO_DEVICE float operator()(float a) const { return rintf(a); }
};
struct Not {
  STRETTO_DEVICE bool operator()(bool a) const { return !a; }
};

// Integers wrap.
#define STRETTO_ARITHMETIC(NAME, OP)                                                    \
  struct NAME {                                                                         \
    STRETTO_DEVICE float operator()(float a, float b) const { return a OP b; }          \
    STRETTO_DEVICE i32 operator()(i32 a, i32 b) const { return i32(u32(a) OP u32(b)); } \
  }
STRETTO_ARITHMETIC(Add, +);
STRETTO_ARITHMETIC(Sub, -);
STRETTO_ARITHMETIC(Mul, *);
#undef STRETTO_ARITHMETIC

#define STRETTO_BINARY(NAME, EXPRESSION)             \
  struct NAME {                                      \
    template <class A>                               \
    STRETTO_DEVICE auto operator()(A a, A b) const { \
      return EXPRESSION;                             \
    }                                                \
  }
STRETTO_BINARY(Lt, a < b);
STRETTO_BINARY(Le, a <= b);
STRETTO_BINARY(Eq, a == b);
STRETTO_BINARY(Ne, a != b);
STRETTO_BINARY(Gt, a > b);
STRETTO_BINARY(Ge, a >= b);
STRETTO_BINARY(And, a&& b);
STRETTO_BINARY(Or, a || b);
#undef STRETTO_BINARY
struct Max {
  STRETTO_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
  STRETTO_DEVICE i32 operator()(i32 a, i32 b) const { return max(a, b); }
};
struct Min {
  STRETTO_DEVICE float operator()(float a, float b) const { return fminf(a, b); }
  STRETTO_DEVICE i32 operator()(i32 a, i32 b) const { return min(a, b); }
};
// Integers are rounded toward zero, and nothing is left of a division by zero; the one quotient
// that does not fit wraps, as sums do. Quotients of floats are exact, as on CPU ranks: scales of
// e4m3 are such, and one in the last bit more or less rounds numbers between two of e4m3 apart.
struct Div {
  STRETTO_DEVICE float operator()(float a, float b) const { return a / b; }
  STRETTO_DEVICE i32 operator()(i32 a, i32 b) const {
    return b == 0 ? 0 : b == -1 ? i32(0u - u32(a)) : a / b;
  }
};
