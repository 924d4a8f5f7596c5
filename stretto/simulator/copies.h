// What a tensor map holds on the simulated GPU, and what the copies of blocks tell their barriers.
#pragma once

#include <cstdint>

namespace stretto::simulator {

struct Block;

// In place of the hardware's 128 opaque bytes. Dimensions are innermost first.
struct TensorMap {
  static constexpr std::uint16_t kMark = 0x7a9d;
  unsigned char* data;
  std::int64_t strides[4];        // bytes, from the second dimension on
  std::uint32_t shape_less_1[5];  // extents may be 2^32
  std::uint16_t box[5];
  std::uint16_t mark;
  std::uint8_t rank, element_bytes;
  std::uint16_t swizzle_bytes;  // 0: none

  std::int64_t shape(int d) const { return std::int64_t{shape_less_1[d]} + 1; }
};
static_assert(sizeof(TensorMap) <= 128);

void complete_transactions(Block& block, std::uint32_t bar, std::uint32_t bytes);
void arrive_at(Block& block, std::uint32_t bar);

}  // namespace stretto::simulator
