// What kept copy engines that fetch from getting on in captured graphs: the protocol of
// gpu/engine_queues.h with everything else left out, as it was when queues copied own signals from
// the host's memory, one thing changed at a time, and three operators as they are. Two GPUs. What
// came of it: docs/decisions/0008-own-signals-come-from-peers.md.
#pragma once

#include <functional>
#include <string>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct GraphFetchOptions {
  std::string only;  // ways whose text contains this
  int replays = 3;
};

struct GraphFetchResult {
  std::string way;       // what differs from "as it was"
  int launches = 1;      // in one graph
  double launch_ms = 0;  // of the host: enqueueing the first replay on the first rank
  double replay_us = 0;  // per launch, of all replays; not meaningful after an error
  std::string error;     // empty where all replays ended; else who waits for what

  std::string to_string() const;  // a line
  Json to_json() const;
};

// Calls `done` after each way and number of launches. Waits end after 300 ms.
void try_graph_fetch(GpuWorld& world, const GraphFetchOptions& options,
                     const std::function<void(const GraphFetchResult&)>& done);

}  // namespace stretto::bench
