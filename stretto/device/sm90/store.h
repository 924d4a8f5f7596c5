// A 16-bit register tile to global memory through TMA: blocks of 64 rows, by each warpgroup on its
// own, through two staging buffers that are used in turn. The copy of a buffer overlaps with
// everything until the buffer is needed again.
#pragma once

#include "stretto/device/ptx/tma.h"
#include "stretto/device/sm90/smem.h"

// Four 8x8 matrices of 16-bit elements, one per row of 16 bytes that a lane points at.
STRETTO_DEVICE void store_matrix_x4(u8* row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// One block of 64 rows: row slots 2 * m and 2 * m + 1, kWidth columns from `col`.
template <int kWidth, class V, class S>
STRETTO_DEVICE void stage_block(const S& stage, const V& v, int m, int col, const Team& t) {
  int lane = int(t.tid % 32), warp = int(t.tid / 32 % 4);
  int row = warp * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < kWidth / 8; j += 2) {  // groups of 8 columns: one word of each row slot
    int word = col / 8 + j;
    store_matrix_x4(stage.data + S::offset(row, (j + lane / 16) * 8), v.w[2 * m][word],
                    v.w[2 * m + 1][word], v.w[2 * m][word + 1], v.w[2 * m + 1][word + 1]);
  }
}

// Rows of the tile from `y`, columns from `x`; TMA drops what lies outside the tensor. kWidth: the
// columns of a block, 64, 32 or 16; where it does not divide the tile's, the last block begins
// earlier and stores some columns again. `stages`: kBuffers buffers of this warpgroup, one or two;
// `barrier`: a named barrier of its 128 threads.
template <class T, int kCols, int kWidth, int kBuffers = 2, class V>
STRETTO_DEVICE void store_tma(const TensorMap* map, u8* stages, const V& v, i32 x, i32 y, i32 z,
                              const Team& t, u32 barrier) {
  using Stage = SmemTile<T, 64, kWidth, 2 * kWidth>;
  constexpr int kBlocks = V::kR / 2, kChunks = (kCols + kWidth - 1) / kWidth;
  auto column_of = [](int b) { return min(b % kChunks * kWidth, kCols - kWidth); };
  bool issuer = t.tid % 128 == 0;
  int first = int(t.tid / 128) * kBlocks * 64;
  // Two blocks at a time where no more follow, one else, so that one is copied while the next is
  // written.
  constexpr int kTotal = kBlocks * kChunks, kTogether = kTotal == 2 ? kBuffers : 1;
#pragma unroll
  for (int b = 0; b < kTotal; b += kTogether) {
    // At the beginning: whatever the last store left.
    if (issuer && b == 0) tma_store_wait_read<0>();
    if (issuer && b > 0) tma_store_wait_read<kBuffers - 1>();
    named_barrier_sync(barrier, 128);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      Stage stage{stages + (b + u) % kBuffers * 64 * 64 * 2};
      stage_block<kWidth>(stage, v, (b + u) / kChunks, column_of(b + u), t);
    }
    fence_proxy_async_shared();
    named_barrier_sync(barrier, 128);
    if (issuer) {
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        tma_store_3d(map, stages + (b + u) % kBuffers * 64 * 64 * 2, x + column_of(b + u),
                     y + first + (b + u) / kChunks * 64, z);
        tma_store_commit();
      }
    }
  }
}

// Columns [kCol, kCol + S::kCols) of a register tile to a slot; the reader comes after a barrier,
// and a proxy fence where it is TMA.
template <class L, int kCol, class V, class S>
STRETTO_DEVICE void fill_columns(const S& slot, const V& v, const Team& t) {
  using T = typename S::Element;
  constexpr bool kWhole = L::kNoPadding && kCol % 16 == 0 && S::kCols % 16 == 0;
  if constexpr (Fragment<L> && Paired<V> && kWhole) {
    int lane = int(t.tid % 32), warp = int(t.tid / 32 % 4);
#pragma unroll
    for (int m = 0; m < V::kR / 2; ++m) {
      int row = (int(t.tid / 128) * (V::kR / 2) + m) * 64 + warp * 16 + lane % 16;
#pragma unroll
      for (int j = 0; j < S::kCols / 8; j += 2) {  // groups of 8 columns: one word of each row slot
        int word = kCol / 8 + j;
        store_matrix_x4(slot.data + S::offset(row, (j + lane / 16) * 8), v.w[2 * m][word],
                        v.w[2 * m + 1][word], v.w[2 * m][word + 1], v.w[2 * m + 1][word + 1]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < V::kR; ++i) {
      int r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
      for (int j = 0; j < V::kC; ++j) {
        int c = (L::kTileCols == 1 ? 0 : L::col(t, j)) - kCol;
        bool inside = r < L::kTileRows && c >= 0 && c < S::kCols;
        if (inside) slot.at(r, c) = element_of<T>(v.at(i, j));
      }
    }
  }
}

// What the box has of a slot, by one thread, kWidth columns at a time.
template <int kWidth, class S, class T>
STRETTO_DEVICE void store_slot(const S& slot, const Box<T>& box) {
#pragma unroll 1
  for (int r = 0; r < S::kRows; ++r) {
    if (!box.has_row(r)) continue;
    T* to = box.data + r * box.row_stride;
#pragma unroll
    for (int c = 0; c < S::kCols; c += kWidth) {
      if (box.has_cols(c, kWidth)) {
        *reinterpret_cast<Run<T, kWidth>*>(to + c * box.col_stride) =
            *reinterpret_cast<const Run<T, kWidth>*>(&slot.at(r, c));
      } else {
        for (int k = 0; k < kWidth; ++k) {
          if (box.has_cols(c + k, 1)) to[(c + k) * box.col_stride] = slot.at(r, c + k);
        }
      }
    }
  }
}
