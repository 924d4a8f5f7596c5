// What passes slots of pipes in the same way in every tile, on every rank, at every size:
// conditions and loops around it go by constants and by loops around them. Used by roles that are
// alone with their tiles (local_roles.h) and by parts of a tile (steady_runs.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"
#include "stretto/proof/open_loops.h"

namespace stretto {

// What whoever asks says of an operation, within loops over `known`; nothing: what goes for all.
using SteadyRule = std::function<std::optional<bool>(const Op& op, const std::set<int>& known)>;
// Whether what it does with slots and products is the same at every size, but for how often such
// loops run: `known` are variables of loops around it, which are.
bool is_steady(const Op& op, const std::set<int>& known, const SteadyRule& rule);
bool is_steady(const Block& block, const std::set<int>& known, const SteadyRule& rule);

// Slots are put by a pipe's producer alone, and got and released by its consumer.
bool keeps_sides(const Block& block, int agent, const Role& role);

// Passes such slots, as an agent of the worker that `syncs` is at.
class SlotWalk {
 public:
  // `parties`: so many agents meet in place of a loop that sizes end, of those that `loops` knows.
  SlotWalk(ExpandState& state, SyncExpander& syncs, OpenLoops* loops, std::int64_t parties)
      : state_(state), syncs_(syncs), loops_(loops), parties_(parties) {}

  void block(const Block& ops);
  void walk(const Op& op);

 private:
  // Of registers, whichever way it goes.
  void either(const Op& when);

  ExpandState& state_;
  SyncExpander& syncs_;
  OpenLoops* loops_;
  std::int64_t parties_, meetings_ = 0;
};

}  // namespace stretto
