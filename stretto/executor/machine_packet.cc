// Packets: 4 payload bytes and the launch's tag travel in one 8-byte store, so data needs no signal
// of its own. The reader looks at the tag of every packet it needs.
#include <fmt/format.h>

#include <atomic>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/packet.h"
#include "stretto/executor/machine.h"
#include "stretto/executor/register_tile.h"

namespace stretto {
namespace {

constexpr std::int64_t kPayloadBytes = 4;

std::uint64_t* packet_words(const ClippedTile& t) {
  return reinterpret_cast<std::uint64_t*>(t.tensor->at[static_cast<std::size_t>(t.rank)]);
}

}  // namespace

// Tag 0 is memory that was never written.
std::uint32_t RankMachine::packet_tag() const { return static_cast<std::uint32_t>(epoch_ + 1); }

bool RankMachine::arrived(std::uint64_t* word) const {
  return std::atomic_ref(*word).load(std::memory_order_relaxed) >> 32 == packet_tag();
}

// Consecutive packets: all rows of the region where they follow one another, else one row.
struct RankMachine::PacketRun {
  std::int64_t first_word, first_row, rows;
  std::size_t bytes;  // of payload
};

template <typename Visit>
void RankMachine::for_packet_runs(const Inst& inst, const ClippedTile& t, Visit&& visit) const {
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
          inst.op->loc.file, inst.op->loc.line,
          program().tensors[static_cast<std::size_t>(t.tensor_idx)].name));
    }
    visit(PacketRun{begin / kPayloadBytes, r, rows, static_cast<std::size_t>(bytes)});
  }
}

void RankMachine::store_packet(AgentState& a, const Inst& inst) {
  ClippedTile t = clip(a, inst, inst.region);
  if (t.empty()) return;
  if (observer != nullptr) observer->on_packet(a, inst, true, box_of(t));
  std::uint64_t* words = packet_words(t);
  TileRef value = tile_of(a.regs[static_cast<std::size_t>(inst.operands[0])]);
  for_packet_runs(inst, t, [&](const PacketRun& run) {
    packet_bytes_.assign(run.bytes, std::byte{0});
    if (compute) {
      copy_tile({t.tensor->dtype, run.rows, t.num_cols(), packet_bytes_.data(), t.num_cols(), 1},
                sub_tile(value, t.r0 + run.first_row, t.c0, run.rows, t.num_cols()));
    }
    kernels::store_packets(words + run.first_word, packet_bytes_, packet_tag());
  });
  wake(t.rank);
}

bool RankMachine::load_packet(AgentState& a, const Inst& inst) {
  if (a.park == Park::kNone && sync_hook != nullptr) call_hook(a, true);
  ClippedTile t = clip(a, inst, inst.region);
  Register& reg = writable(result(a, inst));
  if (compute && (t.num_rows() < t.rows || t.num_cols() < t.cols)) zero_tile(tile_of(reg));
  if (t.empty()) return true;
  std::uint64_t* words = packet_words(t);
  std::uint64_t* missing = nullptr;
  for_packet_runs(inst, t, [&](const PacketRun& run) {
    if (missing != nullptr) return;
    packet_bytes_.resize(run.bytes);
    std::uint64_t* first = words + run.first_word;
    if (!kernels::try_load_packets(first, packet_bytes_, packet_tag())) {
      missing = first;
      while (missing + 1 < first + kernels::num_packets(run.bytes) && arrived(missing)) ++missing;
      return;
    }
    if (!compute) return;
    copy_tile(sub_tile(tile_of(reg), t.r0 + run.first_row, t.c0, run.rows, t.num_cols()),
              {t.tensor->dtype, run.rows, t.num_cols(), packet_bytes_.data(), t.num_cols(), 1});
  });
  if (missing != nullptr) {
    a.word = reinterpret_cast<std::atomic<std::uint64_t>*>(missing);
    a.wanted = packet_tag();
    return park(a, Park::kPacket);
  }
  a.park = Park::kNone;
  if (observer != nullptr) observer->on_packet(a, inst, false, box_of(t));
  return true;
}

}  // namespace stretto
