// One rank's interpreter: its agents as resumable coroutines over linear code (code.h), and the
// memory, counters and epoch they work on. It decides nothing about scheduling: instance.cc runs
// the agents round-robin on the rank's thread, controlled.cc in any order, all ranks in one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/executor/code.h"
#include "stretto/executor/executor.h"
#include "stretto/executor/packets.h"
#include "stretto/executor/table_contracts.h"
#include "stretto/executor/tensor_mem.h"
#include "stretto/executor/worker_state.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/quota.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

enum class Park : std::uint8_t { kNone, kSignal, kPacket, kPipeFull, kPipeEmpty, kBarrier };

// One agent of one worker; also on_start and on_end, whose role is null.
struct AgentState {
  const AgentCode* code = nullptr;
  const RoleCode* role = nullptr;
  int id = 0;         // among the rank's agents
  int role_idx = -1;  // -1: on_start, on_end
  int worker = 0;
  WorkerState* shared = nullptr;

  std::vector<std::int64_t> vars;
  std::vector<std::int64_t> limits;  // of the loops around pc
  std::vector<Register> regs;
  AlignedBytes arena;  // as WorkerState::arena

  std::int64_t tile = -1, num_tiles = 0;
  int pc = 0;
  bool done = true;

  // What a parked agent waits for: *word >= wanted (signal), == wanted (packet tag, the upper
  // half), or a state of `shared`.
  Park park = Park::kNone;
  std::atomic<std::uint64_t>* word = nullptr;
  std::uint64_t wanted = 0;
  std::int64_t channel = -1, at_least = 0;  // kSignal
  std::int64_t parked_ns = 0;
  std::int64_t tile_begin_ns = 0;  // while recording
};

enum class TouchKind : std::uint8_t { kRead, kWrite, kReduce };

// Sees every access and synchronisation, in the order in which this thread carries them out.
class Observer {
 public:
  struct Box {
    int tensor = -1, rank = 0;
    int num_dims = 0;
    std::int64_t lo[kMaxTensorDims] = {}, hi[kMaxTensorDims] = {};  // hi exclusive
  };
  virtual ~Observer() = default;
  virtual void on_access(const AgentState& agent, const Inst& inst, TouchKind kind,
                         const Box& box) = 0;
  virtual void on_notify(const AgentState& agent, int rank, std::int64_t counter) = 0;
  virtual void on_acquire(const AgentState& agent, std::int64_t counter) = 0;
  // Packets are data and signal in one.
  virtual void on_packet(const AgentState& agent, const Inst& inst, bool is_store,
                         const Box& box) = 0;
  // Pipe slots and barriers order the agents of one worker: release before, acquire after.
  virtual void on_worker_edge(const AgentState& agent, bool is_release, const void* object) = 0;
};

Observer::Box box_of(const ClippedTile& tile);

class RankMachine final : private TableReader {
 public:
  // Quotas may be those of any extents: they do not depend on them (quota.h).
  RankMachine(ProgramCode code, const Quotas& quotas);
  RankMachine(const RankMachine&) = delete;
  RankMachine& operator=(const RankMachine&) = delete;

  const ProgramCode& code() const { return code_; }
  const Program& program() const { return *code_.program; }
  int rank() const { return code_.rank; }
  std::uint64_t epoch() const { return epoch_; }

  // --- set by the owner ---
  std::vector<TensorMem> tensors;        // `at` to be filled in; shapes are this class's
  std::vector<SignalCounter*> counters;  // [world] first counter of each rank
  const Rank* waker = nullptr;           // tells sleeping ranks that a counter or packet changed
  Recorder* recorder = nullptr;          // null unless recording
  const char* program_name = "";         // interned while recording
  std::vector<const char*> role_names, signal_names;
  Observer* observer = nullptr;
  bool compute = true;  // false: only index arithmetic and synchronisation
  const SyncHook* sync_hook = nullptr;

  // Fixes extents and epoch. UserError for extents out of range. Agents start with start().
  void begin_launch(std::span<const std::int64_t> extents, std::uint64_t epoch);

  AgentState& on_start() { return agents_.front(); }
  AgentState& on_end() { return agents_.back(); }
  std::span<AgentState> role_agents() { return {agents_.data() + 1, agents_.size() - 2}; }
  std::span<AgentState> agents() { return agents_; }
  // Puts the agent before its first instruction of this launch; done at once where it has none.
  void start(AgentState& agent);
  // The same for every agent of every role; appends those that have work, in order.
  void start_roles(std::vector<AgentState*>& live);

  enum class Outcome : std::uint8_t { kDone, kParked, kYielded };
  // Runs until the agent ends, a wait fails, or the end of a tile (kYielded; with an observer also
  // after every synchronisation). A parked agent must be ready().
  Outcome run(AgentState& agent);
  // Whether a parked agent could go on. Acquires nothing.
  bool ready(const AgentState& agent) const;

  const char* role_name(const AgentState& agent) const;
  // What a parked agent waits for, for a Fault.
  FaultRecord describe_wait(const AgentState& agent) const;

 private:
  std::int64_t read(int tensor_idx, std::span<const std::int64_t> index) override;
  void require_contract(int tensor_idx, const std::optional<BrokenEntry>& broken) const;
  const std::string& tensor_name(int idx) const {
    return program().tensors[static_cast<std::size_t>(idx)].name;
  }

  void build_agents();
  void add_agent(const AgentCode& code, const RoleCode* role, int role_idx, int worker,
                 WorkerState* shared);
  static void allocate(AgentState& agent);

  std::int64_t expr(const AgentState& a, const Inst& inst, int i);
  ClippedTile clip(const AgentState& a, const Inst& inst, int region_idx) {
    const RegionCode& r = a.code->regions[static_cast<std::size_t>(region_idx)];
    return clip(a, inst, r, r.rows, r.cols);
  }
  // The same region with another number of rows and columns.
  ClippedTile clip(const AgentState& a, const Inst& inst, const RegionCode& region,
                   std::int64_t rows, std::int64_t cols);
  void observe(const AgentState& a, const Inst& inst, TouchKind kind, const ClippedTile& tile);
  Register& result(AgentState& a, const Inst& inst);

  bool execute(AgentState& a, const Inst& inst);  // false: parked
  void execute_memory(AgentState& a, const Inst& inst);
  bool execute_sync(AgentState& a, const Inst& inst);
  bool end_tile(AgentState& a);  // true: no more tiles
  void unpark(AgentState& a, const Inst& inst);
  bool park(AgentState& a, Park kind);

  void dot(AgentState& a, const Inst& inst);
  void load(const Inst& inst, AgentState& a, Register& reg);
  void store(AgentState& a, const Inst& inst);
  ClippedTile gathered_row(const Inst& inst, const ClippedTile& t, std::int32_t picked,
                           std::int64_t i) const;
  void load_rows(const Inst& inst, AgentState& a, Register& reg);
  void store_rows(AgentState& a, const Inst& inst);
  void reduce_store(AgentState& a, const Inst& inst);
  void copy(AgentState& a, const Inst& inst);
  void store_packet(AgentState& a, const Inst& inst);
  bool load_packet(AgentState& a, const Inst& inst);
  std::uint32_t packet_tag() const { return Packets::tag_of(epoch_); }
  bool wait(AgentState& a, const Inst& inst);
  void notify(AgentState& a, const Inst& inst);
  bool pipe_put(AgentState& a, const Inst& inst);
  bool pipe_fill(AgentState& a, const Inst& inst);
  bool pipe_get(AgentState& a, const Inst& inst);
  bool barrier_sync(AgentState& a, const Inst& inst);
  void call_hook(const AgentState& a, bool is_wait);
  void wake(std::int64_t to) const;

  ProgramCode code_;
  std::vector<std::uint64_t> quota_;  // [counter] of the own rank
  std::uint64_t epoch_ = 0;
  std::vector<std::int64_t> vars_;  // rank and extents set
  std::vector<AgentState> agents_;  // on_start, roles, on_end
  std::vector<std::unique_ptr<WorkerState>> workers_;
  std::vector<std::span<AgentState>>
      role_spans_;                 // [role] agents of worker 0, then of worker 1, ...
  AgentState* current_ = nullptr;  // whose table read this is
  const Inst* current_inst_ = nullptr;
  TableContracts contracts_;
  Packets packets_;
};

}  // namespace stretto
