// Pauses before waits and notifies, for kernels under test: threads, blocks and ranks that come in
// nearly the same order at every launch then come in many.
#pragma once

#include "stretto/device/ptx/cycles.h"
#include "stretto/device/ptx/types.h"

struct Delays {
  u64 seed;
  u32 most_cycles;  // of one pause on a rank that is not late
};

// One draw of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
// generators").
STRETTO_DEVICE u64 mixed_bits(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// One pause in four is made. `place` numbers the waits and notifies of the kernel's text, `what` is
// the channel. Each launch draws how late a rank is: its pauses are up to 16 times as long.
STRETTO_DEVICE void pause_at_random(const Delays& d, int rank, u64 epoch, int place, i64 what) {
  u64 of_launch = mixed_bits(mixed_bits(d.seed + epoch) + u64(rank));
  u64 thread = u64(blockIdx.x) * 1024 + threadIdx.x;
  u64 bits = mixed_bits(mixed_bits(of_launch + thread) + u64(place) * 65536 + u64(what));
  if (bits % 4 != 0) return;
  u64 most = u64(d.most_cycles) << (of_launch % 5);
  u64 cycles = (bits >> 8) % (most + 1), begin = cycle_counter();
  while (cycle_counter() - begin < cycles) {
  }
}
