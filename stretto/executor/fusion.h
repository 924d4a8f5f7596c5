// What of an agent's operations need not be carried out one by one: loads (and their transposes)
// that only feed dots are read in place, a cast that only feeds stores of its own dtype is left to
// the store, and a loop of nothing but such a dot is one dot. Decided before code is emitted
// (translate.h), since each decision looks ahead.
//
// All three keep the meaning: between the load and the dot there is no operation that could change
// the memory, the index variables or the order of events.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

class Fusion {
 public:
  Fusion(const Program& program, const Agent& agent);

  struct View {
    const Region* region;
    bool transposed;
  };
  // The operation's work is done by the operations that read its result.
  bool dropped(const Op* op) const { return dropped_.count(op) != 0; }
  // The memory that `dot` reads instead of register `reg`.
  std::optional<View> view_of(const Op* dot, int reg) const;
  // The register that `op` reads instead of `reg`; mostly `reg` itself.
  int source_of(const Op* op, int reg) const;
  // The dot that does the whole loop's work, or null.
  const Op* folded_dot(const Op& loop) const;
  int num_reads(int reg) const { return reads_[static_cast<std::size_t>(reg)]; }

 private:
  using Reader = std::pair<const Op*, int>;  // operation, register

  void count(const Block& block);
  void fuse_block(const Block& block);
  void fuse_load(const Block& block, std::size_t at);
  void fuse_cast(const Block& block, std::size_t at);
  bool steps_by_tile(const View& view, int var, bool k_is_rows) const;

  const Program& program_;
  const Agent& agent_;
  std::vector<int> reads_, writes_;
  std::set<const Op*> dropped_;
  std::map<Reader, View> views_;
  std::map<Reader, int> sources_;
};

}  // namespace stretto
