// Waiting and its opposite. A wait that fails leaves the agent parked at the same instruction with
// a condition that is cheap to re-check; the clock is read only then.
#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/executor/machine.h"

namespace stretto {

bool WorkerState::takes(int pipe) {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.ring < 0) return p.put - p.released < p.slots.size();
  RingState& ring = rings[static_cast<std::size_t>(p.ring)];
  auto released = [&](const RingState::Put& put) {
    return pipes[static_cast<std::size_t>(put.pipe)].released >= put.number;
  };
  while (!ring.held.empty() && released(ring.held.front())) ring.held.pop_front();
  return ring.held.size() < ring.num_slots;
}

bool WorkerState::gives(int pipe) const {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.got == p.put) return false;
  return p.ring < 0 || rings[static_cast<std::size_t>(p.ring)].queued.front().pipe == pipe;
}

void WorkerState::note_put(int pipe) {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.ring < 0) return;
  RingState& ring = rings[static_cast<std::size_t>(p.ring)];
  ring.held.push_back({pipe, p.put});
  ring.queued.push_back({pipe, p.put});
}

void WorkerState::note_get(int pipe) {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.ring >= 0) rings[static_cast<std::size_t>(p.ring)].queued.pop_front();
}

bool RankMachine::execute_sync(AgentState& a, const Inst& inst) {
  switch (inst.code) {
    case OpCode::kNotify:
      notify(a, inst);
      return true;
    case OpCode::kWait:
      return wait(a, inst);
    case OpCode::kLoadPacket:
      return load_packet(a, inst);
    case OpCode::kPipePut:
      return pipe_put(a, inst);
    case OpCode::kPipeFill:
      return pipe_fill(a, inst);
    case OpCode::kPipeGet:
      return pipe_get(a, inst);
    case OpCode::kPipeRelease: {
      PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
      if (observer != nullptr) {
        observer->on_worker_edge(a, true, &pipe.slots[pipe.released % pipe.slots.size()]);
      }
      ++pipe.released;
      return true;
    }
    case OpCode::kArrive: {
      BarrierState& barrier = a.shared->barriers[static_cast<std::size_t>(inst.symbol)];
      if (observer != nullptr) observer->on_worker_edge(a, true, &barrier);
      ++barrier.arrivals;
      return true;
    }
    default:
      return barrier_sync(a, inst);
  }
}

bool RankMachine::park(AgentState& a, Park kind) {
  if (a.parked_ns == 0) a.parked_ns = Recorder::now_ns();
  a.park = kind;
  return false;
}

bool RankMachine::ready(const AgentState& a) const {
  switch (a.park) {
    case Park::kNone:
      return true;
    case Park::kSignal:
      return a.word->load(std::memory_order_relaxed) >= a.wanted;
    case Park::kPacket:
      return a.word->load(std::memory_order_relaxed) >> 32 == a.wanted;
    case Park::kPipeFull:
    case Park::kPipeEmpty: {
      const Inst& inst = a.code->insts[static_cast<std::size_t>(a.pc)];
      return a.park == Park::kPipeFull ? a.shared->takes(inst.symbol)
                                       : a.shared->gives(inst.symbol);
    }
    case Park::kBarrier: {
      const Inst& inst = a.code->insts[static_cast<std::size_t>(a.pc)];
      return a.shared->barriers[static_cast<std::size_t>(inst.symbol)].arrivals >= a.wanted;
    }
  }
  return true;
}

// The wait is over, or the instruction at pc is about to look again.
void RankMachine::unpark(AgentState& a, const Inst& inst) {
  if (recorder != nullptr && (a.park == Park::kSignal || a.park == Park::kPacket)) {
    bool signal = a.park == Park::kSignal;
    recorder->add(
        Span{.kind = SpanKind::kWait,
             .rank = rank(),
             .worker = a.worker,
             .program = program_name,
             .role = role_name(a),
             .detail = signal ? signal_names[static_cast<std::size_t>(inst.symbol)] : "packet",
             .tile = a.tile,
             .channel = signal ? a.channel : -1,
             .epoch = static_cast<std::int64_t>(epoch_),
             .begin_ns = a.parked_ns,
             .end_ns = Recorder::now_ns()});
  }
  a.parked_ns = 0;
}

void RankMachine::call_hook(const AgentState& a, bool is_wait) {
  (*sync_hook)({.rank = rank(),
                .role = a.role_idx,
                .worker = a.worker,
                .is_wait = is_wait,
                .epoch = epoch_});
}

bool RankMachine::wait(AgentState& a, const Inst& inst) {
  if (a.park == Park::kNone) {
    if (sync_hook != nullptr) call_hook(a, true);
    a.channel = expr(a, inst, 0);
    a.at_least = expr(a, inst, 1);
    const Signal& signal = program().signals[static_cast<std::size_t>(inst.symbol)];
    if (a.channel < 0 || a.channel >= signal.num_channels) {
      throw UserError(fmt::format("{}:{}: wait on '{}': channel {} of {}", inst.op->loc.file,
                                  inst.op->loc.line, signal.name, a.channel, signal.num_channels));
    }
    std::int64_t counter = code_.signal_base[static_cast<std::size_t>(inst.symbol)] + a.channel;
    a.wanted = epoch_ * quota_[static_cast<std::size_t>(counter)] +
               static_cast<std::uint64_t>(std::max<std::int64_t>(a.at_least, 0));
    a.word = &counters[static_cast<std::size_t>(rank())][counter].value;
  }
  if (a.word->load(std::memory_order_acquire) < a.wanted) return park(a, Park::kSignal);
  a.park = Park::kNone;
  if (observer != nullptr) {
    observer->on_acquire(a, code_.signal_base[static_cast<std::size_t>(inst.symbol)] + a.channel);
  }
  return true;
}

void RankMachine::wake(std::int64_t to) const {
  if (waker != nullptr && to != rank()) waker->notify_changed(static_cast<int>(to));
}

void RankMachine::notify(AgentState& a, const Inst& inst) {
  std::int64_t channel = expr(a, inst, 0), to = expr(a, inst, 1), amount = expr(a, inst, 2);
  const Signal& signal = program().signals[static_cast<std::size_t>(inst.symbol)];
  if (channel < 0 || channel >= signal.num_channels || to < 0 || to >= program().world_size ||
      amount < 0) {
    throw UserError(fmt::format("{}:{}: notify of '{}': channel {} of {}, rank {} of {}, amount {}",
                                inst.op->loc.file, inst.op->loc.line, signal.name, channel,
                                signal.num_channels, to, program().world_size, amount));
  }
  std::int64_t counter = code_.signal_base[static_cast<std::size_t>(inst.symbol)] + channel;
  if (recorder != nullptr) {
    recorder->add(NotifyMark{.from_rank = rank(),
                             .to_rank = static_cast<int>(to),
                             .worker = a.worker,
                             .program = program_name,
                             .role = role_name(a),
                             .signal = signal_names[static_cast<std::size_t>(inst.symbol)],
                             .channel = channel,
                             .epoch = static_cast<std::int64_t>(epoch_),
                             .time_ns = Recorder::now_ns()});
  }
  if (observer != nullptr) observer->on_notify(a, static_cast<int>(to), counter);
  counters[static_cast<std::size_t>(to)][counter].value.fetch_add(
      static_cast<std::uint64_t>(amount), std::memory_order_release);
  wake(to);
  if (sync_hook != nullptr) call_hook(a, false);
}

bool RankMachine::pipe_get(AgentState& a, const Inst& inst) {
  PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
  if (!a.shared->gives(inst.symbol)) return park(a, Park::kPipeEmpty);
  a.park = Park::kNone;
  Register& slot = pipe.slots[pipe.got++ % pipe.slots.size()];
  a.shared->note_get(inst.symbol);
  if (observer != nullptr) observer->on_worker_edge(a, false, &slot);
  a.regs[static_cast<std::size_t>(inst.result)].data = slot.data;
  return true;
}

bool RankMachine::barrier_sync(AgentState& a, const Inst& inst) {
  BarrierState& barrier = a.shared->barriers[static_cast<std::size_t>(inst.symbol)];
  if (a.park == Park::kNone) {
    auto parties = static_cast<std::uint64_t>(
        a.role->role->barriers[static_cast<std::size_t>(inst.symbol)].num_arrivals);
    a.wanted = (barrier.arrivals / parties + 1) * parties;
    if (observer != nullptr) observer->on_worker_edge(a, true, &barrier);
    ++barrier.arrivals;
  }
  if (barrier.arrivals < a.wanted) return park(a, Park::kBarrier);
  a.park = Park::kNone;
  if (observer != nullptr) observer->on_worker_edge(a, false, &barrier);
  return true;
}

FaultRecord RankMachine::describe_wait(const AgentState& a) const {
  const Inst& inst = a.code->insts[static_cast<std::size_t>(a.pc)];
  FaultRecord record{
      .program = program().name, .role = role_name(a), .rank = rank(), .tile = a.tile};
  switch (a.park) {
    case Park::kSignal: {
      std::int64_t counter = code_.signal_base[static_cast<std::size_t>(inst.symbol)] + a.channel;
      std::uint64_t base = epoch_ * quota_[static_cast<std::size_t>(counter)];
      record.signal = program().signals[static_cast<std::size_t>(inst.symbol)].name;
      record.channel = a.channel;
      record.expected = a.at_least;
      record.seen = static_cast<std::int64_t>(a.word->load(std::memory_order_relaxed) - base);
      if (inst.num_exprs > 2) {
        const ExprCode& from = a.code->exprs[static_cast<std::size_t>(inst.expr + 2)];
        if (from.present()) record.waited_for = static_cast<int>(from.eval(a.vars));
      }
      if (record.waited_for < 0) {
        record.waited_for = only_notifier(program(), rank(), inst.symbol, a.channel);
      }
      break;
    }
    case Park::kPacket: {
      const Region& region = *inst.op->region;
      record.signal =
          "packet of " + program().tensors[static_cast<std::size_t>(region.tensor)].name;
      record.expected = static_cast<std::int64_t>(a.wanted);
      record.seen = static_cast<std::int64_t>(a.word->load(std::memory_order_relaxed) >> 32);
      break;
    }
    case Park::kPipeFull:
    case Park::kPipeEmpty:
      record.signal = "pipe " + a.role->role->pipes[static_cast<std::size_t>(inst.symbol)].name;
      break;
    case Park::kBarrier:
      record.signal =
          "barrier " + a.role->role->barriers[static_cast<std::size_t>(inst.symbol)].name;
      break;
    case Park::kNone:
      break;
  }
  return record;
}

}  // namespace stretto
