// Waits of a consumer that a slot tells of: the thread that issues for its producer makes the same
// wait before it arrives at a slot that the consumer gets next, so that whoever has got the slot
// comes after what is waited for. To poll the word once more would take a round trip to memory at
// the beginning of every tile, while nothing is multiplied.
#pragma once

#include <map>
#include <set>

#include "stretto/codegen/agent_text.h"

namespace stretto {

class ElidedWaits {
 public:
  // None where the agent is no consumer, its warpgroups are apart, or waits are recorded or belled.
  explicit ElidedWaits(const AgentSite& site);

  // Whether the operation is such a wait, or control around nothing else.
  bool holds(const Op& op) const { return waits_.contains(&op); }
  // Whether with it, which follows such waits, slots are got: what comes after it comes after them.
  bool are_elided_by(const Op& op) const { return tellers_.contains(&op); }

 private:
  bool pair(const Block& gets, const Block& puts, int pipe);
  void find(const Block& gets, int pipe);
  bool made_before(const Op& wait, const Block& gets, const Op& teller, int pipe) const;

  std::map<const Block*, const Block*> pairs_;  // the consumer's blocks and the producer's
  std::set<const Op*> waits_, tellers_;
};

}  // namespace stretto
