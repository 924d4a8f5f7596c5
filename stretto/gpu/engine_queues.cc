#include "stretto/gpu/engine_queues.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/gpu/engine_times.h"

namespace stretto {
namespace {

// Lists of steps kept per rank; a launch with other extents evaluates its own.
constexpr std::size_t kMostLists = 64;

}  // namespace

struct EngineQueues::Queue {
  explicit Queue(const cuda::Device& device) : stream(device), done(device) {}
  cuda::Stream stream;
  cuda::Event done;
};

struct EngineQueues::Rank {
  Rank(const cuda::Device& device, int rank, std::size_t num_marks, std::size_t num_bells)
      : times(device, rank),
        start(device),
        marks(device, 16 * std::max<std::size_t>(num_marks, 1)),
        words_for_peers(device, 8 * std::max<std::size_t>(num_marks, 1)),
        bells(device, 8 * std::max<std::size_t>(num_bells, 1)) {}

  EngineTimes times;
  cuda::Event start;
  std::vector<Queue> queues;
  cuda::DeviceMemory marks;            // quota and count of each mark
  cuda::DeviceMemory words_for_peers;  // as words_, for the counters of other ranks
  cuda::DeviceMemory bells;
  std::map<std::vector<std::int64_t>, std::shared_ptr<const Steps>> steps;  // by extents
};

namespace {

std::size_t most_marks(const LaunchPlan& launch) {
  std::size_t most = 1;
  for (const std::vector<EngineMark>& of_rank : launch.engines.marks) {
    most = std::max(most, of_rank.size());
  }
  return most;
}

}  // namespace

EngineQueues::EngineQueues(GpuWorld& world, const Program& program, const LaunchPlan& launch)
    : world_(world),
      program_(program),
      launch_(launch),
      words_(world.allocate(8 * most_marks(launch))) {
  for (int r : world.local_ranks()) {
    const std::vector<EngineMark>& marks = launch.engines.marks[static_cast<std::size_t>(r)];
    const cuda::Device& device = world.device(r);
    Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>(
        device, r, marks.size(), static_cast<std::size_t>(launch.engines.num_bells)));
    for (int q = 0; q < launch.engines.num_queues; ++q) rank.queues.emplace_back(device);
    std::vector<std::uint64_t> pairs;
    for (const EngineMark& m : marks) {
      pairs.push_back(static_cast<std::uint64_t>(m.quota));
      pairs.push_back(static_cast<std::uint64_t>(m.count));
    }
    if (pairs.empty()) continue;
    world.stream(r).upload(rank.marks.address(), pairs.data(), 8 * pairs.size());
    world.stream(r).synchronize();
  }
}

EngineQueues::~EngineQueues() = default;

CUdeviceptr EngineQueues::marks(int rank) const { return local(rank).marks.address(); }
CUdeviceptr EngineQueues::words(int rank) const {
  return words_.on[static_cast<std::size_t>((rank + 1) % world_.size())].address();
}
CUdeviceptr EngineQueues::words_for_peers(int rank) const {
  return local(rank).words_for_peers.address();
}
CUdeviceptr EngineQueues::bells(int rank) const { return local(rank).bells.address(); }
std::int64_t EngineQueues::num_marks(int rank) const {
  return static_cast<std::int64_t>(launch_.engines.marks[static_cast<std::size_t>(rank)].size());
}

void EngineQueues::begin(int rank, const cuda::Stream& main) const {
  local(rank).times.begin_launch(main);
  main.record(local(rank).start);
}

void EngineQueues::fork(int rank, const Steps& steps, const Addresses& at, Awaiting which) const {
  const Rank& own = local(rank);
  auto awaits_a_role = [&](const EngineStep& step) {
    return step.kind == EngineStep::Kind::kAwaitBell && step.bell < launch_.engines.first_gate_bell;
  };
  for (std::size_t q = 0; q < own.queues.size(); ++q) {
    bool roles = std::any_of(steps[q].begin(), steps[q].end(), awaits_a_role);
    if (roles != (which == Awaiting::kRoles)) continue;
    const Queue& queue = own.queues[q];
    queue.stream.wait(own.start);
    enqueue(steps[q], rank, at, queue.stream);
    queue.stream.record(queue.done);
  }
}

// Nodes that copy within a GPU wait for kernels that wait for them, and so, now and then, do those
// that fetch or signal their own rank (docs/decisions/0008-own-signals-come-from-peers.md).
std::string EngineQueues::refused_in_graphs(const Steps& steps, int rank) const {
  const std::vector<EngineMark>& marks = launch_.engines.marks[static_cast<std::size_t>(rank)];
  for (const std::vector<EngineStep>& queue : steps) {
    for (const EngineStep& step : queue) {
      bool copies_here = step.kind == EngineStep::Kind::kCopy && step.copy.to_rank == rank;
      bool signals_here = step.kind == EngineStep::Kind::kSignal &&
                          marks[static_cast<std::size_t>(step.mark)].rank == rank;
      if (!copies_here && !signals_here) continue;
      return fmt::format(
          "{}: its copy engines {} within rank {} or to it, which does not get on in graphs: let "
          "them send to other ranks, or SMs copy",
          program_.name, copies_here ? "copy" : "signal", rank);
    }
  }
  return {};
}

void EngineQueues::join(int rank, const cuda::Stream& main) const {
  for (const Queue& queue : local(rank).queues) main.wait(queue.done);
}

// Roles whose copies depend on scalars are not the engines', so only extents count.
std::shared_ptr<const EngineQueues::Steps> EngineQueues::steps(
    int rank, std::span<const std::int64_t> extents) {
  auto& known = local(rank).steps;
  std::vector<std::int64_t> key;
  std::size_t next = 0;
  for (const Var& v : program_.vars) {
    if (v.kind == VarKind::kExtent) key.push_back(extents[next]);
    next += v.kind == VarKind::kExtent || v.kind == VarKind::kScalar ? 1 : 0;
  }
  auto at = known.find(key);
  if (at != known.end()) return at->second;
  if (known.size() >= kMostLists) known.clear();
  auto steps = std::make_shared<const Steps>(
      engine_steps(program_, launch_.signal_offsets, launch_.engines, rank,
                   std::vector<std::int64_t>(extents.begin(), extents.end())));
  return known.emplace(std::move(key), std::move(steps)).first->second;
}

void EngineQueues::enqueue(const std::vector<EngineStep>& steps, int rank, const Addresses& at,
                           const cuda::Stream& stream) const {
  Rank& own = local(rank);
  for (const EngineStep& step : steps) {
    own.times.before(step, stream);
    switch (step.kind) {
      case EngineStep::Kind::kAwaitBell: {
        CUdeviceptr bell = own.bells.address() + 8 * static_cast<CUdeviceptr>(step.bell);
        try {
          stream.wait_value(bell, 1, cuda::WaitUntil::kEqual);
          stream.write_value(bell, 0);
        } catch (const DeviceError& e) {
          throw UserError(
              fmt::format("{}: its copy queues wait for the kernel, which the driver refuses here; "
                          "a graph cannot have such a launch where it cannot be captured ({})",
                          program_.name, e.what()));
        }
        break;
      }
      case EngineStep::Kind::kCopy: {
        const EngineCopy& c = step.copy;
        CUdeviceptr from =
            at.tensor(c.from_tensor, c.from_rank) + static_cast<CUdeviceptr>(c.from_offset);
        CUdeviceptr to = at.tensor(c.to_tensor, c.to_rank) + static_cast<CUdeviceptr>(c.to_offset);
        auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
        if (c.rows == 1) {
          stream.copy(to, from, size(c.row_bytes));
        } else {
          stream.copy_rows({.to = to,
                            .from = from,
                            .to_pitch = size(c.to_pitch),
                            .from_pitch = size(c.from_pitch),
                            .row_bytes = size(c.row_bytes),
                            .rows = size(c.rows)});
        }
        break;
      }
      case EngineStep::Kind::kSignal: {
        const EngineMark& m =
            launch_.engines
                .marks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step.mark)];
        CUdeviceptr counter = at.signals(m.rank) + 8 * static_cast<CUdeviceptr>(m.counter);
        CUdeviceptr from = m.rank == rank ? words(rank) : words_for_peers(rank);
        stream.copy(counter, from + 8 * static_cast<CUdeviceptr>(step.mark), 8);
        break;
      }
    }
    own.times.after(step, stream);
  }
}

void EngineQueues::set_recording(bool on, const std::vector<std::int64_t>& first_epochs) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = *ranks_[r];
    if (on && !rank.queues.empty()) {
      rank.times.begin(rank.queues.front().stream, first_epochs[r]);
    } else {
      rank.times.end();
    }
  }
}

std::int64_t EngineQueues::collect(Recorder& recorder) {
  std::int64_t error_ns = 0;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    error_ns = std::max(error_ns, rank->times.collect(program_, launch_, recorder));
  }
  return error_ns;
}

void EngineQueues::drain() const {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    for (const Queue& queue : rank->queues) queue.stream.synchronize();
  }
}

void EngineQueues::zero() {
  drain();
  for (int r : world_.local_ranks()) {
    const cuda::DeviceMemory& bells = local(r).bells;
    world_.stream(r).fill_bytes(bells.address(), 0, bells.bytes());
  }
}

}  // namespace stretto
