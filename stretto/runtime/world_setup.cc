// How worlds of either kind come to be.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <thread>

#include "stretto/base/printable.h"
#include "stretto/runtime/processes/introduction.h"
#include "stretto/runtime/processes/mesh.h"
#include "stretto/runtime/world_state.h"

namespace stretto {
namespace {

static_assert(World::kMaxWorldSize == kMaxRanks);

constexpr std::uint64_t kControlId = ~std::uint64_t{0};  // of the control block's memory

const WorldOptions& checked(const WorldOptions& options) {
  if (options.size < 1 || options.size > World::kMaxWorldSize) {
    throw UserError(
        fmt::format("world size {}: need 1 to {} ranks", options.size, World::kMaxWorldSize));
  }
  if (options.timeout < std::chrono::milliseconds(1)) {
    throw UserError(fmt::format("world timeout {} ms: need at least 1", options.timeout.count()));
  }
  return options;
}

WorldOptions world_options(const ProcessWorldOptions& o) {
  WorldOptions options =
      checked({.size = o.meeting.size, .timeout = o.timeout, .record = o.record});
  if (o.meeting.rank < 0 || o.meeting.rank >= options.size) {
    throw UserError(
        fmt::format("rank {}: a world of {} has none such", o.meeting.rank, options.size));
  }
  bool needs_port = options.size > 1;
  if (needs_port && (o.meeting.port < 1 || o.meeting.port > 65535)) {
    throw UserError(fmt::format("port {}: need 1 to 65535", o.meeting.port));
  }
  return options;
}

void set_up_waiting(ControlBlock& control, int size, bool shared) {
  auto cores = static_cast<int>(std::thread::hardware_concurrency());
  for (IdleRank& rank : control.idle) {
    rank.set_crowded(size > cores);
    rank.set_shared(shared);
  }
}

// The lowest rank makes the block, the others map it.
Control share_control(const WorldOptions& options, int rank, Peers& peers,
                      const std::vector<int>& members, std::uint64_t id) {
  Deadline deadline = deadline_in(options.timeout);
  MemoryKey key{.world = id, .id = kControlId};
  auto lost = [&](int other) {
    int gone = peers.first_gone(members);
    peers.blame(members[World::State::index(gone < 0 ? other : gone)]);
    if (gone < 0) {
      return meeting_fault(rank, other, fmt::format("deadline: rank {} did not go on", other));
    }
    return meeting_fault(rank, gone,
                         fmt::format("rank {} ended while the world was being made", gone));
  };
  if (rank == 0) {
    SharedMemory memory = Control::make();
    set_up_waiting(*reinterpret_cast<ControlBlock*>(memory.data()), options.size, true);
    for (int r = 1; r < options.size; ++r) {
      if (!peers.send(members[World::State::index(r)], key, memory.fd(), deadline)) throw lost(r);
    }
    return Control(std::move(memory));
  }
  auto give_up = [&] { return peers.first_gone(members) >= 0; };
  Fd fd = peers.receive(members[0], key, deadline, give_up);
  if (!fd) throw lost(0);
  return Control(SharedMemory::open(std::move(fd), Control::kBytes));
}

// Different for every world that lives among the same peers.
std::uint64_t child_id(std::uint64_t parent, std::uint64_t call, std::uint64_t group) {
  std::uint64_t h = parent;
  for (std::uint64_t part : {call + 1, group}) {
    h = (h ^ part) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  return h;
}

std::vector<int> ranks_of(std::uint64_t group) {
  std::vector<int> ranks;
  for (int r = 0; r < kMaxRanks; ++r) {
    if ((group >> r & 1) != 0) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace

World::State::State(const WorldOptions& o)
    : options(checked(o)),
      local(index(o.size)),
      rendezvous(*control, o.size),
      heap(make_private_heap(o.size)),
      recorder(o.size),
      creator(::getpid()),
      in_call(index(o.size)) {
  std::iota(local.begin(), local.end(), 0);
  set_up_waiting(*control, o.size, false);
  recorder.set_enabled(o.record);
}

World::State::State(const WorldOptions& o, int rank, std::shared_ptr<Peers> p,
                    std::vector<int> peer_ranks, std::uint64_t world_id)
    : options(o),
      local{rank},
      peers(std::move(p)),
      members(std::move(peer_ranks)),
      id(world_id),
      control(share_control(o, rank, *peers, members, world_id)),
      rendezvous(*control, o.size),
      heap(make_shared_heap(peers, world_id, members)),
      recorder(o.size),
      creator(::getpid()),
      in_call(index(o.size)) {
  recorder.set_enabled(o.record);
  watch_peers();
}

World::State::~State() { finalise(); }

void World::State::watch_peers() {
  death_token_ = peers->watch([this](int peer, int pid) {
    auto member = std::find(members.begin(), members.end(), peer);
    if (member == members.end()) return;
    auto r = static_cast<int>(member - members.begin());
    record_death(r, fmt::format("process {} ended without leaving the world", pid));
  });
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) { make_ranks(); }

World::World(const WorldOptions& options) : World(std::make_unique<State>(options)) {}

World::World(const ProcessWorldOptions& options) {
  WorldOptions world = world_options(options);
  int rank = options.meeting.rank;
  auto peers = std::make_shared<Peers>(rank, connect_peers(options.meeting, options.timeout));
  std::vector<int> members(State::index(world.size));
  std::iota(members.begin(), members.end(), 0);
  state_ = std::make_unique<State>(world, rank, std::move(peers), std::move(members), 0);
  make_ranks();
  state_->meet(rank, {.kind = CollectiveKind::kConfirm, .name = "world"});
}

void World::make_ranks() {
  state_->ranks.resize(State::index(size()));
  for (int r : state_->local) state_->ranks[State::index(r)].reset(new Rank(this, r));
}

// In a child of fork() the state stays as it is: its threads did not come along, and its locks may
// be held by them.
World::~World() {
  if (state_ != nullptr && ::getpid() != state_->creator) static_cast<void>(state_.release());
}

std::shared_ptr<World> World::State::make_child(std::uint64_t call, std::uint64_t group, int rank) {
  if (!peers) return child_of_threads(call, group);
  WorldOptions child{.size = std::popcount(group), .timeout = options.timeout};
  std::vector<int> child_members;
  for (int r : ranks_of(group)) child_members.push_back(members[index(r)]);
  int own = std::popcount(group & ((std::uint64_t{1} << rank) - 1));
  std::shared_ptr<World> world(new World(std::make_unique<State>(
      child, own, peers, std::move(child_members), child_id(id, call, group))));
  std::lock_guard lock(mutex);
  std::erase_if(children, [](const Child& c) { return c.world.expired(); });
  children.push_back({.group = group, .world = world});
  return world;
}

// Made by the first member that comes, kept until the last has taken it.
std::shared_ptr<World> World::State::child_of_threads(std::uint64_t call, std::uint64_t group) {
  std::lock_guard lock(mutex);
  NewChild& made = new_children[{call, group}];
  if (made.world == nullptr) {
    made.world = std::make_shared<World>(
        WorldOptions{.size = std::popcount(group), .timeout = options.timeout});
    std::erase_if(children, [](const Child& c) { return c.world.expired(); });
    children.push_back({.group = group, .world = made.world});
  }
  std::shared_ptr<World> world = made.world;
  if (++made.num_taken == std::popcount(group)) new_children.erase({call, group});
  return world;
}

}  // namespace stretto
