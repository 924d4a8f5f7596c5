// Where a step's locals and outputs lie. Locals that are not needed at the same time share memory;
// what other ranks address has memory of its own, since they may still read it when this rank has
// gone on. Of one rank alone symmetric buffers are like others. Comes after check.h; runner.h
// allocates so, predict.h counts so.
//
// A write to a buffer that has been read since it was written before begins its content anew: what
// is read later was written since. (A launch writes every element of its outputs.)
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stretto/step/plan.h"

namespace stretto::step {

// Nodes [first, last] during which a buffer's content matters.
struct Life {
  int buffer = 0;
  std::size_t first = 0, last = 0;
};
// The lives of locals and outputs that nodes touch, by buffer and then in order. An output's last
// one lasts to the plan's end; a first one that reads what is there lasts from its beginning.
std::vector<Life> lives(const Plan& plan);

inline constexpr std::size_t kPlaceAlignment = 256;

struct Place {
  int buffer = 0;
  std::size_t offset = 0, bytes = 0;  // in the arena, multiples of kPlaceAlignment
};

struct Memory {
  std::vector<Place> places;        // for locals and outputs that no other rank addresses
  std::size_t arena_bytes = 0;      // theirs together
  std::size_t unshared_bytes = 0;   // that they would take without sharing
  std::size_t symmetric_bytes = 0;  // other symmetric buffers'
  std::size_t input_bytes = 0;      // inputs', which the caller writes at any time

  std::size_t total() const { return arena_bytes + symmetric_bytes + input_bytes; }
};
enum class Sharing : std::uint8_t { kByLife, kNone };
// A buffer has one place in all its lives, so that launches are prepared once.
Memory assign(const Plan& plan, Sharing sharing = Sharing::kByLife);

// Bytes of the arena, multiples of kPlaceAlignment.
struct Range {
  std::size_t offset = 0, bytes = 0;
};
// By node: what nothing needs any more, or yet, when it runs for the first time. A test fills that
// with kPoisonByte, of which a NaN of any float is made.
std::vector<std::vector<Range>> unneeded(const Plan& plan, const Memory& memory);
inline constexpr int kPoisonByte = 0xFF;

}  // namespace stretto::step
