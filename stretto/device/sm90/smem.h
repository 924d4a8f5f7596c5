// Tiles in shared memory: [rows, cols] in chunks of kSwizzle bytes of columns, chunk after chunk,
// each chunk kRows rows of kSwizzle bytes with the 16-byte units of a row permuted as TMA and wgmma
// expect. The base is aligned to 1024 bytes.
#pragma once

#include "stretto/device/sm90/global.h"

template <class T, int kRows_, int kCols_, int kSwizzle_>
struct SmemTile {
  using Element = T;
  static constexpr int kRows = kRows_, kCols = kCols_, kSwizzle = kSwizzle_;
  static constexpr int kChunkCols = kSwizzle / int(sizeof(T));
  static constexpr int kChunkBytes = kRows * kSwizzle;
  static constexpr int kBytes = kChunkBytes * div_up(kCols, kChunkCols);
  u8* data;

  STRETTO_DEVICE static u32 offset(int r, int c) {
    u32 in_chunk = u32(r) * kSwizzle + u32(c % kChunkCols) * sizeof(T);
    u32 permuted = in_chunk ^ ((in_chunk >> 7 & (kSwizzle / 16 - 1)) << 4);
    return u32(c / kChunkCols) * kChunkBytes + permuted;
  }
  STRETTO_DEVICE T& at(int r, int c) const { return *reinterpret_cast<T*>(data + offset(r, c)); }
};

// Writes a register tile; the reader comes after a barrier (and a proxy fence, where it is the
// tensor core or TMA).
template <class L, class V, class S>
STRETTO_DEVICE void store_smem(const S& smem, const V& v, const Team& t) {
  using T = typename S::Element;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    int r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
    for (int j = 0; j < V::kC; ++j) {
      int c = L::kTileCols == 1 ? 0 : L::col(t, j);
      if (r < S::kRows && c < S::kCols) smem.at(r, c) = from_float<T>(to_float(v.at(i, j)));
    }
  }
}

// Four 8x8 matrices of 16-bit elements, one per row of 16 bytes that a lane points at.
STRETTO_DEVICE void load_matrix_x4(u32& a, u32& b, u32& c, u32& d, const u8* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(smem_address(row))
               : "memory");
}

// Blocks of 64 rows in the fragment layout.
template <class V, class S>
STRETTO_DEVICE void load_fragments(V& v, const S& smem, const Team& t) {
  int lane = int(t.tid % 32), warp = int(t.tid / 32 % 4);
#pragma unroll
  for (int m = 0; m < V::kR / 2; ++m) {
    int row = (int(t.tid / 128) * (V::kR / 2) + m) * 64 + warp * 16 + lane % 16;
#pragma unroll
    for (int w = 0; w < V::kC / 2; w += 2) {  // a word is a pair of columns of a group of 8
      load_matrix_x4(v.w[2 * m][w], v.w[2 * m + 1][w], v.w[2 * m][w + 1], v.w[2 * m + 1][w + 1],
                     smem.data + S::offset(row, (w + lane / 16) * 8));
    }
  }
}

// Element by element, zeros outside of the tile. kTransposed: element (r, c) of the value is
// element (c, r) of the slot.
template <class L, bool kTransposed, class V, class S>
STRETTO_DEVICE void load_elements(V& v, const S& smem, const Team& t) {
  constexpr int kUnit = Paired<V> ? 2 : 1;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    int r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
    for (int j = 0; j < V::kC; j += kUnit) {
      typename S::Element e[2] = {};
#pragma unroll
      for (int u = 0; u < kUnit; ++u) {
        int c = L::kTileCols == 1 ? 0 : L::col(t, j + u);
        if (r < L::kTileRows && c < L::kTileCols)
          e[u] = kTransposed ? smem.at(c, r) : smem.at(r, c);
      }
      put_raw(v, i, j, e);
    }
  }
}

// kRun columns at once: neighbours within 16 bytes stay neighbours in the slot.
template <class L, int kRun, class V, class S>
STRETTO_DEVICE void load_runs(V& v, const S& smem, const Team& t) {
  using T = typename S::Element;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    int r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
    for (int j = 0; j < V::kC; j += kRun) {
      int c = L::col(t, j);
      bool inside = L::kNoPadding || (r < L::kTileRows && c < L::kTileCols);
      if constexpr (Paired<V>) {
        Run<u32, kRun / 2> e{};
        if (inside) e = *reinterpret_cast<const Run<u32, kRun / 2>*>(&smem.at(r, c));
#pragma unroll
        for (int k = 0; k < kRun / 2; ++k) v.w[i][j / 2 + k] = e.x[k];
      } else {
        Run<T, kRun> e{};
        if (inside) e = *reinterpret_cast<const Run<T, kRun>*>(&smem.at(r, c));
#pragma unroll
        for (int k = 0; k < kRun; ++k) v.x[i][j + k] = e.x[k];
      }
    }
  }
}

template <class L, class V, class S>
STRETTO_DEVICE void load_smem(V& v, const S& smem, const Team& t) {
  constexpr int kMost = 16 / int(sizeof(typename S::Element));
  constexpr int kRun = L::kVec < kMost ? L::kVec : kMost;
  constexpr bool kWhole = L::kNoPadding && L::kTileRows > 1 && L::kTileCols % 16 == 0;
  if constexpr (Fragment<L> && Paired<V> && kWhole) {
    load_fragments(v, smem, t);
  } else if constexpr (kRun > 1 && L::kTileCols % kRun == 0) {
    load_runs<L, kRun>(v, smem, t);
  } else {
    load_elements<L, false>(v, smem, t);
  }
}
template <class L, class V, class S>
STRETTO_DEVICE void load_smem_transposed(V& v, const S& smem, const Team& t) {
  load_elements<L, true>(v, smem, t);
}
// Fills a whole slot from a box, zeros past its end. kRun: columns that may be read at once,
// because strides and origin are multiples of it. Before the tensor core reads: a proxy fence in
// every thread and a barrier.
template <int kRun, class S, class T>
STRETTO_DEVICE void fill_slot(const S& smem, const Box<const T>& box, const Team& t, int threads) {
  constexpr int kUnit = 16 / int(sizeof(T));  // what stays together under the permutation
  constexpr int kUnits = div_up(S::kCols, S::kChunkCols) * S::kChunkCols / kUnit;
#pragma unroll 1
  for (int i = int(t.tid); i < S::kRows * kUnits; i += threads) {
    int r = i / kUnits, c = i % kUnits * kUnit;
    const T* row = box.data + r * box.row_stride;
    Run<T, kUnit> e{};
#pragma unroll
    for (int k = 0; k < kUnit; k += kRun) {
      if (box.has_row(r) && box.has_cols(c + k, kRun)) {
        auto run = *reinterpret_cast<const Run<T, kRun>*>(row + (c + k) * box.col_stride);
#pragma unroll
        for (int u = 0; u < kRun; ++u) e.x[k + u] = run.x[u];
      } else if (kRun > 1 && box.has_row(r)) {
#pragma unroll
        for (int u = 0; u < kRun; ++u) {
          if (box.has_cols(c + k + u, 1)) e.x[k + u] = row[(c + k + u) * box.col_stride];
        }
      }
    }
    *reinterpret_cast<Run<T, kUnit>*>(&smem.at(r, c)) = e;
  }
}
// Zeroes rows [first, kRows) of a slot: what lies past the end of a run-time range.
template <class S>
STRETTO_DEVICE void clear_rows(const S& smem, int first, const Team& t, int threads) {
  constexpr int kRowWords = S::kSwizzle / 16;
  struct alignas(16) Word {
    u32 x[4];
  };
  int first_word = first * kRowWords;
  for (int c = 0; c < div_up(S::kCols, S::kChunkCols); ++c) {
    auto* chunk = reinterpret_cast<Word*>(smem.data + c * S::kChunkBytes);
    for (int w = first_word + int(t.tid); w < S::kRows * kRowWords; w += threads) chunk[w] = Word{};
  }
}
