// The accesses of one operation: which boxes of which rank's tensors it reads and writes, masks
// applied. Part of the expansion (expand.h).
#pragma once

#include "stretto/proof/expand_state.h"

namespace stretto {

class AccessExpander {
 public:
  explicit AccessExpander(ExpandState& state) : state_(state) {}

  // kLoad, kStore, kReduceStore; kPipePut reads.
  void access(const Op& op, AccessKind kind);
  // kLoadRows, kStoreRows: any row of the tensor.
  void scattered(const Op& op);
  void copy(const Op& op);
  // kStorePacket, kLoadPacket.
  void packet(const Op& op);
  // The tables that an index expression reads.
  void table_reads(const Op& op, const Expr& expr);

 private:
  struct Target {
    LooseBox box;
    int rank = 0;
    bool exact = true;  // false: `box` is a union over a table's values
  };

  Box tensor_box(int tensor) const;
  Target resolve(const Region& region);
  void limit(Target& target, int dim, const Expr& end);
  void check_target(const Op& op, int tensor_idx, const Target& target, AccessKind kind) const;
  void widen_to_packets(const Op& op, LooseBox& box) const;
  void add(const Op& op, int which, int tensor, const Target& target, AccessKind kind,
           bool packet = false);

  ExpandState& state_;
};

}  // namespace stretto
