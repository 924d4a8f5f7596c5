#include "stretto/executor/controlled.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/executor/machine.h"
#include "stretto/executor/race_detector.h"
#include "stretto/executor/translate.h"

namespace stretto {
namespace {

// Passes what one rank's machine does to the detector.
class RankObserver final : public Observer {
 public:
  RankObserver(RaceDetector& detector, const RankMachine& machine, int first_agent)
      : detector_(detector), machine_(machine), first_agent_(first_agent) {}

  void on_access(const AgentState& a, const Inst& inst, TouchKind kind, const Box& box) override {
    detector_.access(id(a), make(a, inst.op->loc, kind, box));
  }
  void on_notify(const AgentState& a, int rank, std::int64_t counter) override {
    detector_.notify(id(a), rank, counter);
  }
  void on_acquire(const AgentState& a, std::int64_t counter) override {
    detector_.acquire(id(a), machine_.rank(), counter);
  }
  void on_packet(const AgentState& a, const Inst& inst, bool is_store, const Box& box) override {
    if (is_store) {
      detector_.store_packet(id(a), make(a, inst.op->loc, TouchKind::kWrite, box));
    } else {
      detector_.load_packet(id(a), make(a, inst.op->loc, TouchKind::kRead, box));
    }
  }
  void on_worker_edge(const AgentState& a, bool is_release, const void* object) override {
    if (is_release) {
      detector_.release(id(a), object);
    } else {
      detector_.acquire(id(a), object);
    }
  }

  int id(const AgentState& a) const { return first_agent_ + a.id; }

 private:
  RaceDetector::Access make(const AgentState& a, const SourceLoc& loc, TouchKind kind,
                            const Box& box) const {
    auto slots = static_cast<std::uint64_t>(
        machine_.program().tensors[static_cast<std::size_t>(box.tensor)].num_slots);
    return {.kind = kind,
            .box = box,
            .slot = static_cast<int>(machine_.epoch() % slots),
            .where = {.rank = machine_.rank(),
                      .role = machine_.role_name(a),
                      .tile = a.tile,
                      .epoch = machine_.epoch(),
                      .loc = loc}};
  }

  RaceDetector& detector_;
  const RankMachine& machine_;
  int first_agent_;
};

enum class Phase : std::uint8_t { kBetween, kStart, kRoles, kEnd, kFinished };

struct RankRun {
  std::unique_ptr<RankMachine> machine;
  std::unique_ptr<RankObserver> observer;
  int caller = 0;  // agent id
  int launches = 0;
  Phase phase = Phase::kBetween;
  std::vector<AgentState*> live;
};

class Run final : private ControlledMemory {
 public:
  Run(std::shared_ptr<const Program> program, const Quotas& quotas,
      const ControlledOptions& options);
  ControlledResult run();

 private:
  struct Candidate {
    ScheduleChoice choice;
    AgentState* agent;  // null: the caller
  };

  std::byte* data(int rank, int tensor_idx) override {
    return storage_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor_idx)].get();
  }
  void allocate();
  void bind_slots(RankRun& rank);
  void collect();
  std::size_t choose();
  void step(const Candidate& candidate);
  void begin_launch(RankRun& rank);
  void advance(RankRun& rank);
  void caller_touches(RankRun& rank, TensorKind kind, TouchKind access);
  std::string describe_deadlock() const;

  std::shared_ptr<const Program> program_;
  const ControlledOptions& options_;
  std::vector<RankRun> ranks_;
  std::unique_ptr<RaceDetector> detector_;
  std::vector<std::vector<AlignedBytes>> storage_;    // [rank][tensor]
  std::vector<std::unique_ptr<SignalCounter[]>> counters_;  // [rank]
  std::vector<Candidate> candidates_;
  std::vector<ScheduleChoice> choices_;
  std::vector<std::int64_t> extents_;
  std::mt19937_64 random_;
  std::size_t turn_ = 0;
  ScheduleChoice last_;
};

Run::Run(std::shared_ptr<const Program> program, const Quotas& quotas,
         const ControlledOptions& options)
    : program_(std::move(program)),
      options_(options),
      extents_(options.extents.empty() ? extent_bounds(*program_) : options.extents),
      random_(options.seed) {
  int num_agents = 0;
  std::vector<int> first;
  for (int r = 0; r < program_->world_size; ++r) {
    RankRun rank;
    rank.machine = std::make_unique<RankMachine>(translate(program_, r), quotas);
    first.push_back(num_agents);
    num_agents += static_cast<int>(rank.machine->agents().size());
    rank.caller = num_agents++;
    if (options_.launches <= 0) rank.phase = Phase::kFinished;
    ranks_.push_back(std::move(rank));
  }
  detector_ = std::make_unique<RaceDetector>(*program_, num_agents);
  allocate();
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankRun& rank = ranks_[r];
    rank.observer = std::make_unique<RankObserver>(*detector_, *rank.machine, first[r]);
    rank.machine->observer = rank.observer.get();
    rank.machine->compute = options_.compute;
    for (auto& counters : counters_) rank.machine->counters.push_back(counters.get());
  }
}

void Run::allocate() {
  for (RankRun& rank : ranks_) {
    std::vector<AlignedBytes> tensors;
    for (std::size_t i = 0; i < program_->tensors.size(); ++i) {
      const Tensor& t = program_->tensors[i];
      bool integer = t.dtype == DType::kI32 || t.dtype == DType::kI64;
      if (!options_.compute && !integer && !t.packet) {
        tensors.push_back(nullptr);
        continue;
      }
      std::size_t bytes = rank.machine->code().tensors[i].bytes;
      tensors.push_back(allocate_aligned(bytes));
      std::memset(tensors.back().get(), 0, bytes);
    }
    storage_.push_back(std::move(tensors));
    auto count = static_cast<std::size_t>(rank.machine->code().num_counters);
    counters_.push_back(std::make_unique<SignalCounter[]>(std::max<std::size_t>(count, 1)));
  }
}

void Run::bind_slots(RankRun& rank) {
  for (std::size_t i = 0; i < program_->tensors.size(); ++i) {
    const TensorCode& code = rank.machine->code().tensors[i];
    auto slots = static_cast<std::uint64_t>(program_->tensors[i].num_slots);
    std::size_t offset = rank.machine->epoch() % slots * code.slot_bytes;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      std::byte* base = storage_[r][i].get();
      rank.machine->tensors[i].at[r] = base == nullptr ? nullptr : base + offset;
    }
  }
}

void Run::caller_touches(RankRun& rank, TensorKind kind, TouchKind access) {
  for (std::size_t i = 0; i < program_->tensors.size(); ++i) {
    const Tensor& t = program_->tensors[i];
    if (t.kind != kind) continue;
    Observer::Box box{.tensor = static_cast<int>(i), .rank = rank.machine->rank()};
    for (std::int64_t size : rank.machine->code().tensors[i].shape) box.hi[box.num_dims++] = size;
    detector_->access(rank.caller, {.kind = access,
                                    .box = box,
                                    .where = {.rank = rank.machine->rank(),
                                              .role = "the caller",
                                              .epoch = static_cast<std::uint64_t>(rank.launches),
                                              .loc = t.loc}});
  }
}

void Run::begin_launch(RankRun& rank) {
  if (options_.before_launch) options_.before_launch(rank.machine->rank(), rank.launches, *this);
  caller_touches(rank, TensorKind::kInput, TouchKind::kWrite);
  auto launch = static_cast<std::size_t>(rank.launches);
  const auto& in_turn = options_.extents_in_turn;
  rank.machine->begin_launch(in_turn.empty() ? extents_ : in_turn[launch % in_turn.size()], launch);
  bind_slots(rank);
  AgentState& start = rank.machine->on_start();
  detector_->order(rank.caller, rank.observer->id(start));
  rank.machine->start(start);
  rank.phase = Phase::kStart;
  rank.live.clear();
  if (!start.done) rank.live.push_back(&start);
  advance(rank);
}

// Goes from phase to phase while nothing is left to do in one.
void Run::advance(RankRun& rank) {
  RankMachine& m = *rank.machine;
  auto id = [&](const AgentState& a) { return rank.observer->id(a); };
  while (rank.live.empty()) {
    if (rank.phase == Phase::kStart) {
      rank.phase = Phase::kRoles;
      for (AgentState& a : m.role_agents()) detector_->order(id(m.on_start()), id(a));
      m.start_roles(rank.live);
    } else if (rank.phase == Phase::kRoles) {
      rank.phase = Phase::kEnd;
      for (AgentState& a : m.role_agents()) detector_->order(id(a), id(m.on_end()));
      m.start(m.on_end());
      if (!m.on_end().done) rank.live.push_back(&m.on_end());
    } else {
      detector_->order(id(m.on_end()), rank.caller);
      caller_touches(rank, TensorKind::kOutput, TouchKind::kRead);
      if (options_.after_launch) options_.after_launch(m.rank(), rank.launches, *this);
      rank.phase = ++rank.launches < options_.launches ? Phase::kBetween : Phase::kFinished;
      return;
    }
  }
}

void Run::collect() {
  candidates_.clear();
  for (RankRun& rank : ranks_) {
    int r = rank.machine->rank();
    auto epoch = static_cast<std::uint64_t>(rank.launches);
    if (rank.phase == Phase::kBetween) {
      candidates_.push_back({{.rank = r, .epoch = epoch}, nullptr});
    } else if (rank.phase != Phase::kFinished) {
      for (AgentState* a : rank.live) {
        if (!rank.machine->ready(*a)) continue;
        candidates_.push_back(
            {{.rank = r, .role = a->role_idx, .worker = a->worker, .agent = a->id, .epoch = epoch},
             a});
      }
    }
  }
}

std::size_t Run::choose() {
  std::size_t n = candidates_.size();
  if (options_.choose) {
    choices_.clear();
    for (const Candidate& c : candidates_) choices_.push_back(c.choice);
    std::size_t chosen = options_.choose(choices_);
    if (chosen >= n) throw UserError(fmt::format("schedule chose {} of {} agents", chosen, n));
    return chosen;
  }
  auto find = [&](auto&& wanted) {
    auto it = std::find_if(candidates_.begin(), candidates_.end(), wanted);
    return it == candidates_.end() ? n : static_cast<std::size_t>(it - candidates_.begin());
  };
  switch (options_.policy) {
    case SchedulePolicy::kRoundRobin:
      return turn_++ % n;
    case SchedulePolicy::kRunAhead: {
      std::size_t same = find([&](const Candidate& c) {
        return c.choice.rank == last_.rank && c.choice.agent == last_.agent &&
               c.choice.worker == last_.worker;
      });
      return same < n ? same : random_() % n;
    }
    case SchedulePolicy::kDelayRank: {
      std::vector<std::size_t> others;
      for (std::size_t i = 0; i < n; ++i) {
        if (candidates_[i].choice.rank != options_.delayed_rank) others.push_back(i);
      }
      return others.empty() ? random_() % n : others[random_() % others.size()];
    }
    case SchedulePolicy::kRandom:
      break;
  }
  return random_() % n;
}

void Run::step(const Candidate& candidate) {
  RankRun& rank = ranks_[static_cast<std::size_t>(candidate.choice.rank)];
  last_ = candidate.choice;
  if (candidate.agent == nullptr) return begin_launch(rank);
  if (rank.machine->run(*candidate.agent) != RankMachine::Outcome::kDone) return;
  std::erase(rank.live, candidate.agent);
  advance(rank);
}

std::string Run::describe_deadlock() const {
  std::string text = "deadlock, every agent waits:";
  for (const RankRun& rank : ranks_) {
    if (rank.phase == Phase::kFinished) continue;
    for (const AgentState* a : rank.live) {
      const SourceLoc& loc = a->code->insts[static_cast<std::size_t>(a->pc)].op->loc;
      text += fmt::format("\n  launch {}, {}:{}: {}", rank.launches, loc.file, loc.line,
                          rank.machine->describe_wait(*a).to_string());
    }
  }
  return text;
}

ControlledResult Run::run() {
  ControlledResult result;
  for (;;) {
    bool finished = std::all_of(ranks_.begin(), ranks_.end(),
                                [](const RankRun& rank) { return rank.phase == Phase::kFinished; });
    if (finished) return result;
    collect();
    if (candidates_.empty()) {
      result.deadlock = true;
      result.report = describe_deadlock();
      return result;
    }
    step(candidates_[choose()]);
    ++result.steps;
    if (detector_->found()) {
      result.race = true;
      result.report = detector_->report();
      return result;
    }
  }
}

}  // namespace

ControlledResult run_controlled(std::shared_ptr<const Program> program, const Quotas& quotas,
                                const ControlledOptions& options) {
  return Run(std::move(program), quotas, options).run();
}

}  // namespace stretto
