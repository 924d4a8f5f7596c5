// Sums, extrema and positions over the rows or columns of a tile. The order is fixed by the layout,
// so equal inputs give equal bits.
#pragma once

#include "stretto/device/sm90/tile.h"

struct ArgMax {};

// What a reduction starts from; the second argument is of the type that it computes in. Extrema of
// floats start from a NaN, which they ignore beside a number: of nothing but NaN is left a NaN.
STRETTO_DEVICE float identity(Add, float) { return 0.f; }
STRETTO_DEVICE float identity(Max, float) { return __int_as_float(0x7fffffff); }
STRETTO_DEVICE float identity(Min, float) { return __int_as_float(0x7fffffff); }
STRETTO_DEVICE i32 identity(Add, i32) { return 0; }
STRETTO_DEVICE i32 identity(Max, i32) { return -0x7fffffff - 1; }
STRETTO_DEVICE i32 identity(Min, i32) { return 0x7fffffff; }

// Partial results of a row that do not wait for each other. Sums have one, which is their order; of
// extrema any order gives the same, and one chain of 32 kept exponentials waiting for 160 cycles.
template <class F>
constexpr int kChains = 4;
template <>
constexpr int kChains<Add> = 1;

// Adds up `v` over the warps that share a row, through `scratch` (one element per warp of the
// team).
template <class L, class F, class T>
STRETTO_DEVICE T across_warps(T v, const Team& t, T* scratch, F f) {
  if constexpr (L::kWarpsPerRow == 1) return v;
  named_barrier_sync(t.barrier, L::kThreads);
  u32 warp = t.tid / 32;
  if (t.tid % 32 == 0) scratch[warp] = v;
  named_barrier_sync(t.barrier, L::kThreads);
  u32 first = warp / L::kWarpsPerRow * L::kWarpsPerRow;
  T out = scratch[first];
#pragma unroll
  for (int w = 1; w < L::kWarpsPerRow; ++w) out = f(out, scratch[first + w]);
  return out;
}

// What a thread has of row slot `i`.
template <class L, class T, class F, class A>
STRETTO_DEVICE T of_thread(const A& a, int i, const Team& t, F f) {
  T chains[kChains<F>];
#pragma unroll
  for (T& chain : chains) chain = identity(f, T());
#pragma unroll
  for (int j = 0; j < A::kC; ++j) {
    bool inside = L::kTileCols % (L::kColSlots * L::kLanesPerRow * L::kWarpsPerRow) == 0 ||
                  L::col(t, j) < L::kTileCols;
    if (inside) chains[j % kChains<F>] = f(chains[j % kChains<F>], slot(a, i, j));
  }
  T sum = chains[0];
#pragma unroll
  for (int c = 1; c < kChains<F>; ++c) sum = f(sum, chains[c]);
  return sum;
}

// The same of all threads that share the row.
template <class L, class T, class F>
STRETTO_DEVICE T of_row(T sum, const Team& t, T* scratch, F f) {
#pragma unroll
  for (int lanes = L::kLanesPerRow / 2; lanes > 0; lanes /= 2) {
    sum = f(sum, shuffle_xor(sum, lanes));
  }
  return across_warps<L>(sum, t, scratch, f);
}

// [r,c] -> [r,1].
template <class L, class F, class V, class A>
STRETTO_DEVICE void reduce_columns(V& v, const A& a, const Team& t, typename V::Compute* scratch,
                                   F f) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    auto sum = of_thread<L, typename V::Compute>(a, i, t, f);
    v.put(i, 0, of_row<L>(sum, t, scratch, f));
  }
}

// Whatever `v` depends on is computed before what follows. The assembler moves arithmetic behind a
// wait for products, where nothing overlaps with it; it does not move a wait before an instruction
// with an effect, such as this one, which a NaN that no arithmetic makes would execute. A store: it
// takes a predicate, where others would end the block of instructions that are scheduled together.
template <class V>
requires(!Paired<V>) STRETTO_DEVICE void hold(const V& v, float* scratch) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x7fabcdef;\n@p st.shared.u32 [%1], %0;\n}" ::"r"(
            __float_as_uint(v.at(i, 0))),
        "r"(smem_address(scratch))
        : "memory");
  }
}

// The same of a 16-bit factor of products, whose words go four at a time, as matrix instructions
// take them: no conversion makes that NaN of a word's upper half either.
template <class V>
requires Paired<V> STRETTO_DEVICE void hold(const V& v, float* scratch) {
#pragma unroll
  for (int i = 0; i < V::kR; i += 2) {
#pragma unroll
    for (int j = 0; j < V::kC / 2; j += 2) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x7fabcdef;\n"
          "@p st.shared.v4.u32 [%1], {%2, %3, %4, %5};\n}" ::"r"(v.w[0][0]),
          "r"(smem_address(scratch)), "r"(v.w[i][j]), "r"(v.w[i + 1][j]), "r"(v.w[i][j + 1]),
          "r"(v.w[i + 1][j + 1])
          : "memory");
    }
  }
}

// reduce_columns before a wait for products: what the threads have is held there (hold), what the
// lanes exchange may come after it, between arithmetic that does not depend on it.
template <class L, class F, class V, class A>
STRETTO_DEVICE void reduce_columns_held(V& v, const A& a, const Team& t,
                                        typename V::Compute* scratch, F f) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) v.put(i, 0, of_thread<L, typename V::Compute>(a, i, t, f));
  hold(v, scratch);
#pragma unroll
  for (int i = 0; i < V::kR; ++i) v.put(i, 0, of_row<L>(v.at(i, 0), t, scratch, f));
}

// [r,c] -> i32 [r,1]: the lowest column of the largest value; the first where all are NaN.
template <class L, class V, class A>
STRETTO_DEVICE void arg_max_columns(V& v, const A& a, const Team& t, typename A::Compute* scratch) {
  using T = typename A::Compute;
  constexpr i32 kNone = 0x7fffffff;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    T best = identity(Max(), T());
#pragma unroll
    for (int j = 0; j < A::kC; ++j) {
      if (L::col(t, j) < L::kTileCols) best = Max()(best, slot(a, i, j));
    }
#pragma unroll
    for (int lanes = L::kLanesPerRow / 2; lanes > 0; lanes /= 2) {
      best = Max()(best, shuffle_xor(best, lanes));
    }
    best = across_warps<L>(best, t, scratch, Max());
    i32 where = kNone;
#pragma unroll
    for (int j = A::kC - 1; j >= 0; --j) {
      i32 col = L::col(t, j);
      if (col < L::kTileCols && slot(a, i, j) == best && col < where) where = col;
    }
#pragma unroll
    for (int lanes = L::kLanesPerRow / 2; lanes > 0; lanes /= 2) {
      where = Min()(where, shuffle_xor(where, lanes));
    }
    where = across_warps<L>(where, t, reinterpret_cast<i32*>(scratch), Min());
    v.put(i, 0, where == kNone ? 0 : where);
  }
}

// [r,c] -> [1,c], through `scratch` (kThreads elements).
template <class L, class F, class V, class A>
STRETTO_DEVICE void reduce_rows(V& v, const A& a, const Team& t, typename V::Compute* scratch,
                                F f) {
  using T = typename V::Compute;
#pragma unroll
  for (int j = 0; j < V::kC; ++j) {
    T sum = identity(f, T());
#pragma unroll
    for (int i = 0; i < A::kR; ++i) {
      if (L::row(t, i) < L::kTileRows) sum = f(sum, slot(a, i, j));
    }
    // Threads of a warp with the same columns, then one lane of each warp, in warp order.
#pragma unroll
    for (int lanes = L::kColumnGroup; lanes < 32; lanes *= 2) sum = f(sum, shuffle_xor(sum, lanes));
    constexpr u32 kStride = L::kColumnGroup < 32 ? 32 : L::kColumnGroup;
    named_barrier_sync(t.barrier, L::kThreads);
    scratch[t.tid] = sum;
    named_barrier_sync(t.barrier, L::kThreads);
    T total = identity(f, T());
#pragma unroll
    for (u32 first = 0; first < L::kThreads; first += kStride) {
      total = f(total, scratch[first + t.tid % kStride]);
    }
    v.put(0, j, total);
  }
}
