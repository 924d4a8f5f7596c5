// The quota of a counter: what one launch adds to it. Counters are never reset, so launch e waits
// for e * quota + at_least; the quota must therefore be the same at every launch, whatever the
// extents and tables.
#pragma once

#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// quota[signal][rank][channel], counted by walking the schedule-level program of every rank at the
// given extents. Notifies under a table-dependent condition are a UserError naming the line: their
// number would vary.
using Quotas = std::vector<std::vector<std::vector<std::int64_t>>>;
Quotas count_quotas(const Program& program, const std::vector<std::int64_t>& extents);

// The rank whose notifies this counter of `rank` counts; -1: several ranks', or nobody's.
int only_notifier(const Program& program, int rank, int signal, std::int64_t channel);

}  // namespace stretto
