// Tables that decide indices: their contracts are checked when a launch begins, by each block in
// part, while others may be at work already. So entries are also brought into range where they are
// read: what is wrong with a table may spoil results, which the fault says, but reaches no other
// memory.
#pragma once

#include "stretto/device/sm90/signal.h"

STRETTO_DEVICE i64 into_range(i64 value, i64 lo, i64 hi) {
  return value < lo ? lo : value >= hi && hi > lo ? hi - 1 : value;
}
template <typename T>
STRETTO_DEVICE i64 table_entry(const u8* table, i64 entry, i64 lo, i64 hi) {
  return into_range(reinterpret_cast<const volatile T*>(table)[entry], lo, hi);
}
// Of a table that the launch does not write: through the cache of the SM, whose threads ask for the
// same entries, or neighbours, tile after tile, and can do nothing until they have them.
STRETTO_DEVICE i64 input_entry(const u8* table, i64 entry, i64 lo, i64 hi) {
  return into_range(computed_here(reinterpret_cast<const i32*>(table)[entry]), lo, hi);
}

// The same of a table that this launch has made: what is wrong with an entry is seen where it is
// read, after the wait that orders it behind its store. Where that wait was aborted nothing is
// known.
template <typename T>
STRETTO_DEVICE i64 made_entry(const u8* table, i64 entry, i64 lo, i64 hi, const Watch& w,
                              int site) {
  i64 value = reinterpret_cast<const volatile T*>(table)[entry];
  if (value >= lo && value < hi) return value;
  if (load_relaxed_sys(w.abort) == 0) report_fault(w, site, entry, 0, u64(value));
  return lo;
}

constexpr int kNotRead = -2147483647 - 1;  // of an entry that an agent keeps: not yet

// What is promised of a table: `count` entries in rows of `row` that lie `stride` apart, each
// lo <= entry < hi; `ends`: the first is lo and the last hi - 1; `distinct`: none twice; `apart`:
// none from 0 on twice, all in one row.
struct TableContract {
  i64 count, row, stride, lo, hi;
  bool ascends, ends, distinct, apart;
};

// Whether an entry is equal to one before it: by all threads of all blocks, so many of those before
// at a time.
template <typename T>
STRETTO_DEVICE void check_apart(const T* values, const TableContract& c, u32 part, const Watch& w,
                                int site) {
  constexpr i64 kRun = 32;
  const i64 runs = (c.count + kRun - 1) / kRun;
  i64 wrong = -1;
#pragma unroll 1
  for (i64 i = computed_here(int(part * blockDim.x + threadIdx.x)); i < c.count * runs;
       i += gridDim.x * blockDim.x) {
    const i64 entry = i % c.count, first = i / c.count * kRun;
    const i64 end = entry < first + kRun ? entry : first + kRun;
    const T value = values[entry];
    if (value < 0) continue;
    for (i64 j = first; j < end; ++j) wrong = values[j] == value ? entry : wrong;
  }
  if (wrong >= 0) report_fault(w, site, wrong, 0, u64(i64(values[wrong])));
}

// By all threads of all blocks. Tables begin with one block after the other, so that short ones,
// each of which is an answer of memory to wait for, are not all the same block's. `seen`: shared
// memory, a bit per value where entries are distinct, which is for one block to tell.
template <typename T>
STRETTO_DEVICE void check_table(const u8* table, const TableContract& c, u32* seen, const Watch& w,
                                int site) {
  const volatile T* values = reinterpret_cast<const volatile T*>(table);
  auto entry_of = [&](i64 i) { return i / c.row * c.stride + i % c.row; };
  const u32 part = (blockIdx.x + u32(site)) % gridDim.x, parts = c.distinct ? 1 : gridDim.x;
  if (part >= parts) return;
  if (c.distinct) {
    for (i64 i = threadIdx.x; i < (c.hi - c.lo + 31) / 32; i += blockDim.x) seen[i] = 0;
    __syncthreads();
  }
  i64 wrong = -1, found = 0;
#pragma unroll 1
  for (i64 i = computed_here(int(part * blockDim.x + threadIdx.x)); i < c.count;
       i += parts * blockDim.x) {
    i64 value = values[entry_of(i)];
    bool broken = value < c.lo || value >= c.hi;
    if (c.ascends && i > 0) broken |= values[entry_of(i - 1)] > value;
    if (c.ends) broken |= (i == 0 && value != c.lo) || (i == c.count - 1 && value != c.hi - 1);
    if (c.distinct && !broken) {
      u32 bit = 1u << u32((value - c.lo) % 32);
      broken = (atomicOr(seen + (value - c.lo) / 32, bit) & bit) != 0;
    }
    wrong = broken ? i : wrong;
    found = broken ? value : found;
  }
  if (wrong >= 0) report_fault(w, site, entry_of(wrong), 0, u64(found));
  if (c.apart) check_apart(reinterpret_cast<const T*>(table), c, part, w, site);
  if (!c.distinct) return;
  fence_proxy_async_shared();  // TMA may fill that memory next
  __syncthreads();
}
