// Where an agent stands in a ring of kSlots slots that it passes through for ever: the slot, and
// the parity of the round that its barriers complete.
#pragma once

#include "stretto/device/ptx/types.h"

template <u32 kSlots, bool kCounts = (kSlots & (kSlots - 1)) == 0>
struct Ring {
  u32 at = 0, odd = 0;
  STRETTO_DEVICE u32 slot() const { return at; }
  STRETTO_DEVICE u32 round() const { return odd; }
  STRETTO_DEVICE void next() {
    if (++at == kSlots) at = 0, odd ^= 1;
  }
  // Both as one word, for another agent that goes on from here.
  STRETTO_DEVICE u32 place() const { return at * 2 + odd; }
  STRETTO_DEVICE static Ring from(u32 place) { return {place / 2, place % 2}; }
};
// A power of two: one counter says both.
template <u32 kSlots>
struct Ring<kSlots, true> {
  u32 count = 0;
  STRETTO_DEVICE u32 slot() const { return count % kSlots; }
  STRETTO_DEVICE u32 round() const { return count / kSlots % 2; }
  STRETTO_DEVICE void next() { ++count; }
  STRETTO_DEVICE u32 place() const { return count; }
  STRETTO_DEVICE static Ring from(u32 place) { return {place}; }
};
