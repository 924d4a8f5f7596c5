// Sums, extrema and positions over the rows or columns of a tile. The order is fixed by the layout,
// so equal inputs give equal bits.
#pragma once

#include "stretto/device/sm90/tile.h"

struct ArgMax {};

// What a reduction starts from.
STRETTO_DEVICE float identity(Add) { return 0.f; }
STRETTO_DEVICE float identity(Max) { return __int_as_float(0xff800000); }
STRETTO_DEVICE float identity(Min) { return __int_as_float(0x7f800000); }

// Adds up `v` over the warps that share a row, through `scratch` (one float per warp of the team).
template <class L, class F>
STRETTO_DEVICE float across_warps(float v, const Team& t, float* scratch, F f) {
  if constexpr (L::kWarpsPerRow == 1) return v;
  named_barrier_sync(t.barrier, L::kThreads);
  u32 warp = t.tid / 32;
  if (t.tid % 32 == 0) scratch[warp] = v;
  named_barrier_sync(t.barrier, L::kThreads);
  u32 first = warp / L::kWarpsPerRow * L::kWarpsPerRow;
  float out = scratch[first];
#pragma unroll
  for (int w = 1; w < L::kWarpsPerRow; ++w) out = f(out, scratch[first + w]);
  return out;
}

// [r,c] -> [r,1].
template <class L, class F, class V, class A>
STRETTO_DEVICE void reduce_columns(V& v, const A& a, const Team& t, float* scratch, F f) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    float sum = identity(f);
#pragma unroll
    for (int j = 0; j < A::kC; ++j) {
      bool inside = L::kTileCols % (L::kColSlots * L::kLanesPerRow * L::kWarpsPerRow) == 0 ||
                    L::col(t, j) < L::kTileCols;
      if (inside) sum = f(sum, slot(a, i, j));
    }
#pragma unroll
    for (int lanes = L::kLanesPerRow / 2; lanes > 0; lanes /= 2) {
      sum = f(sum, shuffle_xor(sum, lanes));
    }
    sum = across_warps<L>(sum, t, scratch, f);
    v.put(i, 0, typename V::Compute(sum));
  }
}

// [r,c] -> i32 [r,1]: the lowest column of the largest value.
template <class L, class V, class A>
STRETTO_DEVICE void arg_max_columns(V& v, const A& a, const Team& t, float* scratch) {
  constexpr i32 kNone = 0x7fffffff;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    float best = identity(Max());
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
    // Column numbers are exact in float.
    v.put(i, 0, i32(across_warps<L>(float(where), t, scratch, Min())));
  }
}

// [r,c] -> [1,c], through `scratch` (kThreads floats).
template <class L, class F, class V, class A>
STRETTO_DEVICE void reduce_rows(V& v, const A& a, const Team& t, float* scratch, F f) {
#pragma unroll
  for (int j = 0; j < V::kC; ++j) {
    float sum = identity(f);
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
    float total = identity(f);
#pragma unroll
    for (u32 first = 0; first < L::kThreads; first += kStride) {
      total = f(total, scratch[first + t.tid % kStride]);
    }
    v.put(0, j, typename V::Compute(total));
  }
}
