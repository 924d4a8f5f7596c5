// acc += a * b. Asynchronous on the tensor core, with B in shared memory and A there or in
// registers; and a plain form for the shapes and types that wgmma does not take.
#pragma once

#include "stretto/device/ptx/cycles.h"
#include "stretto/device/ptx/wgmma.h"
#include "stretto/device/sm90/smem.h"

// The matrix instructions of one shape; specialised by the text that device/wgmma_text.h writes.
template <class T, int kN>
struct Wgmma;

// What a shared-memory slot is to a product: as stored, or transposed.
template <class S, bool kTransposed_>
struct Operand {
  using Slot = S;
  using Element = typename S::Element;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr bool kFixed = false;
  S slot;
};
// Of a slot that lies where the kernel's text says.
template <class S, bool kTransposed_>
struct FixedOperand : Operand<S, kTransposed_> {
  static constexpr bool kFixed = true;
};

// `v`, which all threads of a warp have, as the assembler does not see: descriptors that come from
// it live in uniform registers, and their parts take no moves between the matrix instructions.
STRETTO_DEVICE u32 uniform(u32 v) { return __shfl_sync(0xffffffffu, v, 0); }

// What descriptors of a warpgroup's products begin from: shared memory, where it starts in units of
// 16 bytes, and the number of the warpgroup in its team, both uniform.
struct Origin {
  const u8* smem;
  u32 start;
  u32 group;
};
STRETTO_DEVICE Origin origin_of(const u8* smem, const Team& t) {
  return {smem, uniform((smem_address(smem) & 0x3ffff) >> 4), uniform(t.tid / 128)};
}

// Always so, which the assembler does not see: what it finds behind this condition, it does not
// move up between the matrix instructions of the product before.
STRETTO_DEVICE bool always(const Origin& o) { return o.start <= 0x3ffff >> 4; }

// How far the part that starts at stored row r and column c lies behind a slot's first, in units of
// 16 bytes.
template <class S>
__host__ __device__ constexpr u32 part_offset(int r, int c) {
  return u32(c / S::kChunkCols * S::kChunkBytes + r * S::kSwizzle +
             c % S::kChunkCols * int(sizeof(typename S::Element))) >>
         4;
}

// Descriptors of an operand's parts, which differ in where they start alone. `row`: the first of
// the warpgroup's. kAlongRows: the matrix instruction's K runs along the stored rows. kRepeated:
// every group of 8 rows is the slot's first.
template <class X, bool kAlongRows, bool kRepeated = false>
struct Descriptors {
  using S = typename X::Slot;
  u32 start;

  STRETTO_DEVICE Descriptors(const X& x, u32 row, const Origin& o)
      : start(o.start + (u32(x.slot.data - o.smem) >> 4)) {
    start += kAlongRows ? part_offset<S>(0, 64) * (row / 64) : row * (S::kSwizzle / 16);
    if (!X::kFixed) start = uniform(start);
  }
  STRETTO_DEVICE u64 at(int r, int c) const {
    return wgmma_descriptor<S::kSwizzle>(start + part_offset<S>(r, c),
                                         kAlongRows ? S::kChunkBytes : 1,
                                         kRepeated ? 0 : 8 * S::kSwizzle);
  }
};

// The accumulator is a MmaLayout tile of kBlocks * 2 row slots; kN columns. kZero: starts from zero
// instead of acc. One commit group.
template <int kN, int kK, bool kZero, class Acc, class A, class B>
STRETTO_DEVICE void dot_async(Acc& acc, const A& a, const B& b, const Origin& o) {
  using T = typename A::Element;
  constexpr int kStep = 32 / int(sizeof(T));
  constexpr int kBlocks = Acc::kR / 2;
  constexpr bool kTransA = A::kTransposed, kTransB = !B::kTransposed;
  constexpr bool kRepeated = !kTransA && A::Slot::kRows == 8;  // 8 rows of a few, and their copies
  Descriptors<A, kTransA, kRepeated> of_a(a, o.group * kBlocks * 64, o);
  Descriptors<B, kTransB> of_b(b, 0, o);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kK; k += kStep) {
    u64 db = kTransB ? of_b.at(k, 0) : of_b.at(0, k);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      u64 da = kTransA ? of_a.at(k, m * 64) : of_a.at(m * 64, k);
      Wgmma<T, kN>::template ss<kTransA, kTransB>(acc.x[2 * m], acc.x[2 * m + 1], da, db,
                                                  !kZero || k > 0);
    }
  }
  wgmma_commit();
}

// The products of the first kParts parts of B's columns alone, of which `parts` have any that
// count. One instruction for all of them: A is read once.
template <int kN, int kK, int kParts, int kPart, class Acc, class OfA, class OfB, class A, class B>
STRETTO_DEVICE void dot_first_parts(Acc& acc, const OfA& of_a, const OfB& of_b, int parts) {
  using T = typename A::Element;
  if constexpr (kPart < kParts) {
    if (parts > kPart) {
      return dot_first_parts<kN, kK, kParts, kPart + 1, Acc, OfA, OfB, A, B>(acc, of_a, of_b,
                                                                             parts);
    }
  }
  wgmma_fence();  // behind the branch: else the assembler puts one more there
#pragma unroll
  for (int k = 0; k < kK; k += 32 / int(sizeof(T))) {
    u64 db = B::kTransposed ? of_b.at(0, k) : of_b.at(k, 0);
#pragma unroll
    for (int m = 0; m < Acc::kR / 2; ++m) {
      u64 da = A::kTransposed ? of_a.at(k, m * 64) : of_a.at(m * 64, k);
      Wgmma<T, kN / kParts * kPart>::template ss<A::kTransposed, !B::kTransposed>(
          acc.x[2 * m], acc.x[2 * m + 1], da, db, true);
    }
  }
  wgmma_commit();
}
template <int kN, int kK, int kParts, class Acc, class A, class B>
STRETTO_DEVICE void dot_async_of_parts(Acc& acc, const A& a, const B& b, int parts,
                                       const Origin& o) {
  constexpr bool kTransA = A::kTransposed;
  using OfA = Descriptors<A, kTransA, !kTransA && A::Slot::kRows == 8>;
  using OfB = Descriptors<B, !B::kTransposed>;
  OfA of_a(a, o.group * (Acc::kR / 2) * 64, o);
  OfB of_b(b, 0, o);
  dot_first_parts<kN, kK, kParts, 1, Acc, OfA, OfB, A, B>(acc, of_a, of_b, parts);
}

// A in registers: a 16-bit MmaLayout tile.
template <int kN, int kK, bool kZero, class Acc, class A, class B>
requires Paired<A> STRETTO_DEVICE void dot_async(Acc& acc, const A& a, const B& b,
                                                 const Origin& o) {
  using T = typename A::Element;
  constexpr bool kTransB = !B::kTransposed;
  Descriptors<B, kTransB> of_b(b, 0, o);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kK; k += 16) {
    u64 db = kTransB ? of_b.at(k, 0) : of_b.at(0, k);
#pragma unroll
    for (int m = 0; m < Acc::kR / 2; ++m) {
      const u32* lo = a.w[2 * m];
      const u32* hi = a.w[2 * m + 1];
      Wgmma<T, kN>::template rs<kTransB>(acc.x[2 * m], acc.x[2 * m + 1], lo[k / 8], hi[k / 8],
                                         lo[k / 8 + 1], hi[k / 8 + 1], db, !kZero || k > 0);
    }
  }
  wgmma_commit();
}

// The same with eight columns more in acc, which get the sums of A's rows: after B's last chunk the
// matrix instruction goes on to `ones`, 16 stored rows of ones that lie behind B (in units of 16
// bytes). B is stored with its rows along K.
template <int kN, int kK, bool kZero, class Acc, class A, class B>
requires Paired<A> STRETTO_DEVICE void dot_async_with_sums(Acc& acc, const A& a, const B& b,
                                                           u32 ones, const Origin& o) {
  using T = typename A::Element;
  using S = typename B::Slot;
  constexpr int kLast = S::kChunkCols, kFirst = kN - kLast;
  Descriptors<B, true> of_b(b, 0, o);
  u32 last = of_b.start + part_offset<S>(0, kFirst);
  u64 with_ones =
      wgmma_descriptor<S::kSwizzle>(last, (o.start + ones - last) << 4, 8 * S::kSwizzle);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kK; k += 16, with_ones -= u64(part_offset<S>(16, 0)) * 0xffff) {
#pragma unroll
    for (int m = 0; m < Acc::kR / 2; ++m) {
      const u32* lo = a.w[2 * m];
      const u32* hi = a.w[2 * m + 1];
      float *to_lo = acc.x[2 * m], *to_hi = acc.x[2 * m + 1];
      if constexpr (kFirst > 0) {
        Wgmma<T, kFirst>::template rs<true>(to_lo, to_hi, lo[k / 8], hi[k / 8], lo[k / 8 + 1],
                                            hi[k / 8 + 1], of_b.at(k, 0), !kZero || k > 0);
      }
      Wgmma<T, kLast + 8>::template rs<true>(to_lo + kFirst / 4, to_hi + kFirst / 4, lo[k / 8],
                                             hi[k / 8], lo[k / 8 + 1], hi[k / 8 + 1], with_ones,
                                             !kZero || k > 0);
    }
  }
  wgmma_commit();
}

// What such products go on to. Before a barrier; the proxy fence is here.
template <class T>
STRETTO_DEVICE void fill_ones(u8* to, int bytes, int thread, int num_threads) {
  for (int i = thread; i < bytes / int(sizeof(T)); i += num_threads) {
    reinterpret_cast<T*>(to)[i] = from_float<T>(1.f);
  }
  fence_proxy_async_shared();
}

// Keeps the compiler from touching registers of a product before it has completed.
template <class V>
STRETTO_DEVICE void settle(V& v) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    if constexpr (Paired<V>) {
#pragma unroll
      for (int j = 0; j < V::kC / 2; ++j) asm volatile("" : "+r"(v.w[i][j])::"memory");
    } else {
#pragma unroll
      for (int j = 0; j < V::kC; ++j) asm volatile("" : "+f"(v.x[i][j])::"memory");
    }
  }
}

// The warpgroups of a team work on something in turn, beginning with the first, to which the last
// passes a turn at the start. Named barriers kFirst onwards.
constexpr u32 kTurnBarrier = 12;
template <u32 kFirst = kTurnBarrier>
STRETTO_DEVICE void take_turn(const Team& t) {
  named_barrier_sync(kFirst + t.tid / 128, 256);
}
template <u32 kWarpgroups, u32 kFirst = kTurnBarrier>
STRETTO_DEVICE void pass_turn(const Team& t) {
  named_barrier_arrive(kFirst + (t.tid / 128 + 1) % kWarpgroups, 256);
}

// The plain form: every thread sums its own elements over k in order, in fp32. A row or a column
// that is the only one is every thread's. Columns from kCols on get the sums of A's rows.
template <class L, int kK, int kCols, class Acc, class A, class B>
STRETTO_DEVICE void dot_simt(Acc& acc, const A& a, const B& b, const Team& t) {
  for (int k = 0; k < kK; ++k) {
    float bk[Acc::kC];
#pragma unroll
    for (int j = 0; j < Acc::kC; ++j) {
      int c = L::kTileCols == 1 ? 0 : L::col(t, j);
      bool in = c < L::kTileCols;
      if (c >= kCols && in) {
        bk[j] = 1.f;
      } else {
        bk[j] = !in ? 0.f : to_float(B::kTransposed ? b.slot.at(c, k) : b.slot.at(k, c));
      }
    }
#pragma unroll
    for (int i = 0; i < Acc::kR; ++i) {
      int r = L::kTileRows == 1 ? 0 : L::row(t, i);
      bool in = r < L::kTileRows;
      float ak = !in ? 0.f : to_float(A::kTransposed ? a.slot.at(k, r) : a.slot.at(r, k));
#pragma unroll
      for (int j = 0; j < Acc::kC; ++j) acc.x[i][j] = fmaf(ak, bk[j], acc.x[i][j]);
    }
  }
}
