// Packets: 4 payload bytes and the launch's tag travel in one 8-byte store, so data needs no signal
// of its own. The reader looks at the tag of every packet it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/executor/code.h"
#include "stretto/executor/register_tile.h"
#include "stretto/executor/tensor_mem.h"

namespace stretto {

// A tile whose packets an operation stores or loads. UserError, naming both, for a tile that does
// not take whole packets.
struct PacketTile {
  const ClippedTile& tile;
  const Inst& inst;
  const std::string& tensor;
};

class Packets {
 public:
  // Tag 0 is memory that was never written.
  static std::uint32_t tag_of(std::uint64_t epoch) { return static_cast<std::uint32_t>(epoch + 1); }

  // Of `value`, the whole tile's; null: zeros, where nothing is computed.
  void store(const PacketTile& to, const TileRef* value, std::uint32_t tag);
  // Null where all have come, and then `value` has them, unless it is null; else the first that has
  // not.
  std::uint64_t* load(const PacketTile& from, const TileRef* value, std::uint32_t tag);

 private:
  std::vector<std::byte> bytes_;  // scratch of one run
};

}  // namespace stretto
