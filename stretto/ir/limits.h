// Bounds on what one program may hold. The parser refuses hostile text with them before recursion
// or memory becomes a problem; the verifier holds programs built in C++ to the same, so that
// whatever verifies can be printed and parsed again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto {

inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
inline constexpr int kMaxNesting = 64;  // loops and whens within one agent
inline constexpr int kMaxExprDepth = 400;
inline constexpr int kMaxExprNodes = 20'000;  // counted as a tree, shared parts every time
inline constexpr int kMaxWorldSize = 64;
inline constexpr int kMaxTensorDims = 5;
inline constexpr int kMaxConsumers = 4;
inline constexpr int kMaxStages = 64;  // slots of a pipe that a role asks for
inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 46;
inline constexpr std::int64_t kMaxTiles = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxChannels = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxCounters = std::int64_t{1} << 22;  // all ranks and signals
inline constexpr std::int64_t kMaxTileElements = std::int64_t{1} << 24;

}  // namespace stretto
