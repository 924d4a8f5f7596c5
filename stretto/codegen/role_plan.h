// How one SM role lies on its blocks: threads and registers of its agents, and shared memory with
// the slots of its pipes, their barriers, staging buffers and scratch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stretto/codegen/launch_plan.h"
#include "stretto/codegen/shared_rings.h"
#include "stretto/ir/gpu_target.h"
#include "stretto/ir/program.h"
#include "stretto/ir/value_plan.h"

namespace stretto {

// Which part of a pipe's tile a block of a cluster loads.
enum class Split : std::uint8_t {
  kNone,
  kRows,       // the rows that the block computes on
  kMulticast,  // its share of the rows, to every block
};

struct PipePlan {
  std::string alias;             // type name in generated code
  std::string type_text;         // SmemTile<bf16, 128, 64, 128>
  std::int64_t rows = 1;         // of the slot, padding included
  std::int64_t rows_loaded = 1;  // by this block, per slot
  int swizzle = 128;
  std::size_t offset = 0, slot_bytes = 0;
  std::size_t bytes_arriving = 0;  // per slot, from all blocks
  int group = -1;
  Split split = Split::kNone;
  // The loads that fill it, and the TMA views of those that TMA makes; the producer's threads make
  // the others.
  std::vector<const Op*> puts;
  std::map<const Op*, int> views;
  const char* why = "";  // TMA does not make them all
  bool filled = false;   // from registers, by the agent at its beginning
  bool packed = false;   // a vector without gaps (SmemVector), which no product reads
  bool joined = false;   // a column, beside those of the group's other steps (SmemColumn)
  bool read_by_products = false;
  bool by_tma() const { return !puts.empty() && views.size() == puts.size(); }
  bool by_tma(const Op& put) const { return views.contains(&put); }
  // Some slots are filled by TMA and some by threads, in the order of the program.
  bool in_turn() const { return !views.empty() && !by_tma(); }
};

// Pipes that are always put, got and released together share their barriers.
struct PipeGroup {
  std::vector<int> pipes;
  int num_slots = 2;
  int steps = 1;  // whose slots are filled and handed over together (joined_steps.h)
  // Offset of full[num_slots], empty[num_slots] and, of a ring that is shared, turn[num_turns] and
  // for each turn the place in the ring where it begins.
  std::size_t barriers = 0;
  int shares = -1;  // of groups before it, the one whose ring this is (Pipe::shares)
  RingTurn turn;    // where it is shared
  bool is_shared() const { return turn.num_turns > 0; }
  int num_barriers() const { return 2 * (num_slots + turn.num_turns); }
};

struct RolePlan {
  std::vector<AgentPlan> agents;
  std::vector<int> first_thread;  // per agent
  std::vector<int> threads;       // per agent, of the block; a producer's are a warpgroup
  std::vector<int> registers;     // per agent and thread, 0: as launched (budget_registers)
  int idle_registers = 0;         // of the block's threads beyond the role's, 0: as launched
  int num_threads = 0;            // of the block up to the role's last one
  int first_warpgroup = 0;        // of the block, where its first agent's threads are
  int first_barrier = 1;          // of its agents' named barriers
  std::vector<PipePlan> pipes;
  std::vector<PipeGroup> groups;
  // Where a factor or a transposed value that lives in registers is put for the product, by op.
  std::map<const Op*, std::size_t> staging;
  std::size_t store_stages = 0;      // `store_buffers` blocks of 64 x 64 per warpgroup
  int store_buffers = 2;             // one where two do not fit beside the slots
  std::vector<std::size_t> scratch;  // per agent, one float per thread where its threads reduce
  std::size_t ones = 0;              // kOnesBytes of 16-bit ones for sums of rows; 0: none
  DType ones_dtype = DType::kBF16;
  std::size_t ticket_ring = 0;  // of a role by ticket
  int ticket_word = -1;         // of the control block
  // Where the warpgroups of a staggered role say to how many notifies they have come; 0: it has
  // none.
  std::size_t meeting = 0;
  std::vector<int> host;  // per agent: in whose warpgroup its warp lies; -1: it has its own
  // Stores of epilogue warps that one thread makes by TMA, from the slots, each with its view.
  std::map<const Op*, TensorMapPlan> epilogue_stores;
  std::size_t shared_bytes = 0;

  // Whether threads of a producer fill slots. Those of its first warp do not where TMA loads, too:
  // one of them issues what TMA loads, all of it where threads fill nothing.
  bool fills(const Role& role, int agent) const;
  bool issues(const Role& role, int agent) const;
  // Agents with warpgroups of their own.
  std::vector<std::size_t> branches() const {
    std::vector<std::size_t> out;
    for (std::size_t a = 0; a < host.size(); ++a) {
      if (host[a] < 0) out.push_back(a);
    }
    return out;
  }
  // Whether one thread of an epilogue warp does all of its work.
  bool stores_alone(const Role& role, int agent) const {
    return role.agents[static_cast<std::size_t>(agent)].kind == AgentKind::kEpilogue &&
           !epilogue_stores.empty();
  }
};

// What a role that works on another one's blocks is given there.
struct PlaceBeside {
  int first_thread = 0, num_threads = 0;
  int first_barrier = 1;
  std::size_t shared = 0;
};
// The producer's warps that have nothing to do, else a warpgroup more.
PlaceBeside place_beside(const Role& role, const RolePlan& plan);

// Adds the views that the role needs to `maps`. `place`: in another role's blocks. UserError naming
// the line for what no layout fits, or what needs more shared memory than a block of `gpu` has.
RolePlan plan_role(const Program& program, const Role& role, std::vector<TensorMapPlan>& maps,
                   const GpuTarget& gpu, const PlaceBeside* place = nullptr);

// Gives groups whose pipes share slots the ring and the turn that they have in common. Why that
// does not do, or "".
std::string share_rings(const Role& role, RolePlan& plan);

// Which stores of epilogue warps TMA can make; the one thread that does them all lies in a warp
// beside the producer's. After the pipes.
void place_epilogues(const Program& program, const Role& role, RolePlan& plan);

// Moves registers from the threads that need few to those that compute, for a role in blocks of
// `block` threads, which may be more than its own. `beside`: of the role beside it, if there is
// one, which gets its share. Blocks of up to 256 threads need none of this.
void budget_registers(const Role& role, int block, RolePlan& plan, RolePlan* beside);
// What a branch of a block's threads begins with to have so many; "" for 0, as launched. To raise
// below what there is, or lower above it, is an illegal instruction.
std::string register_budget_text(int registers, int block);

// The TMA view under a region of an agent's `body`, or false where TMA cannot address it (strides
// not of 16 bytes, a column that may be no multiple of 16 bytes, more than three dimensions in
// use). Its rank is 0 where the region names another than the own: then there is a map for each.
bool tensor_map_of(const Program& program, const Region& region, const Block& body,
                   TensorMapPlan& out);
// Why it is false, in words.
const char* tma_refusal(const Program& program, const Region& region, const Block& body);
// Of a value as a slot in shared memory: the bytes within which the 16-byte units of a row are
// permuted, and the bytes that its staging takes.
int swizzle_bytes(const ValueType& type);
std::size_t staged_bytes(const ValueType& type);
std::vector<std::int64_t> row_major_strides(const Program& program, int tensor);

// 16 rows of a slot.
inline constexpr std::size_t kOnesBytes = 2048;

inline constexpr std::int64_t kMaxBoxRows = 256;  // that TMA moves at a time
// Named barriers: 0 is the whole block's, then come those of agents and of the program, from here
// on those of the warpgroups that store by TMA, and from kTurnBarrier on (device/sm90/dot.h) those
// of warpgroups that multiply in turn.
inline constexpr int kStoreBarrier = 8;
inline constexpr int kFirstTurnBarrier = 12;
inline constexpr int kNumNamedBarriers = 16;
inline constexpr int kStoreBlock = 64;  // rows and columns of a block that one TMA store writes

}  // namespace stretto
