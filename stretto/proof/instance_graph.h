// One launch of a program, spelled out: for every rank, worker and agent the accesses it makes and
// the synchronisation it does, in program order. expand.h builds it; happens_before.h orders it;
// check.h looks for races and gaps. It holds no launch number: every launch with the same extents
// does the same, up to buffer slots and the counters' bases.
//
// Pipes and named barriers are counters too: a put notifies "full" and waits for "empty", a barrier
// notifies and waits for everybody of its phase.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/ir/limits.h"
#include "stretto/ir/program.h"
#include "stretto/proof/table_choices.h"

namespace stretto {

// Elements [lo, hi) per dimension; dimensions past the tensor's are [0, 1).
struct Box {
  std::array<std::int64_t, kMaxTensorDims> lo{}, hi{};
  friend auto operator<=>(const Box&, const Box&) = default;
};
bool is_empty(const Box& box);
bool overlaps(const Box& a, const Box& b);
Box intersection(const Box& a, const Box& b);
std::int64_t volume(const Box& box);

enum class AccessKind : std::uint8_t { kRead, kWrite, kReduce };

// A place in an agent's program order.
struct Landing {
  int agent = -1, pos = -1;  // -1: none
};

struct Access {
  int tensor = -1;
  int rank = -1;  // whose copy of the tensor
  int box = -1;   // index into InstanceGraph::boxes
  int pos = 0;    // synchronisation events of the agent before it
  AccessKind kind = AccessKind::kRead;
  bool may = false;         // happens for some tables only: has to be ordered, covers nothing
  bool sure = false;        // `may`, but whenever its choice holds, and with the whole box
  bool packet : 1 = false;  // ordered by its tag
  // One tile that begins where the box does, or several side by side from there on.
  bool tiled : 1 = false;
  int choice = TableChoices::kAlways;
  // What is so at every size at which there is anything of it, beyond its own rank, too.
  int when = TableChoices::kAlways;
  int span = -1;    // of a graph for several sizes: the box that holds it at all of them; -1: box
  Landing landed;   // of a load into a slot: where the slot is got (pipe_slice.h)
  int of_case = 0;  // of which size, where several share a graph (launch_orders.h)
  std::int64_t tile = -1;
  const Op* op = nullptr;
};

enum class SyncKind : std::uint8_t { kNotify, kWait, kFence, kPacketStore, kPacketLoad };

struct Sync {
  SyncKind kind = SyncKind::kNotify;
  int counter = -1;         // kNotify, kWait
  int access = -1;          // packets: index into AgentTrace::accesses, -1 where all is masked
  std::int64_t amount = 0;  // kNotify: added; kWait: at_least, relative to the launch's base
  int choice = TableChoices::kAlways;  // of what happens for some tables or sizes only
  std::int64_t tile = -1;
  const Op* op = nullptr;
};

enum class Phase : std::uint8_t { kStart, kRoles, kEnd };

struct AgentTrace {
  int rank = 0;
  Phase phase = Phase::kRoles;
  int role = -1, worker = 0, agent = 0;  // kRoles
  std::vector<Sync> syncs;
  std::vector<Access> accesses;  // program order
};

// kPipeTurn: how often a pipe's consumer has got what it gets in a row of slots that it shares.
// kMeeting: agents that have come to a loop whose slots are left out (open_loops.h).
enum class CounterKind : std::uint8_t {
  kSignal,
  kPipeFull,
  kPipeEmpty,
  kPipeTurn,
  kMeeting,
  kBarrier
};

struct Counter {
  CounterKind kind = CounterKind::kSignal;
  int rank = 0;
  int symbol = -1;            // signal, pipe or barrier
  std::int64_t channel = 0;   // kSignal
  int role = -1, worker = 0;  // pipes and barriers
};

// Packet loads of one launch: the stores that put this launch's tag on what the load reads.
struct PacketLoad {
  int agent = -1, pos = -1;
  struct Store {
    int agent, pos;
    bool always = true;  // false: not at all of the sizes that the graph is for
  };
  std::vector<Store> stores;
  bool covered = true;  // false: some packet is stored by nobody
};

// What one rank's operation did to one tensor: met it, at least once, or lay outside (reach.h).
struct Reach {
  bool meets = false, far = false, astray = false;
  int tensor = -1, rank = -1, agent = -1;  // the first access, or the first that is far outside
  AccessKind kind = AccessKind::kRead;
  std::int64_t tile = -1;
  Box box;  // its elements, masked or not
};

class SizeMasks;

struct InstanceGraph {
  const Program* program = nullptr;
  std::vector<std::int64_t> extents;
  std::vector<std::vector<std::int64_t>> shapes;  // per tensor, at run time
  // Agent numbers mean the same at all extents: per rank on_start, on_end, then role by role,
  // worker by worker.
  std::vector<AgentTrace> agents;
  std::vector<int> first_agent;  // per rank, and one past the last
  std::vector<Counter> counters;
  std::vector<std::int64_t> quota;  // per counter: what this launch adds
  std::vector<Box> boxes;           // interned
  std::vector<PacketLoad> packet_loads;
  // By operation, which of its accesses, and whose.
  std::map<std::tuple<const Op*, int, int>, Reach> reaches;
  // Up to how many iterations loops have to be looked at whose slots are left out (trip_counts.h).
  std::int64_t trips = 0;
  bool has_open_loops = false;  // whose slots are left out (open_loops.h)
  bool has_spans = false;       // some access has one
  // Of a graph for several sizes whose masks are open: what is left of each box (size_masks.h).
  // Boxes are then what holds it at all sizes.
  std::shared_ptr<SizeMasks> masks;
  std::vector<int> mask_of_box;    // its numbers there
  std::vector<int> whole_tensors;  // per tensor
  // The first entry of a table that may not be there where a table decides whether it is read: a
  // source line, and which.
  std::pair<std::string, std::string> unsure_entry;
  // Of a graph for several sizes: what left the smallest part of them, and which part.
  std::pair<const Op*, double> deepest_cut{nullptr, 1};
  // What the choices of syncs and accesses mean; one for all graphs that are compared.
  std::shared_ptr<TableChoices> choices = std::make_shared<TableChoices>();

  std::size_t num_events() const;
};

// Has the graph number its choices as others do.
void share_choices(InstanceGraph& graph, const std::shared_ptr<TableChoices>& all);

Box whole_tensor(const InstanceGraph& graph, int tensor);
// A rank's own input, which the verifier and expand() let no launch write.
bool nobody_writes(const Tensor& tensor);

// "role 'gemm' (rank 1, worker 3, tile 17)"; "on_start (rank 0)".
std::string describe_agent(const InstanceGraph& graph, int agent, std::int64_t tile);
// "'gathered'[3] of rank 1".
std::string describe_counter(const InstanceGraph& graph, int counter);
// "read of 'full' [0:128, 0:64] on rank 1".
std::string describe_access(const InstanceGraph& graph, const Access& access);
// "'full' [0:128, 0:64] on rank 1".
std::string describe_range(const InstanceGraph& graph, int tensor, const Box& box, int rank);
std::string describe_box(const InstanceGraph& graph, int tensor, const Box& box, AccessKind kind,
                         int rank);
std::string describe_loc(const Op* op);

}  // namespace stretto
