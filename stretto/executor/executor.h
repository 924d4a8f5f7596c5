// Runs a schedule-level program on CPU ranks: the definition of what a program computes. Each rank
// is a host thread; the rank's workers and agents are interpreted as coroutines of that thread, so
// that waiting never blocks a core that another agent could use, and ranks may exceed cores.
//
// Before: compiler.h lowered and proved the program. After: outputs
// in the caller's memory, spans in the recorder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "stretto/compiler.h"
#include "stretto/ir/program.h"
#include "stretto/runtime/args.h"
#include "stretto/runtime/world.h"

namespace stretto {

// A place where a rank waits, or has notified.
struct SyncPoint {
  int rank, role, worker;
  bool is_wait;
  std::uint64_t epoch;
};
using SyncHook = std::function<void(const SyncPoint&)>;

struct InstanceOptions {
  // Before each launch fills the outputs and the local buffers with NaN patterns, so that a read of
  // what nobody wrote shows. Symmetric buffers only once: a peer may legally write early.
  bool poison = false;
  // For tests: called at every synchronisation point (before a wait, after a notify) of this rank;
  // may sleep or throw.
  SyncHook sync_hook = {};
};

// One program made ready to run on one rank, with its own signals, buffers and epoch. Construction
// and destruction are collective over the world; so is each launch (every rank launches its
// instances in the same order).
class Instance {
 public:
  // UserError for a program whose world size is not the world's. Fault when another rank does not
  // come.
  Instance(Rank& rank, const Proved& program, const InstanceOptions& options = {});
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Runs this rank's part and returns when it has ended; extents and scalars in declaration order.
  // UserError for missing tensors or extents that are out of range or were not proved (before
  // anything ran); Fault when a wait outlasts the timeout or the world is aborted.
  void launch(const Args& args, std::span<const std::int64_t> extents);

  const Program& program() const;
  std::uint64_t epoch() const;  // launches so far since creation or recovery

  // Replaces InstanceOptions::sync_hook from now on.
  void set_sync_hook(SyncHook hook);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
