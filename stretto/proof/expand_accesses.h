// The accesses of one operation: which boxes of which rank's tensors it reads and writes, masks
// applied. Part of the expansion (expand.h).
#pragma once

#include <array>
#include <functional>

#include "stretto/proof/expand_state.h"

namespace stretto {

class AccessExpander {
 public:
  explicit AccessExpander(ExpandState& state) : state_(state) {}

  // kLoad, kStore, kReduceStore; kPipePut reads.
  void access(const Op& op, AccessKind kind);
  // What a kLoad or kPipePut reads in the iterations of a loop that goes upwards, from `first` on,
  // however many, as one box. `meets`: an iteration that there is at the sample, if there is any;
  // at_iteration(i) sets the loop's variable.
  void read_from(const Op& op, std::int64_t first, std::optional<std::int64_t> meets,
                 const std::function<void(std::int64_t)>& at_iteration);
  // A kStore of a loop over the rows of a part: all of them that the loop's iterations store, the
  // first of which begins at row `first` of the part (part_turns.h). `fact`: of the loop, without
  // which they do so. `meets`: a part may have that row at the sample.
  struct PartOfRows {
    std::int64_t part = 0, first = 0;
    int fact = -1;
    bool meets = true;
  };
  void rows_of_part(const Op& op, const PartOfRows& of);
  // kLoadRows, kStoreRows: any row of the tensor.
  void scattered(const Op& op);
  // kCopy, in two halves.
  void copy_from(const Op& op);
  void copy_to(const Op& op);
  // kStorePacket, kLoadPacket.
  void packet(const Op& op);
  // The tables that an index expression reads.
  void table_reads(const Op& op, const Expr& expr);

 private:
  struct Target {
    LooseBox box;
    int rank = 0, last_rank = 0;
    bool exact = true;               // false: `box` is a union over a table's values
    std::optional<TablePoint> part;  // `box` lies in this part of the rows, from `offset` on
    int without = -1;                // a fact that it does not go by
    // Where a region of sizes is looked for: of the box's origin, and where it is cut off.
    std::array<SizeForm, kMaxTensorDims> origin, end;
    std::array<std::vector<SizeForm>, kMaxTensorDims> ends;  // instead, where masks are left open
  };

  void selected_reads(const Op& op, const ExprNode& select);
  bool exists_at_all_sizes(const ExprNode& entry, std::size_t dim, std::int64_t index) const;
  void check_entry(const Op& op, const ExprNode& entry, std::size_t dim, const ValueRange& index);
  Target resolve(const Region& region);
  Target resolve_with_forms(const Region& region);
  // Of a tensor's dimension, of which that and a limit are the end.
  void cut_off(const Region& region, int dim, const Expr& end, Target& target);
  // What a copy leaves out at the source, since the destination is cut off there.
  void note_masked(const Region& from, const Target& source, int from_dim, const Target& to,
                   int to_dim);
  void note_box(int tensor, const Target& to);
  void mask_open(Target& from, int from_dim, const Target& to, int to_dim);
  bool masks_open() const { return state_.region != nullptr && state_.region->masks_open(); }
  // Brings a box to the coordinates of a tensor whose rows a table deals out.
  void to_cells(const Region& region, bool rows_exact, Target& target);
  std::optional<TablePoint> part_of(const Region& region, const TableCells& cells);
  void span_all_parts(int tensor, LooseBox& box) const;
  void span_all_parts(int tensor, Target& target) const;
  std::vector<Region> rows_apart(const Region& region);
  void packet(const Op& op, const Region& region);
  void refuse_packets(const Op& op) const;
  void check_target(const Op& op, int tensor_idx, const Target& target, AccessKind kind) const;
  void widen_to_packets(const Op& op, LooseBox& box) const;
  int choice_of(int tensor, const Target& target) const;
  void add(const Op& op, int which, int tensor, const Target& target, AccessKind kind,
           bool packet = false, bool reaches = true);

  ExpandState& state_;
};

}  // namespace stretto
