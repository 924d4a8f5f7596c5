// The simulated GPUs' multiprocessors: threads are fibers of one thread of the host, which switches
// between them at whatever other threads may see, in an order drawn from a seed; copies and
// products that the hardware does on its own are done at any time between their beginning and the
// wait for them. So what a kernel leaves to chance comes out differently from seed to seed, and
// blocks all of whose threads wait for each other are found at once.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "stretto/simulator/instructions.h"

namespace stretto::simulator {

// Something that no kernel may do, or from which it cannot go on.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Thread;
struct Block;
struct Launch;

using WaitList = std::vector<Thread*>;

// A group of copies of one thread to global memory.
struct StoreGroup {
  int unread = 0, unwritten = 0;
};

struct PendingCopy {
  std::uint32_t to;
  const void* from;
  std::uint32_t bytes, read;
};

struct PendingProduct {
  Product product;
  std::vector<float*> sum;
  std::uint32_t a_words[4];  // where A lies in registers
};

// What a thread waits for, and two numbers that say more.
struct WaitFor {
  enum class What { kWarp, kPhase, kNamedBarrier, kBlock, kCluster, kRegisters, kLaunch, kStores };
  What what = What::kBlock;
  std::uint32_t a = 0, b = 0;
  std::string to_string() const;
};

struct Thread : ThreadIndices {
  enum class State { kReady, kBlocked, kDone };
  Block* at = nullptr;
  unsigned index = 0;      // in its block
  bool held_back = false;  // goes on where hardly anyone else can
  bool polls = false;      // has since done nothing but meet the others of its warp
  State state = State::kReady;
  WaitFor waits_for;
  boost::context::fiber fiber;
  int cluster_arrivals = 0;
  std::vector<std::shared_ptr<StoreGroup>> stores;  // the last one is open
  WaitList store_waiter;
  std::vector<PendingCopy> copies;
  std::vector<std::vector<PendingProduct>> products;  // groups; the last one is open
};

struct NamedBarrier {
  std::uint32_t threads = 0, arrived = 0;
  WaitList waiting;
};

struct Warp {
  void* brought[32] = {};
  unsigned live = 0, arrived = 0;
  WarpOp op = WarpOp::kMeet;
  WaitList waiting;
  unsigned registers = 0;  // of each thread
};

struct Cluster {
  std::vector<Block*> blocks;
  int live_threads = 0, arrived = 0, phase = 0;
  WaitList waiting;
};

struct Block {
  Launch* launch = nullptr;
  int index = 0, sm = 0;
  std::shared_ptr<Cluster> cluster;
  unsigned in_cluster = 0;
  unsigned char* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  unsigned live = 0;
  bool let_next_start = false;
  int pending = 0;  // what goes on behind its back
  NamedBarrier barriers[16];
  std::set<std::uint32_t> mbarriers;  // initialised
  std::map<std::uint32_t, WaitList> phase_waiters;
  std::map<const void*, std::vector<unsigned char>> statics;
  long free_registers = 0;
  WaitList register_waiters;

  std::string where() const;  // for messages: kernel, rank and number
  // `bytes` of its shared memory; Violation where it has not so much.
  unsigned char* memory(std::uint32_t address, std::size_t bytes) const;
};

// Units of 16 bytes of shared memory change places by bits of their address (PTX ISA, swizzling
// modes); `span`: 128, 64 or 32 bytes, 0: they do not.
constexpr std::uint32_t swizzled(std::uint32_t address, std::uint32_t span) {
  return span == 0 ? address : address ^ ((address >> 7 & (span / 16 - 1)) << 4);
}

struct LaunchShape {
  Dim3 grid, block;
  unsigned cluster = 1;
  std::size_t shared_bytes = 0;
};

struct Launch {
  std::string name;
  void (*entry)(void**) = nullptr;
  std::vector<std::vector<unsigned char>> arguments;  // with room to align each to 64 bytes
  std::vector<void*> argument_addresses;
  LaunchShape shape;
  int device = 0;
  std::function<void()> may_overlap;  // once every block has let the next launch start
  std::function<bool()> previous_done;
  std::function<void()> done;
  unsigned next_block = 0, live_blocks = 0, letting = 0;
};

// What one multiprocessor of Hopper has.
struct SmResources {
  static constexpr int kThreads = 2048, kRegisters = 65536, kBlocks = 32;
  static constexpr std::size_t kShared = 228 * 1024, kSharedReserved = 1024;
};
constexpr int kMostSms = 132;

// Blocks of such a kernel that one multiprocessor holds.
int blocks_per_sm(unsigned threads, std::size_t shared_bytes);
unsigned registers_per_thread(unsigned threads);

class GpuSimulator {
 public:
  GpuSimulator(int num_devices, int num_sms, std::uint64_t seed);
  ~GpuSimulator();

  void start(std::unique_ptr<Launch> launch);
  // Goes on for a while. False where nothing moved: everybody waits, for memory if for anything.
  // Violation, after which all launches are gone.
  bool run();
  bool busy() const { return !launches_.empty(); }
  std::uint64_t timer_ns();

  // By the thread that runs.
  Thread& self() const { return *self_; }
  void yield();
  void poll();
  void block_on(WaitList& list, const WaitFor& what);
  void wake(WaitList& list);
  // Done at any time from now on.
  void later(Block& block, std::function<void()> act);
  // Where all threads of the cluster that have not ended have come.
  void complete_if_due(Cluster& cluster);
  std::uint64_t draw(std::uint64_t below);
  WaitList& launch_waiters() { return launch_waiters_; }

 private:
  struct Act {
    Block* block;
    std::function<void()> act;
  };
  struct Sm {
    int threads = 0, registers = 0, blocks = 0;
    std::size_t shared = 0;
    bool has_room(const LaunchShape& shape) const;
    void add(const LaunchShape& shape, int blocks_more);  // -1: takes one away
  };
  void place_blocks();
  bool place_cluster(Launch& launch);
  void begin(Block& block);
  void hold_some_back(Block& block);
  void make_ready(Thread& thread);
  void resume(Thread& thread);
  void suspend();
  void ended(Thread& thread);
  void retire(Block& block);
  template <class T, class F>
  void do_one(std::vector<T>& list, F act);
  Thread* next_ready(bool streaks);
  void perform(Act& act);
  void check_for_deadlock();
  void drop_everything();
  std::string state_of(const Block& block) const;

  std::uint64_t seed_, drawn_ = 0;
  std::vector<std::unique_ptr<Launch>> launches_;
  std::vector<std::vector<Sm>> sms_;  // [device]
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> waiting_blocks_;  // placed, not begun
  std::vector<Thread*> ready_, polling_, held_back_;
  std::vector<Act> acts_;
  WaitList launch_waiters_;
  Thread* self_ = nullptr;
  boost::context::fiber scheduler_;
  std::string violation_;
  std::uint64_t timer_ns_, timer_read_ns_;
  bool only_polled_ = false;  // whoever had its turn last
  bool working_ = false;      // the last time something moved: the timer is slow
  int idle_rounds_ = 0;
};

// The one of this process; null before the driver starts.
extern GpuSimulator* machine;

}  // namespace stretto::simulator
