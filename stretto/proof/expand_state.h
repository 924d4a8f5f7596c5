// Where the expansion of a program stands: the rank, tile and values at hand, and what has been
// written down so far. Shared by expand.cc, which walks, and by the parts that know accesses
// (expand_accesses.h) and synchronisation (expand_syncs.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/eval_scope.h"
#include "stretto/proof/table_cells.h"
#include "stretto/proof/trace_recorder.h"

namespace stretto {

struct ExpandState {
  const Program& program;
  InstanceGraph graph;
  EvalScope scope;
  TraceRecorder recorder;
  int rank = 0;
  std::int64_t tile = -1;
  int may_depth = 0;                             // inside what a table decides
  std::vector<std::optional<TableCells>> cells;  // per tensor
  bool has_cells = false;
  // Parts of a partition that have rows from `offset` on, where the program is now: each counts in
  // may_depth, and what is done to those rows happens whenever there are any.
  std::vector<TablePoint> inhabited;

  ExpandState(const Program& program, const std::vector<std::int64_t>& extents,
              const TableWitness* witness);
  ExpandState(const ExpandState&) = delete;

  [[noreturn]] void reject(const Op& op, const std::string& what) const;
};

}  // namespace stretto
