// How a 2-D tile is spread over the threads of an agent: as the outer product of a map of rows and
// a map of columns. A thread holds kRowSlots x kColSlots elements; slot (i, j) is the element
// (row(i), col(j)). A [r,1] tile has the row map alone, a [1,c] tile the column map alone, and
// every thread of the other dimension holds a copy; the owners of element 0 store it.
#pragma once

#include "stretto/device/ptx/sync.h"

__host__ __device__ constexpr int div_up(int a, int b) { return (a + b - 1) / b; }

// Floored, as index expressions are, by a divisor of either sign.
STRETTO_DEVICE int floor_div_any(int a, int b) {
  return b > 0 ? floor_div(a, b) : floor_div(-a, -b);
}
STRETTO_DEVICE int floor_mod_any(int a, int b) { return a - floor_div_any(a, b) * b; }

// The threads that run an agent: `tid` counts from 0, `barrier` is the named barrier of all of
// them.
struct Team {
  u32 tid;
  u32 barrier;
};

STRETTO_DEVICE float shuffle_xor(float v, int lanes) {
  return __shfl_xor_sync(0xffffffffu, v, lanes);
}
STRETTO_DEVICE i32 shuffle_xor(i32 v, int lanes) { return __shfl_xor_sync(0xffffffffu, v, lanes); }

// The accumulator fragment of wgmma m64nNk16 (PTX ISA, figure "WGMMA .m64nNk16 register fragment
// layout for accumulator matrix D"): warpgroup w of the worker holds rows w * 64 * kBlocks onwards.
template <int kRows, int kCols, int kWarpgroups>
struct MmaLayout {
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kBlocks = div_up(kRows, 64 * kWarpgroups);
  static constexpr int kRowSlots = 2 * kBlocks;
  static constexpr int kColSlots = div_up(kCols, 8) * 2;
  static constexpr int kVec = 2;
  static constexpr int kTileRows = kRows, kTileCols = kCols;
  static constexpr int kLanesPerRow = 4, kWarpsPerRow = 1;
  // Every slot of every thread lies in the tile.
  static constexpr bool kNoPadding =
      (kRows == 1 || kRows % (64 * kWarpgroups) == 0) && (kCols == 1 || kCols % 8 == 0);

  STRETTO_DEVICE static int row(const Team& t, int i) {
    return (int(t.tid / 128) * kBlocks + i / 2) * 64 + int(t.tid / 32 % 4) * 16 + i % 2 * 8 +
           int(t.tid % 32) / 4;
  }
  STRETTO_DEVICE static int col(const Team& t, int j) {
    return j / 2 * 8 + int(t.tid % 4) * 2 + j % 2;
  }
  STRETTO_DEVICE static bool stores_rows(const Team& t) { return t.tid % 4 == 0; }
  STRETTO_DEVICE static bool stores_cols(const Team& t) { return t.tid < 4; }
  static constexpr int kColumnGroup = 4;  // threads u and u + kColumnGroup have the same columns
};

template <class L>
concept Fragment = requires {
  L::kBlocks;
};

// Rows over groups of kLanes neighbouring threads, columns in runs of kVec over the group.
template <int kRows, int kCols, int kThreads_, int kLanes, int kVec_>
struct RowLayout {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVec = kVec_;
  static constexpr int kRowsPerPass = kThreads / kLanes;
  static constexpr int kRowSlots = div_up(kRows, kRowsPerPass);
  static constexpr int kColSlots = div_up(kCols, kLanes* kVec) * kVec;
  static constexpr int kTileRows = kRows, kTileCols = kCols;
  static constexpr int kLanesPerRow = kLanes < 32 ? kLanes : 32;
  static constexpr int kWarpsPerRow = kLanes < 32 ? 1 : kLanes / 32;
  static constexpr bool kNoPadding =
      (kRows == 1 || kRows % kRowsPerPass == 0) && (kCols == 1 || kCols % (kLanes * kVec) == 0);

  STRETTO_DEVICE static int row(const Team& t, int i) {
    return i * kRowsPerPass + int(t.tid) / kLanes;
  }
  STRETTO_DEVICE static int col(const Team& t, int j) {
    return (j / kVec * kLanes + int(t.tid) % kLanes) * kVec + j % kVec;
  }
  STRETTO_DEVICE static bool stores_rows(const Team& t) { return t.tid % kLanes == 0; }
  STRETTO_DEVICE static bool stores_cols(const Team& t) { return t.tid < kLanes; }
  static constexpr int kColumnGroup = kLanes;
};
