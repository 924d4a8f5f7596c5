// A 16-bit register tile to global memory through TMA: 64 rows x 128 bytes at a time, by each
// warpgroup on its own, through two staging buffers that are used in turn. The copy of a buffer
// overlaps with everything until the buffer is needed again.
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

// One 64 x 64 block: row slots 2 * m and 2 * m + 1, columns from 64 * chunk.
template <class V, class S>
STRETTO_DEVICE void stage_block(const S& stage, const V& v, int m, int chunk, const Team& t) {
  int lane = int(t.tid % 32), warp = int(t.tid / 32 % 4);
  int row = warp * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {  // groups of 8 columns: one word of each row slot
    constexpr int kWords = V::kC / 2;
    int word = chunk * 8 + j;
    if (word >= kWords) break;
    bool second = word + 1 < kWords;
    store_matrix_x4(stage.data + S::offset(row, (j + lane / 16) * 8), v.w[2 * m][word],
                    v.w[2 * m + 1][word], second ? v.w[2 * m][word + 1] : 0,
                    second ? v.w[2 * m + 1][word + 1] : 0);
  }
}

// Rows of the tile from `y`, columns from `x`; TMA drops what lies outside the tensor. `stages`:
// two buffers of 64 x 64 of this warpgroup; `barrier`: a named barrier of its 128 threads.
template <class T, int kCols, class V>
STRETTO_DEVICE void store_tma(const TensorMap* map, u8* stages, const V& v, i32 x, i32 y, i32 z,
                              const Team& t, u32 barrier) {
  using Stage = SmemTile<T, 64, 64, 128>;
  constexpr int kBlocks = V::kR / 2;
  bool issuer = t.tid % 128 == 0;
  int first = int(t.tid / 128) * kBlocks * 64;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int chunk = 0; chunk < div_up(kCols, 64); ++chunk) {
      Stage stage{stages + (m * div_up(kCols, 64) + chunk) % 2 * Stage::kBytes};
      if (issuer) tma_store_wait_read<1>();
      named_barrier_sync(barrier, 128);
      stage_block(stage, v, m, chunk, t);
      fence_proxy_async_shared();
      named_barrier_sync(barrier, 128);
      if (issuer) {
        tma_store_3d(map, stage.data, x + chunk * 64, y + first + m * 64, z);
        tma_store_commit();
      }
    }
  }
}
