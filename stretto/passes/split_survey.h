// Behind split_agents.h: what of a role's body goes through pipes, and whether the body can be
// split at all.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// The slots that a block gets, by the registers that its loads wrote.
struct SlotUses {
  struct Slot {
    int reg;
    std::size_t last_use;  // index into the block of the last operation that reads it
    SourceLoc loc;
    bool vector = false;
  };
  std::vector<Slot> slots;
  std::size_t last_vector_use = 0;
  int num_dots = 0;          // asynchronous dots of the block itself
  std::size_t last_dot = 0;  // the last of them
  // In a loop: the dots of an iteration may be in flight during the next one.
  bool overlaps = false;
};

class SplitSurvey {
 public:
  SplitSurvey(const Program& program, const Role& role);

  // Why the role must stay one agent; empty when it can be split.
  const std::string& obstacle() const { return obstacle_; }
  // A load whose value, itself or after elementwise operations, is a factor of a dot; or a vector
  // that is loaded beside such; or, where the role has no dot, a row that a loop loads, or
  // rows that it picks; or a matrix that is to be loaded ahead.
  bool is_piped(const Op& op) const { return piped_.count(&op) != 0; }
  // Of the piped loads: happens again within a tile, so that loading ahead pays.
  bool is_in_loop(const Op& op) const { return in_loop_.count(&op) != 0; }
  // Of the piped loads: Resource::load_slots asked for it.
  bool is_ahead(const Op& op) const { return ahead_.count(&op) != 0; }
  // Whether any load is ahead, and whether any piped one happens once a tile.
  bool loads_ahead() const { return !ahead_.empty(); }
  bool loads_once() const;
  // A dot that reads a slot, as loaded or transposed.
  bool is_async(const Op& op) const;
  SlotUses slot_uses(const Block& block) const;
  // The operation or one inside it reads or writes the register.
  static bool names(const Op& op, int reg);
  // An entry of a table that some launch writes, its own among them.
  bool reads_table_of_launch(const Expr& expr) const;
  // The vector of row numbers by which a piped load picks its rows, or what that is computed from:
  // the producer makes it too, and where nobody else reads it only the producer.
  bool picks_rows(const Op& op) const { return indices_.count(&op) != 0; }
  bool only_picks_rows(const Op& op) const;
  // A piped vector: read wherever it is needed, not by a dot.
  bool is_vector(const Op& op) const { return vectors_.count(&op) != 0; }
  // Written by this rank alone.
  static bool is_own(const Region& r);
  bool from_here(const Region& r) const;
  // Written by nobody during a launch.
  bool own_input(const Region& r) const;

 private:
  struct Around {
    bool loop = false;
    bool table = false;  // a table that launches change decides whether or how often it runs
    bool waits = false;  // for a signal that the role notifies
  };

  void count_writes(const Block& block);
  void survey(const Block& block, Around around);
  void survey_writes(const Op& op);
  void survey_vectors(const Block& block);
  void survey_ahead(const Op& op, Around around);
  bool has_index(const Op& op) const;
  bool is_index(int reg) const;
  void add_index(int reg);
  bool feeds_dot(const Block& block, std::size_t load) const;
  bool spreads_to_dot(const Op& op, std::set<int>& values) const;
  void find_views(const Block& block);
  bool reads(const Op& op, int slot) const;
  bool overlaps(const Block& block, const SlotUses& uses) const;
  bool depends_on_changing_table(const Expr& expr) const;
  void check_order();
  void check_packets();
  void check_table(const Expr& expr);

  const Program& program_;
  const Role& role_;
  std::set<const Op*> piped_, in_loop_, vectors_, indices_, ahead_;
  std::set<const Op*> handed_on_;  // behind a wait for a signal that the role notifies
  std::set<int> notified_;
  std::vector<int> slot_of_;     // per register: the slot it stands for, or -1
  std::vector<int> num_writes_;  // per register
  std::vector<int> num_reads_;
  std::vector<const Op*> writer_;  // the last
  std::vector<bool> table_var_;    // variables that follow from a table that launches change
  std::set<int> written_;          // tensors that the role writes
  std::set<int> tables_;           // tensors that its index arithmetic reads before such a wait
  bool has_dots_ = false;
  std::string obstacle_;
  const Op* packet_ = nullptr;  // a load of packets
};

}  // namespace stretto
