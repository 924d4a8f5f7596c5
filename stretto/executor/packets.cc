#include "stretto/executor/packets.h"

#include <fmt/format.h>

#include <atomic>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/packet.h"

namespace stretto {
namespace {

constexpr std::int64_t kPayloadBytes = 4;

std::uint64_t* words_of(const ClippedTile& t) {
  return reinterpret_cast<std::uint64_t*>(t.tensor->at[static_cast<std::size_t>(t.rank)]);
}

bool arrived(std::uint64_t* word, std::uint32_t tag) {
  return std::atomic_ref(*word).load(std::memory_order_relaxed) >> 32 == tag;
}

// Consecutive packets: all rows of the region where they follow one another, else one row.
struct PacketRun {
  std::int64_t first_word, first_row, rows;
  std::size_t bytes;  // of payload
};

template <typename Visit>
void for_runs(const PacketTile& p, Visit&& visit) {
  const ClippedTile& t = p.tile;
  const TensorMem& mem = *t.tensor;
  bool contiguous = t.num_rows() == 1 || t.row_stride == t.num_cols();
  std::int64_t rows = contiguous ? t.num_rows() : 1;
  std::int64_t bytes = t.num_cols() * rows * mem.elem_bytes;
  // A packet has one writer: a run may end inside a packet only where its row ends.
  bool ends_row = t.origin[t.col_dim] + t.num_cols() == mem.shape[t.col_dim];
  for (std::int64_t r = 0; r < t.num_rows(); r += rows) {
    std::int64_t begin = (t.element + r * t.row_stride) * mem.elem_bytes;
    bool whole = begin % kPayloadBytes == 0 && (bytes % kPayloadBytes == 0 || ends_row);
    if ((t.col_stride != 1 && t.num_cols() > 1) || !whole) {
      throw UserError(fmt::format(
          "{}:{}: tensor '{}': a packet holds 4 bytes, rows must be contiguous and start at one",
          p.inst.op->loc.file, p.inst.op->loc.line, p.tensor));
    }
    visit(PacketRun{begin / kPayloadBytes, r, rows, static_cast<std::size_t>(bytes)});
  }
}

TileRef packed(const PacketRun& run, const ClippedTile& t, std::vector<std::byte>& bytes) {
  return {t.tensor->dtype, run.rows, t.num_cols(), bytes.data(), t.num_cols(), 1};
}

TileRef part_of(const TileRef& value, const PacketRun& run, const ClippedTile& t) {
  return sub_tile(value, t.r0 + run.first_row, t.c0, run.rows, t.num_cols());
}

}  // namespace

void Packets::store(const PacketTile& to, const TileRef* value, std::uint32_t tag) {
  const ClippedTile& t = to.tile;
  for_runs(to, [&](const PacketRun& run) {
    bytes_.assign(run.bytes, std::byte{0});
    if (value != nullptr) copy_tile(packed(run, t, bytes_), part_of(*value, run, t));
    kernels::store_packets(words_of(t) + run.first_word, bytes_, tag);
  });
}

std::uint64_t* Packets::load(const PacketTile& from, const TileRef* value, std::uint32_t tag) {
  const ClippedTile& t = from.tile;
  std::uint64_t* missing = nullptr;
  for_runs(from, [&](const PacketRun& run) {
    if (missing != nullptr) return;
    bytes_.resize(run.bytes);
    std::uint64_t* first = words_of(t) + run.first_word;
    if (!kernels::try_load_packets(first, bytes_, tag)) {
      missing = first;
      while (missing + 1 < first + kernels::num_packets(run.bytes) && arrived(missing, tag)) {
        ++missing;
      }
      return;
    }
    if (value != nullptr) copy_tile(part_of(*value, run, t), packed(run, t, bytes_));
  });
  return missing;
}

}  // namespace stretto
