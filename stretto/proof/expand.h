// Program -> instance graph: walks every role's tiles for every rank, worker and agent and writes
// down accesses and synchronisation. Loops without synchronisation fold into boxes, exactly: a box
// that grows linearly with the loop variable becomes one box, anything else is enumerated. Loops
// that only pass slots of pipes fold too where asked for.
//
// Tables. Without a witness, a value read from a table is any value of its contract: the boxes it
// decides are unions over that range, marked `may` where they are writes, unless the table deals
// out rows (table_cells.h), and the graph stands for every table that meets the contract. Where a
// table decides what is waited for, the graph holds the waits and accesses of every value, each
// with its choice (table_choices.h). Loops that a table ends are taken as far as they may go, each
// iteration with its choice, or leave their slots out (trip_counts.h). Where a table decides who is
// notified, or otherwise what is written to an output, expand() throws DependsOnTable and the
// caller comes back with witnesses, whose values are then taken as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/instance_graph.h"
#include "stretto/proof/size_region.h"
#include "stretto/proof/table_witness.h"

namespace stretto {

class LoopsShown;

struct DependsOnTable {
  std::string what;
  std::string where{};  // a source line; expand() says it, as far as it has come
};

// Of loops that tables end, in a launch, that are walked iteration by iteration.
inline constexpr std::int64_t kMostTurns = std::int64_t{1} << 18;

// Of loops that only pass slots of pipes from agent to agent (pipe_loops.h).
enum class PipeLoopMode { kWalk, kFold };

// `program` must outlive the graph and be at schedule level, or at tile level without tile
// primitives. Rejected for what no schedule of events could repair: a channel, rank or threshold
// out of range, a write to an input, another rank's local tensor, unbalanced pipes.
// `trips`: how often the loops run that trip_counts.h is about; without it they are left out.
// `most_turns`: of more the turns of tiles are taken whole, where they fit (open_loops.h).
InstanceGraph expand(const Program& program, const std::vector<std::int64_t>& extents,
                     const TableWitness* witness = nullptr,
                     PipeLoopMode pipe_loops = PipeLoopMode::kWalk,
                     std::optional<std::int64_t> trips = {}, std::int64_t most_turns = kMostTurns);

// At one vector of sizes, for all tables, with a meeting in place of each run of slots that tiles
// pass alike (steady_runs.h), and without reads of a rank's own inputs. DependsOnTable where loops
// over slots end by tables.
InstanceGraph expand_with_runs(const Program& program, const std::vector<std::int64_t>& extents);

// At the region's sample, which is narrowed to the sizes at which every launch does the same, up to
// where boxes lie (size_region.h); their accesses say how far they reach at any of them
// (Access::span). DependsOnTable where a table is read.
// `shown`: what other walks of the same program have shown of its loops; or null.
InstanceGraph expand(const Program& program, const SizeAxes& axes, SizeRegion& region,
                     LoopsShown* shown = nullptr);

}  // namespace stretto
