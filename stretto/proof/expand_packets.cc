// Packet stores and loads: what one touches are whole packets, and it synchronises by their tags.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/proof/expand_accesses.h"

namespace stretto {
// A store releases its packets after writing; a load reads after the tags have come.
void AccessExpander::packet(const Op& op) {
  bool stores = op.code == OpCode::kStorePacket;
  int tensor = op.region->tensor;
  if (!state_.program.tensors[at(tensor)].packet) state_.reject(op, "needs a packet buffer");
  if (state_.may_depth > 0) throw DependsOnTable{"whether a packet is stored or loaded"};
  Target target = resolve(*op.region);
  if (!target.exact) throw DependsOnTable{"where a packet lies"};
  auto last = state_.program.tensors[at(tensor)].shape.size() - 1;
  if (masks_open()) {
    state_.region->pin(target.origin[last]);
    for (const SizeForm& end : target.ends[last]) state_.region->pin(end);
  } else if (state_.region != nullptr) {  // places are rounded to whole packets
    for (const auto* forms : {&target.origin, &target.end}) {
      for (const SizeForm& form : *forms) state_.region->pin(form);
    }
    target.origin.fill({});
  }
  widen_to_packets(op, target.box);
  if (masks_open()) {
    const LooseBox& box = target.box;
    target.origin[last] = {};
    std::int64_t end = std::min(box.origin[last] + box.size[last], box.limit.hi[last]);
    target.ends[last] = {{.value = end}};
  }
  Sync sync{.kind = stores ? SyncKind::kPacketStore : SyncKind::kPacketLoad,
            .tile = state_.tile,
            .op = &op};
  std::size_t known = state_.recorder.agent().accesses.size();
  if (stores) add(op, 0, tensor, target, AccessKind::kWrite, true);
  state_.recorder.add_sync(sync);
  if (!stores) add(op, 0, tensor, target, AccessKind::kRead, true);
  if (state_.recorder.agent().accesses.size() > known) state_.recorder.link_last_sync(known);
}

// Four payload bytes share a tag, so elements of one packet cannot be told apart.
void AccessExpander::widen_to_packets(const Op& op, LooseBox& box) const {
  const Tensor& tensor = state_.program.tensors[at(op.region->tensor)];
  auto per_packet =
      static_cast<std::int64_t>(4 / std::min<std::size_t>(4, size_bytes(tensor.dtype)));
  if (per_packet == 1) return;
  auto last = tensor.shape.size() - 1;
  if (bound_shape(state_.program, op.region->tensor)[last] % per_packet != 0) {
    state_.reject(op, fmt::format("rows of packet buffer '{}' must be whole packets of {} elements",
                                  tensor.name, per_packet));
  }
  std::int64_t lo = std::max(box.origin[last], box.limit.lo[last]);
  std::int64_t hi = std::min(box.origin[last] + box.size[last], box.limit.hi[last]);
  if (hi <= lo) return;
  lo = lo / per_packet * per_packet;
  box.limit.hi[last] = ceil_div(hi, per_packet) * per_packet;
  box.size[last] = box.limit.hi[last] - lo;
  box.origin[last] = lo;
}

}  // namespace stretto
