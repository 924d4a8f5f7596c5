// Rings of slots in which a consumer is always at the same slot when it comes to the same place of
// its program: every loop and branch takes whole rounds of them, or does once its body is written
// out a few times. Slots are constants there, so that between one matrix instruction and the next
// no address is computed: at 8192^3 with e4m3 factors 26 instructions a step of 128 instead of 74.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "stretto/codegen/role_plan.h"

namespace stretto {

// Whether products of the tensor core are in it.
bool multiplies(const Block& block);

// Whether `op`, of the loop's body, releases what the iteration before has got: from the second
// iteration on.
bool releases_previous(const Op& op, const Op& loop);

class FixedRings {
 public:
  // Of the agent's groups of pipes. None where it is no consumer that multiplies.
  FixedRings(const RolePlan& plan, const Role& role, int agent);

  bool holds(int group) const { return rings_[static_cast<std::size_t>(group)].fixed; }
  // How many times the loop's body stands one after the other; divides its iterations.
  int copies(const Op& loop) const;

  // The slots that the group's next get and release mean where the text has come to.
  int next(int group) const { return now_[static_cast<std::size_t>(group)].got; }
  int oldest(int group) const { return now_[static_cast<std::size_t>(group)].freed; }
  // Past them. True where a round ends.
  bool pass_next(int group);
  void pass_oldest(int group);
  // To be called before the loop's text.
  void enter(const Op& loop);

 private:
  struct Ring {
    int first, last, num_slots;  // pipes of the group
    bool fixed = false;
  };
  struct At {
    int got = 0, freed = 0;
    bool operator==(const At&) const = default;
  };
  At after(const Block& block, const Op* loop, int ring, At at);  // `loop`: whose body it is
  At after_loop(const Op& loop, int ring, At at);
  At moved(int ring, At at, int got, int freed) const;
  int releases_behind(const Op& loop, int ring) const;

  std::vector<Ring> rings_;
  std::vector<At> now_;
  std::map<const Op*, int> copies_;    // of loops
  std::map<const Op*, int> proposed_;  // by the ring that is looked at
  bool fails_ = false;
};

}  // namespace stretto
