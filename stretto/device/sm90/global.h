// Tiles to and from global memory by the threads of an agent.
#pragma once

#include "stretto/device/ptx/memory.h"
#include "stretto/device/sm90/tile.h"

// The box of a tensor under a tile: `data` is the element at the tile's origin; elements at or past
// `rows` or `cols`, or before `first_row` or `first_col`, do not exist: they read as zero and are
// not written.
template <class T>
struct Box {
  T* data;
  i64 row_stride, col_stride;  // elements
  i32 rows, cols;
  i32 first_row = 0, first_col = 0;
  STRETTO_DEVICE bool has_row(i32 r) const { return r >= first_row && r < rows; }
  STRETTO_DEVICE bool has_cols(i32 c, i32 count) const {
    return c >= first_col && c + count <= cols;
  }
  STRETTO_DEVICE bool covers(i32 tile_rows, i32 tile_cols) const {
    return first_row == 0 && first_col == 0 && rows >= tile_rows && cols >= tile_cols;
  }
};

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Run {
  T x[kCount];
};

template <class V, class T>
STRETTO_DEVICE void put_raw(V& v, int i, int j, const T* e) {
  if constexpr (Paired<V>) {
    v.w[i][j / 2] = u32(e[0].bits) | (u32(e[1].bits) << 16);
  } else {
    v.x[i][j] = e[0];
  }
}

// Element (i, j) and the `kStep - 1` after it, as far as they exist.
template <int kWidth, int kStep, class T>
STRETTO_DEVICE Run<T, kStep> load_guarded(const Box<const T>& box, i32 r, i32 c) {
  Run<T, kStep> e{};
  const T* row = box.data + r * box.row_stride;
#pragma unroll
  for (int k = 0; k < kStep; k += kWidth) {
    if (box.has_row(r) && box.has_cols(c + k, kWidth)) {
      auto run = *reinterpret_cast<const Run<T, kWidth>*>(row + (c + k) * box.col_stride);
#pragma unroll
      for (int u = 0; u < kWidth; ++u) e.x[k + u] = run.x[u];
    } else if (kWidth > 1 && box.has_row(r)) {
#pragma unroll
      for (int u = 0; u < kWidth; ++u) {
        if (box.has_cols(c + k + u, 1)) e.x[k + u] = row[(c + k + u) * box.col_stride];
      }
    }
  }
  return e;
}

// Pairs of 16-bit elements that lie as the tensor core has them: of 32 columns, four neighbouring
// threads share each eight, two columns a thread. They read eight columns each, 16 bytes instead of
// four times 4, and exchange pairs.
template <class L, int kRun, class T>
constexpr bool kQuadsShare = Fragment<L>&& kRun == 2 &&
                             sizeof(T) == 2 && L::kTileRows > 1 && L::kTileCols % 32 == 0;

template <class L, class T>
STRETTO_DEVICE bool quads_read(const Box<const T>& box) {
  bool aligned =
      ((reinterpret_cast<u64>(box.data) | u64(box.row_stride * i64(sizeof(T)))) & 15) == 0;
  return L::kNoPadding && aligned && box.col_stride == 1 && box.covers(L::kTileRows, L::kTileCols);
}

// Thread q of four has the words of eight columns; afterwards word q of each of the four eights.
STRETTO_DEVICE void exchange_in_quad(u32 (&w)[4], u32 lane) {
  bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    u32 got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    w[i] = odd ? got : w[i];
    w[i + 1] = odd ? w[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    u32 got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);
    w[i] = high ? got : w[i];
    w[i + 2] = high ? w[i + 2] : got;
  }
}

// Four pairs, as the pairs that a thread of the quad has of 32 columns: those of its row from
// column c on, where they do not exist or cannot be read so zero or one by one.
template <class T>
STRETTO_DEVICE uint4 read_pairs(const Box<const T>& box, i32 r, i32 c, u32 lane) {
  u32 w[4];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    Run<T, 2> e = load_guarded<2, 2>(box, r, c + 8 * m + 2 * int(lane % 4));
    w[m] = u32(e.x[0].bits) | (u32(e.x[1].bits) << 16);
  }
  return {w[0], w[1], w[2], w[3]};
}

// put(i, j, pair) for the pairs of the thread's rows and columns, `kInFlight` reads at a time. One
// loop for both ways to read: two of them would hold a tile in registers twice.
template <class L, int kRowSlots, int kColSlots, int kInFlight, class T, class F>
STRETTO_DEVICE void each_pair(const Box<const T>& box, const Team& t, F put) {
  constexpr int kReads = kColSlots / 8, kAll = kRowSlots * kReads;
  bool quads = quads_read<L>(box);
#pragma unroll
  for (int first = 0; first < kAll; first += kInFlight) {
    uint4 read[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      if (first + n >= kAll) break;
      i32 r = L::row(t, (first + n) / kReads), c = (first + n) % kReads * 32;
      read[n] = quads ? *reinterpret_cast<const uint4*>(box.data + r * box.row_stride + c +
                                                        int(t.tid % 4) * 8)
                      : read_pairs(box, r, c, t.tid);
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      if (first + n >= kAll) break;
      u32 w[4] = {read[n].x, read[n].y, read[n].z, read[n].w};
      if (quads) exchange_in_quad(w, t.tid);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        put((first + n) / kReads, (first + n) % kReads * 8 + 2 * m, w[m]);
      }
    }
    asm volatile("" ::: "memory");
  }
}

// v, from all runs of the box's rows `row_of(i)`; `there` says of row and column of a run whether
// it exists.
template <class L, int kRun, class V, class T, class R, class F>
STRETTO_DEVICE void load_runs(V& v, const Box<const T>& box, const Team& t, R row_of, F there) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = row_of(i);
    const T* row = box.data + r * box.row_stride;
#pragma unroll
    for (int j = 0; j < V::kC; j += kRun) {
      i32 c = L::kTileCols == 1 ? 0 : L::col(t, j);
      const T* from = row + c * box.col_stride;
      // Words as they come: taken apart, they would have to arrive first.
      if constexpr (Paired<V>) {
        Run<u32, kRun / 2> e{};
        if (there(r, c)) e = *reinterpret_cast<const Run<u32, kRun / 2>*>(from);
#pragma unroll
        for (int k = 0; k < kRun / 2; ++k) v.w[i][j / 2 + k] = e.x[k];
      } else {
        Run<T, kRun> e{};
        if (there(r, c)) e = *reinterpret_cast<const Run<T, kRun>*>(from);
#pragma unroll
        for (int k = 0; k < kRun; ++k) v.x[i][j + k] = e.x[k];
      }
    }
  }
}

// kRun: columns that may be read at once, because strides and origin are multiples of it.
// kWholeRuns: the box ends between runs.
template <class L, int kRun, bool kWholeRuns = false, class V, class T>
STRETTO_DEVICE void load_box(V& v, const Box<const T>& box, const Team& t) {
  if constexpr (kQuadsShare<L, kRun, T> && Paired<V>) {
    constexpr int kAll = V::kR * V::kC / 8;
    return each_pair<L, V::kR, V::kC, kAll>(box, t,
                                            [&](int i, int j, u32 pair) { v.w[i][j / 2] = pair; });
  }
  constexpr int kUnit = Paired<V> ? 2 : 1;
  constexpr int kStep = V::kC == 1 ? 1 : (kRun > kUnit ? kRun : kUnit);
  constexpr int kWidth = V::kC == 1 ? 1 : kRun;
  // All loads are in flight at once, with no branch in between: of a tile that exists as a whole,
  // and where each run does or does not.
  auto row_of = [&](int i) { return L::kTileRows == 1 ? 0 : L::row(t, i); };
  if constexpr (kWidth == kStep) {
    if (L::kNoPadding && box.covers(L::kTileRows, L::kTileCols)) {
      return load_runs<L, kStep>(v, box, t, row_of, [](i32, i32) { return true; });
    }
    if constexpr (kWholeRuns) {
      return load_runs<L, kStep>(v, box, t, row_of, [&](i32 r, i32 c) {
        return box.has_row(r) && box.has_cols(c, kStep);
      });
    }
  }
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = row_of(i);
#pragma unroll
    for (int j = 0; j < V::kC; j += kStep) {
      i32 c = L::kTileCols == 1 ? 0 : L::col(t, j);
      auto e = load_guarded<kWidth, kStep>(box, r, c);
#pragma unroll
      for (int k = 0; k < kStep; k += kUnit) put_raw(v, i, j + k, e.x + k);
    }
  }
}

// v = f(a, x) for the box's elements x, which are zero where they do not exist. Some loads are in
// flight at a time, not all, so that x needs few registers beside v.
// kQuads: reads of quads in flight, 0 where there are no registers for them.
template <class L, int kRun, int kQuads, class V, class A, class T, class F>
STRETTO_DEVICE void load_into(V& v, const A& a, const Box<const T>& box, const Team& t, F f) {
  constexpr int kInFlight = 32;
  if constexpr (kQuads > 0 && kQuadsShare<L, kRun, T>) {
    return each_pair<L, V::kR, V::kC, kQuads>(box, t, [&](int i, int j, u32 pair) {
      Run<T, 2> e;
      e.x[0].bits = u16(pair);
      e.x[1].bits = u16(pair >> 16);
      v.put(i, j, f(a.at(i, j), to_float(e.x[0])));
      v.put(i, j + 1, f(a.at(i, j + 1), to_float(e.x[1])));
    });
  }
  bool whole = L::kNoPadding && box.covers(L::kTileRows, L::kTileCols);
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = L::row(t, i);
    const T* row = box.data + r * box.row_stride;
#pragma unroll
    for (int j = 0; j < V::kC; j += kInFlight * kRun) {
      Run<T, kRun> e[kInFlight];
#pragma unroll
      for (int n = 0; n < kInFlight; ++n) {
        if (j + n * kRun >= V::kC) break;
        i32 c = L::col(t, j + n * kRun);
        e[n] = whole ? *reinterpret_cast<const Run<T, kRun>*>(row + c * box.col_stride)
                     : load_guarded<kRun, kRun>(box, r, c);
      }
#pragma unroll
      for (int n = 0; n < kInFlight * kRun; ++n) {
        if (j + n >= V::kC) break;
        v.put(i, j + n, f(a.at(i, j + n), to_float(e[n / kRun].x[n % kRun])));
      }
      asm volatile("" ::: "memory");
    }
  }
}

// kApart: to another rank. The compiler may take a run apart, which across a link are several times
// as many packets.
template <bool kApart, class T, int kWidth>
STRETTO_DEVICE void store_run(T* to, const Run<T, kWidth>& e) {
  if constexpr (kApart && (sizeof(e) == 16 || sizeof(e) == 8)) {
    union {
      Run<T, kWidth> run;
      u32 words[sizeof(e) / 4];
    } both{e};
    store_words(to, both.words);
  } else {
    *reinterpret_cast<Run<T, kWidth>*>(to) = e;
  }
}

// kWholeRuns: the box ends between runs.
template <class L, int kRun, bool kApart = false, bool kWholeRuns = false, class V, class T>
STRETTO_DEVICE void store_box(const V& v, const Box<T>& box, const Team& t) {
  constexpr int kWidth = V::kC == 1 ? 1 : kRun;
  if (L::kTileRows == 1 && !L::stores_cols(t)) return;
  if (L::kTileCols == 1 && !L::stores_rows(t)) return;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = L::kTileRows == 1 ? 0 : L::row(t, i);
    T* row = box.data + r * box.row_stride;
#pragma unroll
    for (int j = 0; j < V::kC; j += kWidth) {
      i32 c = L::kTileCols == 1 ? 0 : L::col(t, j);
      Run<T, kWidth> e;
#pragma unroll
      for (int u = 0; u < kWidth; ++u) e.x[u] = element_of<T>(v.at(i, j + u));
      if (box.has_row(r) && box.has_cols(c, kWidth)) {
        store_run<kApart>(row + c * box.col_stride, e);
      } else if (kWidth > 1 && !kWholeRuns && box.has_row(r)) {
#pragma unroll
        for (int u = 0; u < kWidth; ++u) {
          if (box.has_cols(c + u, 1)) row[(c + u) * box.col_stride] = e.x[u];
        }
      }
    }
  }
}

// Rows chosen by `index` (i32 [r,1]), counted from the one that `box.data` points at; `box.rows` is
// how many there are; a negative index reads as zero and is not written. kRun as in load_box.
template <class L, int kRun, class V, class I, class T>
STRETTO_DEVICE void load_rows(V& v, const I& index, const Box<const T>& box, const Team& t) {
  constexpr int kUnit = Paired<V> ? 2 : 1;
  constexpr int kStep = V::kC == 1 ? 1 : (kRun > kUnit ? kRun : kUnit);
  constexpr int kWidth = V::kC == 1 ? 1 : kRun;
  // A row that is the only one is every thread's.
  auto chosen = [&](int i) {
    return L::kTileRows == 1 || L::row(t, i) < L::kTileRows ? slot(index, i, 0) : -1;
  };
  // Of whole rows all loads are in flight at once, with no branch in between.
  if constexpr (kWidth == kStep) {
    if (L::kNoPadding && box.first_col == 0 && box.cols >= L::kTileCols) {
      return load_runs<L, kStep>(v, box, t, chosen, [&](i32 r, i32) { return box.has_row(r); });
    }
  }
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
#pragma unroll
    for (int j = 0; j < V::kC; j += kStep) {
      auto e = load_guarded<kWidth, kStep>(box, chosen(i), L::kTileCols == 1 ? 0 : L::col(t, j));
#pragma unroll
      for (int k = 0; k < kStep; k += kUnit) put_raw(v, i, j + k, e.x + k);
    }
  }
}
template <class L, class V, class I, class T>
STRETTO_DEVICE void store_rows(const V& v, const I& index, const Box<T>& box, const Team& t) {
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = slot(index, i, 0);
    if (!box.has_row(r) || L::row(t, i) >= L::kTileRows) continue;
#pragma unroll
    for (int j = 0; j < V::kC; ++j) {
      i32 c = L::col(t, j);
      if (box.has_cols(c, 1)) {
        box.data[r * box.row_stride + c * box.col_stride] = element_of<T>(v.at(i, j));
      }
    }
  }
}
