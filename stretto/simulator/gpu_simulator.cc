#include "stretto/simulator/gpu_simulator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>
#include <utility>

namespace stretto::simulator {

GpuSimulator* machine = nullptr;
ThreadIndices* indices = nullptr;

namespace {

constexpr std::size_t kStackBytes = 128 * 1024, kStackShift = 64 * 1088;
constexpr std::size_t kSlice = 2000;  // switches between looks at what the host wants, at least
constexpr std::size_t kSwitchesToPoll = 8;
constexpr int kSlowdown = 50;  // of the timer while threads are at work
constexpr int kRoundsToDeadlock = 200;

std::uint64_t host_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(t.tv_nsec);
}

// Stacks are kept for the next thread. They begin at different places of a page and of the caches.
struct Stacks {
  std::vector<char*> free;
  std::size_t made = 0;
  boost::context::stack_context allocate() {
    char* top = nullptr;
    if (free.empty()) {
      void* base = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) throw std::bad_alloc();
      top = static_cast<char*>(base) + kStackBytes - made++ * 1088 % kStackShift;
    } else {
      top = free.back();
      free.pop_back();
    }
    boost::context::stack_context stack;
    stack.size = kStackBytes - kStackShift;
    stack.sp = top;
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) {
    free.push_back(static_cast<char*>(stack.sp));
  }
};
Stacks stacks;

struct PooledStack {
  using traits_type = boost::context::stack_traits;
  boost::context::stack_context allocate() { return stacks.allocate(); }
  void deallocate(boost::context::stack_context& stack) { stacks.deallocate(stack); }
};

}  // namespace

std::string WaitFor::to_string() const {
  switch (what) {
    case What::kWarp:
      return fmt::format("the other lanes of warp {}", a);
    case What::kPhase:
      return fmt::format("the mbarrier at {} to complete a phase of parity {}", a, b);
    case What::kNamedBarrier:
      return fmt::format("barrier {} of {} threads", a, b);
    case What::kBlock:
      return "the barrier of the block";
    case What::kCluster:
      return "the barrier of the cluster";
    case What::kRegisters:
      return fmt::format("a budget of {} registers", a);
    case What::kLaunch:
      return "the launch before";
    case What::kStores:
      return "its TMA stores";
  }
  return "";
}

std::string Block::where() const {
  return fmt::format("{}, rank {}, block {}", launch->name, launch->device, index);
}

unsigned char* Block::memory(std::uint32_t address, std::size_t bytes) const {
  if (address < kSharedBase || address - kSharedBase + bytes > shared_bytes) {
    throw Violation(fmt::format("{}: reaches {} bytes at {} of shared memory, of which it has {}",
                                where(), bytes, std::int64_t{address} - kSharedBase, shared_bytes));
  }
  return shared + (address - kSharedBase);
}

unsigned registers_per_thread(unsigned threads) {
  unsigned rounded = (threads + 127) / 128 * 128;
  return std::min(255u, SmResources::kRegisters / rounded / 8 * 8);
}

int blocks_per_sm(unsigned threads, std::size_t shared_bytes) {
  int by_shared =
      static_cast<int>(SmResources::kShared / (shared_bytes + SmResources::kSharedReserved));
  // Registers as a kernel of one block per multiprocessor takes them.
  return std::min(by_shared, threads > 512 ? 1 : SmResources::kThreads / static_cast<int>(threads));
}

GpuSimulator::GpuSimulator(int num_devices, int num_sms, std::uint64_t seed)
    : seed_(seed),
      sms_(static_cast<std::size_t>(num_devices),
           std::vector<Sm>(static_cast<std::size_t>(num_sms))),
      timer_ns_(host_ns()),
      timer_read_ns_(timer_ns_) {}

GpuSimulator::~GpuSimulator() { drop_everything(); }

// splitmix64 (Steele, Lea, Flood 2014).
std::uint64_t GpuSimulator::draw(std::uint64_t below) {
  std::uint64_t x = seed_ + ++drawn_ * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) % below;
}

std::uint64_t GpuSimulator::timer_ns() {
  std::uint64_t now = host_ns();
  timer_ns_ += (now - timer_read_ns_) / (working_ ? kSlowdown : 1);
  timer_read_ns_ = now;
  return timer_ns_;
}

void GpuSimulator::start(std::unique_ptr<Launch> launch) {
  launches_.push_back(std::move(launch));
  place_blocks();
}

// Blocks come in the order of their numbers, clusters whole; launches in the order of their start.
void GpuSimulator::place_blocks() {
  std::set<int> full;
  for (const std::unique_ptr<Launch>& launch : launches_) {
    while (launch->next_block < launch->shape.grid.x && !full.contains(launch->device)) {
      if (!place_cluster(*launch)) full.insert(launch->device);
    }
  }
}

bool GpuSimulator::Sm::has_room(const LaunchShape& shape) const {
  Sm with = *this;
  with.add(shape, 1);
  // A kernel that has an SM for itself may take all registers; beside others, what is left.
  return with.threads <= SmResources::kThreads && with.blocks <= SmResources::kBlocks &&
         with.shared <= SmResources::kShared &&
         (blocks == 0 || with.registers <= SmResources::kRegisters);
}

void GpuSimulator::Sm::add(const LaunchShape& shape, int blocks_more) {
  int of_block = static_cast<int>(shape.block.x);
  int of_thread = static_cast<int>(std::min(registers_per_thread(shape.block.x), 64u));
  threads += blocks_more * of_block;
  registers += blocks_more * of_block * of_thread;
  blocks += blocks_more;
  shared +=
      static_cast<std::size_t>(blocks_more) * (shape.shared_bytes + SmResources::kSharedReserved);
}

bool GpuSimulator::place_cluster(Launch& launch) {
  const LaunchShape& shape = launch.shape;
  std::vector<Sm>& sms = sms_[static_cast<std::size_t>(launch.device)];
  std::vector<int> chosen;
  // From the emptiest on, as hardware spreads blocks.
  std::vector<int> order(sms.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return sms[static_cast<std::size_t>(a)].blocks < sms[static_cast<std::size_t>(b)].blocks;
  });
  for (int i : order) {
    if (chosen.size() == shape.cluster) break;
    if (sms[static_cast<std::size_t>(i)].has_room(shape)) chosen.push_back(i);
  }
  if (chosen.size() < shape.cluster) return false;
  auto cluster = std::make_shared<Cluster>();
  for (int i : chosen) {
    sms[static_cast<std::size_t>(i)].add(shape, 1);
    auto block = std::make_unique<Block>();
    block->launch = &launch;
    block->index = static_cast<int>(launch.next_block++);
    block->sm = i;
    block->cluster = cluster;
    block->in_cluster = static_cast<unsigned>(cluster->blocks.size());
    block->live = shape.block.x;
    cluster->blocks.push_back(block.get());
    cluster->live_threads += static_cast<int>(shape.block.x);
    ++launch.live_blocks;
    waiting_blocks_.push_back(block.get());
    blocks_.push_back(std::move(block));
  }
  return true;
}

void GpuSimulator::begin(Block& block) {
  const LaunchShape& shape = block.launch->shape;
  block.shared_bytes = shape.shared_bytes;
  std::size_t bytes = (shape.shared_bytes + 2047) / 1024 * 1024;
  block.shared = static_cast<unsigned char*>(std::aligned_alloc(1024, bytes));
  std::memset(block.shared, 0xff, bytes);
  block.warps.resize((shape.block.x + 31) / 32);
  unsigned of_thread = registers_per_thread(shape.block.x);
  for (unsigned i = 0; i < shape.block.x; ++i) {
    auto thread = std::make_unique<Thread>();
    thread->thread = {i, 0, 0};
    thread->block = {static_cast<unsigned>(block.index), 0, 0};
    thread->block_dim = shape.block;
    thread->grid_dim = shape.grid;
    thread->shared = block.shared;
    thread->at = &block;
    thread->index = i;
    Thread* t = thread.get();
    thread->fiber = boost::context::fiber(
        std::allocator_arg, PooledStack(), [this, t](boost::context::fiber&& back) {
          scheduler_ = std::move(back);
          try {
            t->at->launch->entry(t->at->launch->argument_addresses.data());
            ended(*t);
          } catch (const Violation& e) {
            violation_ = e.what();
          }
          return std::move(scheduler_);
        });
    ++block.warps[i / 32].live;
    block.warps[i / 32].registers = of_thread;
    block.threads.push_back(std::move(thread));
  }
  hold_some_back(block);
  for (const std::unique_ptr<Thread>& t : block.threads) make_ready(*t);
}

// In some blocks a thread, a warp or everybody goes on only where others cannot: what they come too
// late for shows, which at random they hardly ever do (priorities of Burckhardt et al., ASPLOS
// 2010, section 3, with two of them).
void GpuSimulator::hold_some_back(Block& block) {
  if (draw(3) != 0) return;
  std::uint64_t size = block.threads.size();
  std::uint64_t first = draw(size), count = 1;
  switch (draw(4)) {
    case 0:
      break;
    case 1:
      first = 0;
      count = size;
      break;
    default:
      first = first / 32 * 32;
      count = std::min<std::uint64_t>(32, size - first);
  }
  for (std::uint64_t i = first; i < first + count; ++i) block.threads[i]->held_back = true;
}

void GpuSimulator::make_ready(Thread& thread) {
  bool held = thread.held_back && draw(256) != 0;
  (held ? held_back_ : ready_).push_back(&thread);
}

void GpuSimulator::resume(Thread& thread) {
  self_ = &thread;
  indices = &thread;
  thread.fiber = std::move(thread.fiber).resume();
  self_ = nullptr;
  Block& block = *thread.at;
  if (block.live == 0 && block.pending == 0 && violation_.empty()) retire(block);
}

void GpuSimulator::suspend() {
  Thread& own = *self_;
  scheduler_ = std::move(scheduler_).resume();
  self_ = &own;
  indices = &own;
}

void GpuSimulator::yield() {
  self_->polls = false;
  if (draw(4) != 0) return;
  make_ready(*self_);
  suspend();
}

void GpuSimulator::poll() {
  self_->polls = only_polled_ = true;
  polling_.push_back(self_);
  suspend();
}

void GpuSimulator::block_on(WaitList& list, const WaitFor& what) {
  Thread& own = *self_;
  own.state = Thread::State::kBlocked;
  own.waits_for = what;
  only_polled_ = own.polls && what.what == WaitFor::What::kWarp;
  list.push_back(&own);
  suspend();
}

void GpuSimulator::wake(WaitList& list) {
  for (Thread* t : list) {
    t->state = Thread::State::kReady;
    make_ready(*t);
  }
  list.clear();
}

void GpuSimulator::later(Block& block, std::function<void()> act) {
  ++block.pending;
  acts_.push_back({&block, std::move(act)});
}

void GpuSimulator::ended(Thread& thread) {
  thread.state = Thread::State::kDone;
  Block& block = *thread.at;
  Warp& warp = block.warps[thread.index / 32];
  --block.live;
  --warp.live;
  --block.cluster->live_threads;
  if (warp.arrived > 0) {
    throw Violation(
        fmt::format("{}: a thread ends where others of its warp wait for it", block.where()));
  }
  // Threads that have ended count as there.
  NamedBarrier& all = block.barriers[0];
  if (all.arrived > 0 && all.threads == 0 && all.arrived >= block.live) {
    all.arrived = 0;
    wake(all.waiting);
  }
  complete_if_due(*block.cluster);
}

void GpuSimulator::complete_if_due(Cluster& cluster) {
  if (cluster.arrived == 0 || cluster.arrived < cluster.live_threads) return;
  cluster.arrived = 0;
  ++cluster.phase;
  wake(cluster.waiting);
}

void GpuSimulator::retire(Block& block) {
  Launch& launch = *block.launch;
  if (!block.let_next_start) ++launch.letting;
  sms_[static_cast<std::size_t>(launch.device)][static_cast<std::size_t>(block.sm)].add(
      launch.shape, -1);
  std::free(block.shared);
  block.cluster->blocks[block.in_cluster] = nullptr;
  auto owned = std::find_if(blocks_.begin(), blocks_.end(),
                            [&](const std::unique_ptr<Block>& b) { return b.get() == &block; });
  blocks_.erase(owned);
  bool all_let = launch.letting == launch.shape.grid.x;
  if (all_let && launch.may_overlap) std::exchange(launch.may_overlap, nullptr)();
  if (--launch.live_blocks == 0 && launch.next_block == launch.shape.grid.x) {
    auto at = std::find_if(launches_.begin(), launches_.end(),
                           [&](const std::unique_ptr<Launch>& l) { return l.get() == &launch; });
    std::unique_ptr<Launch> ended = std::move(*at);
    launches_.erase(at);
    ended->done();
    wake(launch_waiters_);
  }
  place_blocks();
}

bool GpuSimulator::run() {
  bool moved = false;
  ready_.insert(ready_.end(), polling_.begin(), polling_.end());
  polling_.clear();
  bool streaks = draw(4) != 0;
  // However many poll, each gets to its next poll: who is held back goes on after that.
  const std::size_t slice = kSlice + kSwitchesToPoll * ready_.size();
  for (std::size_t i = 0; i < slice && violation_.empty(); ++i) {
    bool nothing_ready = ready_.empty();
    if (!acts_.empty() && (nothing_ready || draw(8) == 0)) {
      moved = true;
      do_one(acts_, [this](Act& act) { perform(act); });
    } else if (!waiting_blocks_.empty() && (nothing_ready || draw(64) == 0)) {
      moved = true;
      do_one(waiting_blocks_, [this](Block* block) { begin(*block); });
    } else if (!nothing_ready) {
      only_polled_ = false;
      resume(*next_ready(streaks));
      moved |= !only_polled_;
    } else if (!held_back_.empty()) {
      do_one(held_back_, [&](Thread* thread) {
        moved |= !thread->polls;
        ready_.push_back(thread);
      });
    } else {
      break;
    }
  }
  idle_rounds_ = moved ? 0 : idle_rounds_ + 1;
  bool nobody_polls = !moved && polling_.empty() && ready_.empty();
  if (idle_rounds_ == kRoundsToDeadlock || nobody_polls) check_for_deadlock();
  if (!violation_.empty()) {
    drop_everything();
    throw Violation(std::exchange(violation_, ""));
  }
  timer_ns();
  working_ = moved && !launches_.empty();
  return moved;
}

// Any of them; in streaks mostly the one that could go on last, so that some threads get far ahead
// of others.
Thread* GpuSimulator::next_ready(bool streaks) {
  std::size_t at = streaks && draw(16) != 0 ? ready_.size() - 1 : draw(ready_.size());
  Thread* thread = ready_[at];
  ready_[at] = ready_.back();
  ready_.pop_back();
  return thread;
}

// Any of them.
template <class T, class F>
void GpuSimulator::do_one(std::vector<T>& list, F act) {
  std::size_t at = draw(list.size());
  T chosen = std::move(list[at]);
  list[at] = std::move(list.back());
  list.pop_back();
  act(chosen);
}

void GpuSimulator::perform(Act& act) {
  try {
    act.act();
  } catch (const Violation& e) {
    violation_ = e.what();
    return;
  }
  --act.block->pending;
  if (act.block->live == 0 && act.block->pending == 0) retire(*act.block);
}

std::string GpuSimulator::state_of(const Block& block) const {
  std::map<std::string, std::vector<unsigned>> by_wait;
  for (const std::unique_ptr<Thread>& t : block.threads) {
    if (t->state == Thread::State::kBlocked) by_wait[t->waits_for.to_string()].push_back(t->index);
  }
  std::string out = block.where() + ":";
  for (const auto& [what, threads] : by_wait) {
    out += fmt::format("\n  {} threads from {} to {}: {}", threads.size(), threads.front(),
                       threads.back(), what);
  }
  return out;
}

// A cluster all of whose threads wait for each other.
void GpuSimulator::check_for_deadlock() {
  std::set<const Thread*> for_launches(launch_waiters_.begin(), launch_waiters_.end());
  for (const std::unique_ptr<Block>& first : blocks_) {
    bool stuck = first->in_cluster == 0, some = false;
    for (const Block* block : first->cluster->blocks) {
      if (block == nullptr) continue;
      stuck &= block->pending == 0 && block->threads.size() == block->launch->shape.block.x;
      for (const std::unique_ptr<Thread>& t : block->threads) {
        if (t->state == Thread::State::kDone) continue;
        some = true;
        stuck &= t->state == Thread::State::kBlocked && !for_launches.contains(t.get());
      }
    }
    if (!stuck || !some) continue;
    violation_ = "threads wait for each other for ever";
    for (const Block* block : first->cluster->blocks) {
      if (block != nullptr) violation_ += "\n" + state_of(*block);
    }
    return;
  }
}

void GpuSimulator::drop_everything() {
  // Fibers that have not ended unwind their stacks here.
  ready_.clear();
  polling_.clear();
  held_back_.clear();
  acts_.clear();
  waiting_blocks_.clear();
  launch_waiters_.clear();
  for (const std::unique_ptr<Block>& block : blocks_) {
    for (const std::unique_ptr<Thread>& thread : block->threads) {
      thread->fiber = boost::context::fiber();
    }
    std::free(block->shared);
  }
  blocks_.clear();
  for (std::vector<Sm>& of_device : sms_) of_device.assign(of_device.size(), Sm{});
  std::vector<std::unique_ptr<Launch>> launches = std::move(launches_);
  launches_.clear();
  for (const std::unique_ptr<Launch>& launch : launches) launch->done();
}

}  // namespace stretto::simulator
