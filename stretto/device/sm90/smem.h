// Tiles in shared memory: [rows, cols] in chunks of kSwizzle bytes of columns, chunk after chunk,
// each chunk kRows rows of kSwizzle bytes with the 16-byte units of a row permuted as TMA and wgmma
// expect. The base is aligned to 1024 bytes.
#pragma once

#include "stretto/device/ptx/copy_async.h"
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
      if (r < S::kRows && c < S::kCols) smem.at(r, c) = element_of<T>(v.at(i, j));
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
        if (L::kNoPadding || (r < L::kTileRows && c < L::kTileCols))
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

// Two neighbours of 4 bytes. The assembler moves it neither past a barrier nor into a branch.
STRETTO_DEVICE void load_in_place(float& a, float& b, const float* from) {
  asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(a), "=f"(b)
               : "r"(smem_address(from))
               : "memory");
}
// Slots [kFrom, kTo) of a row's columns, read where it stands.
template <class L, int kFrom, int kTo, class V, class S>
STRETTO_DEVICE void load_columns(V& v, const S& smem, const Team& t) {
#pragma unroll
  for (int j = kFrom; j < kTo; j += 2) {
    load_in_place(v.x[0][j], v.x[0][j + 1], &smem.at(0, L::col(t, j)));
  }
}
template <class L, class V, class S>
STRETTO_DEVICE void load_smem_transposed(V& v, const S& smem, const Team& t) {
  load_elements<L, true>(v, smem, t);
}
// A vector in shared memory, without gaps.
template <class T, int kRows_, int kCols_>
struct SmemVector {
  using Element = T;
  static constexpr int kRows = kRows_, kCols = kCols_, kChunkCols = kCols_;
  u8* data;
  STRETTO_DEVICE T& at(int r, int c) const { return reinterpret_cast<T*>(data)[r * kCols + c]; }
};

// One column of kSteps that lie side by side.
template <class T, int kRows_, int kSteps>
struct SmemColumn {
  using Element = T;
  static constexpr int kRows = kRows_, kCols = 1, kChunkCols = 1;
  u8* data;
  STRETTO_DEVICE T& at(int r, int) const { return reinterpret_cast<T*>(data)[r * kSteps]; }
};

// Copies kRun elements, of which `count` exist, the rest being zero. kWhole: all of them or none.
// From 4 bytes on it is asynchronous: mbarrier_arrive_after_copies says when it is complete. Before
// the tensor core reads, the reader has to fence.
template <int kRun, bool kWhole, class T>
STRETTO_DEVICE void fill_run(T* to, const T* from, int count) {
  constexpr int kBytes = kRun * int(sizeof(T));
  if constexpr (kBytes >= 4 && kWhole) {
    copy_async_or_zero<kBytes>(to, from, count > 0);
  } else if constexpr (kBytes >= 4) {
    copy_async<kBytes>(to, from, (count < 0 ? 0 : count < kRun ? count : kRun) * int(sizeof(T)));
  } else {
#pragma unroll
    for (int u = 0; u < kRun; ++u) to[u] = u < count ? from[u] : T{};
  }
}
// How many of the kRun elements from column c on exist; kRun divides where they begin.
template <int kRun, class T>
STRETTO_DEVICE int columns_left(const Box<const T>& box, int c) {
  return c < box.first_col ? 0 : box.cols - c;
}

// Passes of so many rows each until rows are permuted as before: where they lie changes by a
// constant then.
constexpr int passes_until_alike(int rows) {
  return rows % 8 == 0 ? 1 : rows % 4 == 0 ? 2 : rows % 2 == 0 ? 4 : 8;
}
// Threads that keep to their columns fill a slot; what they compute for a pass is next to nothing,
// so that few of them keep up with the tensor core.
template <int kRun, bool kWhole, int kThreads, class S, class T>
STRETTO_DEVICE void fill_columns(const S& smem, const Box<const T>& box, const Team& t) {
  constexpr int kRuns = div_up(S::kCols, S::kChunkCols) * S::kChunkCols / kRun;
  constexpr int kStep = kThreads / kRuns, kPasses = div_up(S::kRows, kStep);
  constexpr int kPeriod = passes_until_alike(kStep);
  int tid = computed_here(int(t.tid));
  int first = tid / kRuns, c = tid % kRuns * kRun;
  int columns = columns_left<kRun>(box, c);
  const T* from = box.data + (first * box.row_stride + c * box.col_stride);
  T* to[kPeriod];
#pragma unroll
  for (int k = 0; k < kPeriod; ++k) to[k] = &smem.at(first + k * kStep, c);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    int step = pass * kStep;
    if (S::kRows % kStep != 0 && first + step >= S::kRows) continue;
    int count = box.has_row(first + step) ? columns : 0;
    const T* row = kWhole || count > 0 ? from + step * box.row_stride : box.data;
    fill_run<kRun, kWhole>(to[pass % kPeriod] + pass / kPeriod * kPeriod * kStep * S::kChunkCols,
                           row, count);
  }
}
// kThreads fill a whole slot from a box, with zeros past its end. kRun: columns that may be read at
// once, because strides and origin are multiples of it.
template <int kRun, bool kWhole, int kThreads, class S, class T>
STRETTO_DEVICE void fill_slot(const S& smem, const Box<const T>& box, const Team& t) {
  constexpr int kRuns = div_up(S::kCols, S::kChunkCols) * S::kChunkCols / kRun;
  constexpr int kTotal = S::kRows * kRuns, kPasses = div_up(kTotal, kThreads);
  if constexpr (kThreads % kRuns == 0 && kPasses <= 32) {
    return fill_columns<kRun, kWhole, kThreads>(smem, box, t);
  }
#pragma unroll 4
  for (int pass = 0; pass < kPasses; ++pass) {
    int i = pass * kThreads + int(t.tid);
    if (kTotal % kThreads != 0 && i >= kTotal) continue;
    int r = i / kRuns, c = i % kRuns * kRun;
    int count = box.has_row(r) ? columns_left<kRun>(box, c) : 0;
    i64 from = kWhole || count > 0 ? r * box.row_stride + c * box.col_stride : 0;
    fill_run<kRun, kWhole>(&smem.at(r, c), box.data + from, count);
  }
}
// The same with rows that `index` picks, as in load_rows; L is its layout. Few threads do it, for
// each step of a product: per copy they compare once, multiply once and copy.
template <class L, int kRun, bool kWhole, class S, class I, class T>
STRETTO_DEVICE void fill_rows(const S& smem, const I& index, const Box<const T>& box,
                              const Team& t) {
  constexpr int kCols = div_up(S::kCols, S::kChunkCols) * S::kChunkCols;
  constexpr int kStep = L::kRowsPerPass, kPeriod = passes_until_alike(kStep);
  constexpr int kFirstRows = div_up(L::kThreads, L::kColumnGroup);  // in which threads begin
  const int first = L::row(t, 0);
#pragma unroll
  for (int c = int(t.tid % L::kLanesPerRow) * kRun; c < kCols; c += L::kLanesPerRow * kRun) {
    int columns = columns_left<kRun>(box, c);
    // Of unsigned numbers, of which one below first_row is too large.
    u32 rows = columns > 0 && box.rows > box.first_row ? u32(box.rows) - u32(box.first_row) : 0;
    const T* from = computed_here(box.data + c * box.col_stride);
    T* to[kPeriod];
#pragma unroll
    for (int k = 0; k < kPeriod; ++k) to[k] = &smem.at(first + k * kStep, c);
#pragma unroll
    for (int i = 0; i < I::kR; ++i) {
      int row = first + i * kStep;
      if (i * kStep + kFirstRows > S::kRows && row >= S::kRows) continue;
      bool known = i * kStep + kFirstRows <= L::kTileRows || row < L::kTileRows;
      i32 picked = computed_here(known ? index.x[i][0] : -1);
      bool exists = u32(picked) - u32(box.first_row) < rows;
      // Nothing is read where no row is, not even to be dropped.
      const T* source = kWhole || exists ? from + picked * box.row_stride : box.data;
      int count = exists ? (kWhole ? kRun : columns) : 0;
      fill_run<kRun, kWhole>(to[i % kPeriod] + i / kPeriod * kPeriod * kStep * S::kChunkCols,
                             source, count);
    }
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
