// Barriers, warps and clusters of the simulated GPU.
#include <fmt/format.h>

#include <cstring>

#include "stretto/simulator/gpu_simulator.h"

namespace stretto::simulator {
namespace {

// The 64 bits of an mbarrier.
struct MBarrier {
  std::uint16_t expected, pending;
  std::int32_t transactions : 31;
  std::uint32_t phase : 1;
};
static_assert(sizeof(MBarrier) == 8);

constexpr std::uint32_t kBlockShift = 24;

Block& own_block() { return *machine->self().at; }

struct BarrierAt {
  Block& block;
  std::uint32_t address;  // in that block
  MBarrier& barrier;
};

BarrierAt barrier_at(Block& from, std::uint32_t address) {
  Block* block = &from;
  if (address >> kBlockShift != 0) {
    std::uint32_t of = (address >> kBlockShift) - 1;
    if (of >= from.cluster->blocks.size() || from.cluster->blocks[of] == nullptr) {
      throw Violation(
          fmt::format("{}: reaches block {} of its cluster, which has ended", from.where(), of));
    }
    block = from.cluster->blocks[of];
    address &= (1u << kBlockShift) - 1;
  }
  if (!block->mbarriers.contains(address)) {
    throw Violation(fmt::format("{}: no mbarrier at {}", block->where(), address));
  }
  return {*block, address, *reinterpret_cast<MBarrier*>(block->memory(address, sizeof(MBarrier)))};
}

void complete_if_due(const BarrierAt& at) {
  MBarrier& b = at.barrier;
  if (b.pending != 0 || b.transactions != 0) return;
  b.phase ^= 1;
  b.pending = b.expected;
  machine->wake(at.block.phase_waiters[at.address]);
}

void arrive(Block& from, std::uint32_t address) {
  BarrierAt at = barrier_at(from, address);
  if (at.barrier.pending == 0) {
    throw Violation(fmt::format("{}: more arrive at the mbarrier at {} than it counts",
                                at.block.where(), at.address));
  }
  --at.barrier.pending;
  complete_if_due(at);
}

}  // namespace

void complete_transactions(Block& block, std::uint32_t address, std::uint32_t bytes) {
  BarrierAt at = barrier_at(block, address);
  at.barrier.transactions -= static_cast<std::int32_t>(bytes);
  complete_if_due(at);
}
void arrive_at(Block& block, std::uint32_t address) { arrive(block, address); }

std::uint32_t shared_address(const void* p) {
  Block& block = own_block();
  auto offset = static_cast<const unsigned char*>(p) - block.shared;
  if (offset < 0 || static_cast<std::size_t>(offset) > block.shared_bytes) {
    throw Violation(fmt::format("{}: {} bytes into shared memory, of which it has {}",
                                block.where(), offset, block.shared_bytes));
  }
  return kSharedBase + static_cast<std::uint32_t>(offset);
}

void* static_shared(const void* key, std::size_t bytes) {
  std::vector<unsigned char>& memory = own_block().statics[key];
  if (memory.empty()) memory.resize(bytes + 16);
  return memory.data();
}

void yield() { machine->yield(); }
void poll() { machine->poll(); }
std::uint64_t timer_ns() { return machine->timer_ns(); }

void warp_together(WarpOp op, void* mine, void (*act)(void* const lanes[32])) {
  Thread& own = machine->self();
  Block& block = *own.at;
  Warp& warp = block.warps[own.index / 32];
  if (warp.arrived > 0 && warp.op != op) {
    throw Violation(fmt::format("{}: lanes of warp {} are at different instructions", block.where(),
                                own.index / 32));
  }
  warp.op = op;
  // What a lane brings is its own even where it is null.
  static char nothing;
  warp.brought[own.index % 32] = mine == nullptr ? &nothing : mine;
  if (++warp.arrived < warp.live) {
    machine->block_on(warp.waiting, {WaitFor::What::kWarp, own.index / 32});
    return;
  }
  void* lanes[32];
  std::memcpy(lanes, warp.brought, sizeof lanes);
  std::memset(warp.brought, 0, sizeof warp.brought);
  warp.arrived = 0;
  if (act != nullptr) act(lanes);
  machine->wake(warp.waiting);
}

void mbarrier_init(std::uint32_t bar, std::uint32_t arrivals) {
  Block& block = own_block();
  if (bar % 8 != 0) throw Violation(fmt::format("{}: an mbarrier at {}", block.where(), bar));
  block.mbarriers.insert(bar);
  *reinterpret_cast<MBarrier*>(block.memory(bar, sizeof(MBarrier))) = {
      static_cast<std::uint16_t>(arrivals), static_cast<std::uint16_t>(arrivals), 0, 0};
}
void mbarrier_arrive(std::uint32_t bar) {
  machine->yield();
  arrive(own_block(), bar);
}
void mbarrier_expect(std::uint32_t bar, std::uint32_t bytes) {
  BarrierAt at = barrier_at(own_block(), bar);
  at.barrier.transactions += static_cast<std::int32_t>(bytes);
}
void mbarrier_wait(std::uint32_t bar, std::uint32_t parity) {
  machine->yield();
  Block& block = own_block();
  BarrierAt at = barrier_at(block, bar);
  while (at.barrier.phase == parity) {
    machine->block_on(at.block.phase_waiters[at.address],
                      {WaitFor::What::kPhase, bar - kSharedBase, parity});
  }
}

std::uint32_t address_in_cluster(std::uint32_t address, std::uint32_t block) {
  return (block + 1) << kBlockShift | address;
}
std::uint32_t block_of_cluster() { return own_block().in_cluster; }

void named_barrier(std::uint32_t id, std::uint32_t threads, bool waits) {
  machine->yield();
  Block& block = own_block();
  if (id >= 16 || threads % 32 != 0 || threads > block.launch->shape.block.x) {
    throw Violation(fmt::format("{}: barrier {} of {} threads", block.where(), id, threads));
  }
  NamedBarrier& b = block.barriers[id];
  if (b.arrived > 0 && b.threads != threads) {
    throw Violation(fmt::format("{}: barrier {} of {} and of {} threads", block.where(), id,
                                b.threads, threads));
  }
  b.threads = threads;
  if (++b.arrived == threads) {
    b.arrived = 0;
    machine->wake(b.waiting);
  } else if (waits) {
    machine->block_on(b.waiting, {WaitFor::What::kNamedBarrier, id, threads});
  }
}

void block_barrier() {
  machine->yield();
  Block& block = own_block();
  NamedBarrier& b = block.barriers[0];
  if (b.arrived > 0 && b.threads != 0) {
    throw Violation(
        fmt::format("{}: barrier 0 of all and of {} threads", block.where(), b.threads));
  }
  b.threads = 0;
  if (++b.arrived >= block.live) {
    b.arrived = 0;
    machine->wake(b.waiting);
  } else {
    machine->block_on(b.waiting, {WaitFor::What::kBlock});
  }
}

void cluster_arrive() {
  machine->yield();
  Thread& own = machine->self();
  Cluster& cluster = *own.at->cluster;
  own.cluster_arrivals = cluster.phase + 1;
  ++cluster.arrived;
  machine->complete_if_due(cluster);
}
void cluster_wait() {
  Thread& own = machine->self();
  Cluster& cluster = *own.at->cluster;
  while (cluster.phase < own.cluster_arrivals)
    machine->block_on(cluster.waiting, {WaitFor::What::kCluster});
}

// The registers of a block are those that its threads were launched with.
void set_register_budget(std::uint32_t registers, bool raises) {
  Thread& own = machine->self();
  Block& block = *own.at;
  Warp& warp = block.warps[own.index / 32];
  warp_together(WarpOp::kRegisters, nullptr, nullptr);
  if (own.index % 32 == 0) {
    if (raises ? registers < warp.registers : registers > warp.registers) {
      throw Violation(fmt::format("{}: registers of warp {} {} from {} to {}", block.where(),
                                  own.index / 32, raises ? "raised" : "lowered", warp.registers,
                                  registers));
    }
    while (registers > warp.registers &&
           block.free_registers < 32 * (static_cast<long>(registers) - warp.registers)) {
      machine->block_on(block.register_waiters, {WaitFor::What::kRegisters, registers});
    }
    block.free_registers -= 32 * (static_cast<long>(registers) - warp.registers);
    warp.registers = registers;
    machine->wake(block.register_waiters);
  }
  warp_together(WarpOp::kRegisters, nullptr, nullptr);
}

void let_next_launch_start() {
  Block& block = own_block();
  if (std::exchange(block.let_next_start, true)) return;
  Launch& launch = *block.launch;
  if (++launch.letting == launch.shape.grid.x && launch.may_overlap) {
    std::exchange(launch.may_overlap, nullptr)();
  }
}

void wait_for_previous_launch() {
  machine->yield();
  Launch& launch = *own_block().launch;
  while (launch.previous_done && !launch.previous_done()) {
    machine->block_on(machine->launch_waiters(), {WaitFor::What::kLaunch});
  }
}

}  // namespace stretto::simulator
