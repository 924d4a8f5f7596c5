// Writes accesses and synchronisation into the agent being expanded. Accesses inside a loop without
// synchronisation are held back and merged into boxes; the caller says where such loops begin and
// end. Used by expand.cc and its parts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "stretto/ir/walk_budget.h"
#include "stretto/proof/instance_graph.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/size_masks.h"
#include "stretto/proof/size_region.h"

namespace stretto {

// How sizes make the places of a box (size_region.h).
struct LooseForms {
  std::array<SizeForm, kMaxTensorDims> origin;
  // Of limits, where masks are left open.
  std::array<std::vector<SizeForm>, kMaxTensorDims> ends;
  std::vector<SizeForm> there;  // all positive where the access is made
};

// An access before clipping. `which` tells the accesses of one operation apart. `forms`: where a
// region of sizes is looked for; the ends of the box's limits have been noted.
struct LooseAccess {
  Access access;
  int which = 0;
  LooseBox box;
  std::shared_ptr<const LooseForms> forms = nullptr;
  bool reaches = true;  // says by itself whether it meets its tensor
};

class TraceRecorder {
 public:
  // Keeps references to all.
  TraceRecorder(InstanceGraph& graph, WalkBudget& budget, SizeRegion* region)
      : graph_(graph), budget_(budget), region_(region) {
    if (region != nullptr && region->masks_open()) {
      masks_ = graph.masks = std::make_shared<SizeMasks>(*region);
      leave_out_inputs();
    }
  }

  // Reads of a rank's own inputs, of which nothing is asked but whether they meet them.
  void leave_out_inputs() { no_inputs_ = true; }
  bool leaves_out_inputs() const { return no_inputs_; }

  void start_agent(const AgentTrace& agent);
  const AgentTrace& agent() const { return graph_.agents.back(); }

  void add_sync(const Sync& sync);
  // What the agent's last event stores or loads as packets.
  void link_last_sync(std::size_t access) {
    graph_.agents.back().syncs.back().access = static_cast<int>(access);
  }
  void add(const LooseAccess& access);
  // Whether the box meets its tensor (reach.h). add() does so, too.
  void note_reach(const LooseAccess& access);

  // A loop without synchronisation; loops nest, the outermost decides. `ordered`: accesses keep
  // their turn instead of being merged.
  void begin_fold(bool ordered);
  void end_fold();

  // While `into` is set, accesses go there and nowhere else.
  void divert(std::vector<LooseAccess>* into) { diverted_ = into; }
  bool diverts() const { return diverted_ != nullptr; }
  // The accesses of an affine loop, given those of its first two iterations.
  void add_affine(const std::vector<LooseAccess>& first, const std::vector<LooseAccess>& second,
                  std::int64_t trips);

 private:
  struct BoxHash {
    std::size_t operator()(const Box& b) const;
  };
  struct Pending {
    Access access;
    int which;
    Box box;
    Mask mask;
  };

  // The ends of a box of this size, from where on as many elements are between it and the access's
  // at all sizes.
  void note_ends(const LooseAccess& access, const std::array<std::int64_t, kMaxTensorDims>& from,
                 const std::array<std::int64_t, kMaxTensorDims>& size);
  // That both move alike with the sizes.
  void keep_steps(const LooseAccess& first, const LooseAccess& second);
  // Whether one box may stand for both: whole tiles, then the other.
  bool joins(const Access& access, const Box& a, const Box& b);
  void place(const Access& access, int which, const Box& box);
  void append(Access access, const Box& box);
  void append(Access access, int box);
  // Where masks are left open: `box` has no limits but those of the forms.
  void place_open(Access access, int which, const LooseBox& box, const LooseForms& forms);
  bool join_open(Pending& known, const Access& access, const Mask& mask);
  bool in_one_case(const Access& a, const Access& b) const;

  InstanceGraph& graph_;
  WalkBudget& budget_;
  SizeRegion* region_;
  std::shared_ptr<SizeMasks> masks_;  // where they are left open
  std::unordered_map<Box, int, BoxHash> box_ids_;
  bool is_left_out(const Access& access) const {
    return no_inputs_ &&
           nobody_writes(graph_.program->tensors[static_cast<std::size_t>(access.tensor)]);
  }

  bool no_inputs_ = false;
  int fold_depth_ = 0;
  bool ordered_ = false;
  std::vector<Pending> pending_;
  std::vector<LooseAccess>* diverted_ = nullptr;
};

}  // namespace stretto
