// Tile programs that use one part of a machine each: what calibration measures. All of them run on
// every rank of the world alike, in bfloat16.
#pragma once

#include <cstdint>

#include "stretto/ir/program.h"

namespace stretto {

enum class Route : std::uint8_t {
  kLocal,  // own memory to own memory
  kPull,   // the next rank's memory to the own
  kPush,   // the own memory to the next rank's
};

// `rows` rows of kMoveCols elements, by `sms` SMs of every rank.
inline constexpr std::int64_t kMoveCols = 8192;
Program move_rows(int world_size, Route route, std::int64_t rows, int sms);

// `hops` signals one after the other, there and back: between two ranks, or, in a world of one,
// between two SMs. hops is even.
Program ping_pong(int world_size, std::int64_t hops);

// Nearly nothing: 16 bytes on one SM.
Program smallest(int world_size);

}  // namespace stretto
