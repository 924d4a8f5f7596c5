// Instance: storage, epoch and the round-robin over one rank's agents.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/executor/executor.h"
#include "stretto/executor/machine.h"
#include "stretto/executor/translate.h"

namespace stretto {
namespace {

// NaN in every float dtype, -1 in every integer.
constexpr int kPoison = 0xff;

ProgramCode checked_translate(std::shared_ptr<const Program> program, const Rank& rank) {
  if (program->world_size != rank.size()) {
    throw UserError(fmt::format("{}: written for {} ranks, the world has {}", program->name,
                                program->world_size, rank.size()));
  }
  return translate(std::move(program), rank.index());
}

}  // namespace

struct Instance::State {
  State(Rank& r, const Proved& p, const InstanceOptions& opts)
      : rank(r),
        proved(p),
        machine(checked_translate(p.lowered().shared(), r), p.quotas()),
        options(opts),
        rooms(machine.program().tensors.size(), std::numeric_limits<std::size_t>::max()) {}

  // Storage of one buffer tensor.
  struct Buffer {
    int tensor = -1;
    SymmetricBuffer symmetric;  // id -1 where local
    AlignedBytes local;
    bool is_symmetric() const { return symmetric.id >= 0; }
    std::byte* on(int r, int own) const {
      if (is_symmetric()) return symmetric.at[static_cast<std::size_t>(r)];
      return r == own ? local.get() : nullptr;
    }
  };

  void allocate();
  void bind_buffers(std::uint64_t slot_epoch, bool all);
  void bind_arguments(const Args& args);
  void bind_argument(std::size_t idx, const TensorArg& arg);
  void poison();
  void prepare_recording();
  void drive();
  bool run(AgentState& agent);  // whether it is done
  void idle(int polls, std::int64_t* idle_since);
  void recover();

  Rank& rank;
  Proved proved;
  RankMachine machine;
  InstanceOptions options;
  std::vector<Buffer> buffers;
  std::vector<std::size_t> rooms;  // by tensor: bytes of what was given, where it is symmetric
  SignalBlock signals;
  std::vector<AgentState*> live;
  std::uint64_t epoch = 0;
  SyncHook hook;
  int recover_token = -1;
  bool names_interned = false;
};

void Instance::State::allocate() {
  const Program& p = machine.program();
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const Tensor& t = p.tensors[i];
    if (t.kind != TensorKind::kBuffer) continue;
    Buffer buffer{.tensor = static_cast<int>(i)};
    std::size_t bytes = machine.code().tensors[i].bytes;
    if (t.space == Space::kSymmetric) {
      // In bytes, since packets and slots are not elements of the tensor's dtype.
      buffer.symmetric =
          rank.allocate(p.name + "." + t.name, DType::kU8, std::max<std::size_t>(bytes, 1));
      if (options.poison && !t.packet) {
        std::memset(buffer.symmetric.on<std::byte>(rank.index()), kPoison, bytes);
      }
    } else {
      buffer.local = allocate_aligned(bytes);
      std::memset(buffer.local.get(), 0, bytes);
    }
    buffers.push_back(std::move(buffer));
  }
  // Collective, and after the poisoning: no peer has launched yet.
  auto count = static_cast<std::size_t>(std::max<std::int64_t>(machine.code().num_counters, 1));
  signals = rank.allocate_signals(p.name, count);
  machine.counters = signals.at;
  machine.waker = &rank;
  bind_buffers(0, true);
}

// Buffers with one slot keep their address over launches.
void Instance::State::bind_buffers(std::uint64_t slot_epoch, bool all) {
  for (const Buffer& buffer : buffers) {
    auto idx = static_cast<std::size_t>(buffer.tensor);
    auto num_slots = static_cast<std::uint64_t>(machine.program().tensors[idx].num_slots);
    if (num_slots == 1 && !all) continue;
    std::size_t offset = slot_epoch % num_slots * machine.code().tensors[idx].slot_bytes;
    std::vector<std::byte*>& at = machine.tensors[idx].at;
    for (std::size_t r = 0; r < at.size(); ++r) {
      std::byte* base = buffer.on(static_cast<int>(r), rank.index());
      at[r] = base == nullptr ? nullptr : base + offset;
    }
  }
}

void Instance::State::bind_arguments(const Args& args) {
  const Program& p = machine.program();
  if (args.tensors.size() != p.tensors.size()) {
    throw UserError(fmt::format("{}: {} tensor arguments given, the program has {} tensors", p.name,
                                args.tensors.size(), p.tensors.size()));
  }
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    if (p.tensors[i].kind != TensorKind::kBuffer) bind_argument(i, args.tensors[i]);
  }
}

void Instance::State::bind_argument(std::size_t idx, const TensorArg& arg) {
  const Program& p = machine.program();
  const Tensor& t = p.tensors[idx];
  const TensorCode& code = machine.code().tensors[idx];
  std::vector<std::byte*>& at = machine.tensors[idx].at;
  auto fail = [&](const std::string& what) {
    throw UserError(fmt::format("{}: tensor '{}': {}", p.name, t.name, what));
  };
  if (t.space == Space::kSymmetric) {
    const SymmetricBuffer* buffer = arg.symmetric;
    if (buffer == nullptr) fail("is symmetric, pass a SymmetricBuffer");
    const std::span<const std::int64_t> shape(machine.tensors[idx].shape);
    const std::size_t bytes = bytes_at(t.dtype, shape.first(code.shape.size()), code.shape);
    if (arg.offset_bytes > buffer->bytes || bytes > buffer->bytes - arg.offset_bytes) {
      fail(fmt::format("needs {} bytes at offset {}, the buffer '{}' has {}", bytes,
                       arg.offset_bytes, buffer->name, buffer->bytes));
    }
    rooms[idx] = buffer->bytes - arg.offset_bytes;
    for (std::size_t r = 0; r < at.size(); ++r) at[r] = buffer->at[r] + arg.offset_bytes;
  } else {
    const bool is_here = is_given(p, static_cast<int>(idx), rank.index());
    if (is_here && arg.data == nullptr && code.bytes > 0) fail("no data given");
    at[static_cast<std::size_t>(rank.index())] =
        is_here ? static_cast<std::byte*>(arg.data) : nullptr;
  }
  std::byte* own = at[static_cast<std::size_t>(rank.index())];
  if (reinterpret_cast<std::uintptr_t>(own) % size_bytes(t.dtype) != 0) fail("is not aligned");
}

void Instance::State::poison() {
  const Program& p = machine.program();
  auto own = static_cast<std::size_t>(rank.index());
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const Tensor& t = p.tensors[i];
    bool local_buffer = t.kind == TensorKind::kBuffer && t.space == Space::kLocal && !t.packet;
    if (t.kind != TensorKind::kOutput && !local_buffer) continue;
    const std::size_t bytes = std::min(machine.code().tensors[i].slot_bytes, rooms[i]);
    if (bytes > 0 && is_given(p, static_cast<int>(i), rank.index()))
      std::memset(machine.tensors[i].at[own], kPoison, bytes);
  }
}

void Instance::State::prepare_recording() {
  Recorder& recorder = rank.recorder();
  machine.recorder = recorder.enabled() ? &recorder : nullptr;
  if (machine.recorder == nullptr || names_interned) return;
  names_interned = true;
  const Program& p = machine.program();
  machine.program_name = recorder.intern(p.name);
  for (const Role& role : p.roles) machine.role_names.push_back(recorder.intern(role.name));
  for (const Signal& signal : p.signals) {
    machine.signal_names.push_back(recorder.intern(signal.name));
  }
}

void Instance::State::drive() {
  int polls = 0;
  std::int64_t idle_since = 0;
  while (!live.empty()) {
    bool progressed = false;
    std::size_t kept = 0;
    for (AgentState* agent : live) {
      bool done = false;
      if (machine.ready(*agent)) {
        progressed = true;
        done = run(*agent);
      }
      if (!done) live[kept++] = agent;
    }
    live.resize(kept);
    if (progressed) {
      polls = 0;
      idle_since = 0;
    } else {
      idle(polls++, &idle_since);
    }
  }
}

// A table that breaks its contract ends the other ranks, too.
bool Instance::State::run(AgentState& agent) {
  try {
    return machine.run(agent) == RankMachine::Outcome::kDone;
  } catch (const Fault& broken) {
    rank.raise_fault(broken.record());
  }
}

// The deadline counts from the moment since which nothing on this rank could go on: a wait that is
// old because its own rank was busy computing is no fault.
void Instance::State::idle(int polls, std::int64_t* idle_since) {
  if (rank.aborted()) rank.throw_fault();
  std::int64_t now = Recorder::now_ns();
  if (*idle_since == 0) *idle_since = now;
  if (now - *idle_since > std::chrono::nanoseconds(rank.timeout()).count()) {
    // Who waits for a slot or at a barrier waits for an agent of its own rank, which says more.
    auto order_of = [](const AgentState* agent) {
      bool outside = agent->park == Park::kSignal || agent->park == Park::kPacket;
      return std::pair{!outside, agent->parked_ns};
    };
    const AgentState* oldest = *std::min_element(
        live.begin(), live.end(),
        [&](const AgentState* a, const AgentState* b) { return order_of(a) < order_of(b); });
    FaultRecord record = machine.describe_wait(*oldest);
    record.reason = "deadline";
    rank.raise_fault(std::move(record));
  }
  rank.pause(polls);
}

// Epochs restart, so a packet of the former life could carry a tag that a new launch waits for.
void Instance::State::recover() {
  epoch = 0;
  for (const Buffer& buffer : buffers) {
    auto idx = static_cast<std::size_t>(buffer.tensor);
    if (!machine.program().tensors[idx].packet) continue;
    std::memset(buffer.on(rank.index(), rank.index()), 0, machine.code().tensors[idx].bytes);
  }
}

Instance::Instance(Rank& rank, const Proved& program, const InstanceOptions& options)
    : state_(std::make_unique<State>(rank, program, options)) {
  state_->allocate();
  state_->live.reserve(state_->machine.agents().size());
  state_->recover_token = rank.on_recover([state = state_.get()] { state->recover(); });
  if (options.sync_hook) set_sync_hook(options.sync_hook);
}

Instance::~Instance() {
  state_->rank.remove_on_recover(state_->recover_token);
  for (const State::Buffer& buffer : state_->buffers) {
    if (buffer.is_symmetric()) state_->rank.release(buffer.symmetric);
  }
  state_->rank.release(state_->signals);
}

void Instance::launch(const Args& args, std::span<const std::int64_t> extents) {
  State& s = *state_;
  if (s.rank.aborted()) s.rank.throw_fault();
  s.proved.require_covers(extents);
  s.machine.begin_launch(extents, s.epoch);
  s.bind_arguments(args);
  s.bind_buffers(s.epoch, false);
  s.prepare_recording();
  if (s.options.poison) s.poison();
  std::int64_t begin_ns = s.machine.recorder != nullptr ? Recorder::now_ns() : 0;
  auto run_alone = [&](AgentState& agent) {
    s.live.clear();
    s.machine.start(agent);
    if (!agent.done) s.live.push_back(&agent);
    s.drive();
  };
  run_alone(s.machine.on_start());
  s.live.clear();
  s.machine.start_roles(s.live);
  s.drive();
  run_alone(s.machine.on_end());
  if (s.machine.recorder != nullptr) {
    s.machine.recorder->add(Span{.kind = SpanKind::kLaunch,
                                 .rank = s.rank.index(),
                                 .program = s.machine.program_name,
                                 .epoch = static_cast<std::int64_t>(s.epoch),
                                 .begin_ns = begin_ns,
                                 .end_ns = Recorder::now_ns()});
  }
  ++s.epoch;
}

const Program& Instance::program() const { return state_->machine.program(); }
std::uint64_t Instance::epoch() const { return state_->epoch; }

void Instance::set_sync_hook(SyncHook hook) {
  state_->hook = std::move(hook);
  state_->machine.sync_hook = state_->hook ? &state_->hook : nullptr;
}

}  // namespace stretto
