#include "stretto/proof/expand_syncs.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

void collect_views(const Block& block, std::map<int, int>& views) {
  for (const Op& op : block) {
    if (op.code == OpCode::kTranspose && op.result != op.operands[0]) {
      views[op.result] = op.operands[0];
    }
    for (const Block& body : op.bodies) collect_views(body, views);
  }
}

std::vector<int> views_of(const Block& block) {
  std::map<int, int> views;
  collect_views(block, views);
  std::vector<int> out;
  if (views.empty()) return out;
  for (int reg = 0; reg <= views.rbegin()->first; ++reg) {
    int lies = reg;
    for (auto view = views.find(lies); view != views.end(); view = views.find(lies)) {
      lies = view->second;
    }
    out.push_back(lies);
  }
  return out;
}

}  // namespace

SyncExpander::SyncExpander(ExpandState& state, bool by_units) : state_(state), by_units_(by_units) {
  for (std::size_t s = 0; s < state.program.signals.size(); ++s) {
    first_of_signal_.push_back(static_cast<int>(state.graph.counters.size()));
    for (int rank = 0; rank < state.program.world_size; ++rank) {
      for (std::int64_t c = 0; c < state.program.signals[s].num_channels; ++c) {
        add_counter({.rank = rank, .symbol = static_cast<int>(s), .channel = c});
      }
    }
  }
}

int SyncExpander::add_counter(const Counter& counter) {
  state_.graph.counters.push_back(counter);
  state_.graph.quota.push_back(0);
  return static_cast<int>(state_.graph.counters.size()) - 1;
}

void SyncExpander::start_agent() {
  held_.clear();
  dots_.clear();
  unit_ = -1;
}

void SyncExpander::start_worker(int role, int worker) {
  role_ = &state_.program.roles[at(role)];
  worker_ = worker;
  pipes_.assign(role_->pipes.size(), {});
  ring_of_ = rings_of(*role_);
  rings_.clear();
  phases_.clear();
  units_.clear();
  in_order_ = true;
  first_counter_ = static_cast<int>(state_.graph.counters.size());
  Counter counter{.rank = state_.rank, .role = role, .worker = worker};
  for (std::size_t p = 0; p < role_->pipes.size(); ++p) {
    counter.symbol = static_cast<int>(p);
    counter.kind = CounterKind::kPipeFull;
    add_counter(counter);
    counter.kind = CounterKind::kPipeEmpty;
    add_counter(counter);
  }
  for (std::size_t b = 0; b < role_->barriers.size(); ++b) {
    counter.symbol = static_cast<int>(b);
    counter.kind = CounterKind::kBarrier;
    add_counter(counter);
  }
  bool shares = std::any_of(ring_of_.begin(), ring_of_.end(), [](int ring) { return ring >= 0; });
  for (std::size_t p = 0; shares && p < role_->pipes.size(); ++p) {
    counter.symbol = static_cast<int>(p);
    counter.kind = CounterKind::kPipeTurn;
    add_counter(counter);
  }
}

bool SyncExpander::even() const {
  return std::all_of(pipes_.begin(), pipes_.end(), [](const PipeUse& use) {
    return use.puts == use.gets && use.gets == use.releases;
  });
}

void SyncExpander::finish_worker() const {
  for (std::size_t p = 0; p < pipes_.size(); ++p) {
    const PipeUse& use = pipes_[p];
    if (use.puts == use.gets && use.gets == use.releases) {
      bool alike = use.put_choices == use.get_choices && use.get_choices == use.release_choices;
      if (!alike || !in_order_) throw DependsOnTable{"which slots of a pipe an agent passes"};
      continue;
    }
    throw Rejected(
        fmt::format("{}:{}: pipe '{}' of role '{}' (rank {}, worker {}): {} puts, {} gets, {} "
                    "releases per launch; they must be equal",
                    role_->loc.file, role_->loc.line, role_->pipes[p].name, role_->name,
                    state_.rank, worker_, use.puts, use.gets, use.releases));
  }
  for (std::size_t b = 0; b < role_->barriers.size(); ++b) {
    std::int64_t arrivals = state_.graph.quota[at(first_counter_) + 2 * pipes_.size() + b];
    if (arrivals % role_->barriers[b].num_arrivals == 0) continue;
    throw Rejected(fmt::format(
        "{}:{}: barrier '{}' of role '{}' (rank {}, worker {}): {} arrivals per launch, not a "
        "multiple of {}",
        role_->loc.file, role_->loc.line, role_->barriers[b].name, role_->name, state_.rank,
        worker_, arrivals, role_->barriers[b].num_arrivals));
  }
}

void SyncExpander::add(const Op& op, SyncKind kind, int counter, std::int64_t amount) {
  add(op, {.kind = kind, .counter = counter, .amount = amount, .choice = state_.choice()});
}

void SyncExpander::add(const Op& op, Sync sync) {
  sync.tile = state_.tile;
  sync.op = &op;
  state_.recorder.add_sync(sync);
}

void SyncExpander::signal(const Op& op) {
  bool is_wait = op.code == OpCode::kWait;
  if (state_.may_depth > 0 && (!is_wait || state_.untold_depth > 0)) {
    throw DependsOnTable{is_wait ? "whether a signal is waited for" : "who is notified"};
  }
  const Signal& s = state_.program.signals[at(op.symbol)];
  EvalScope& scope = state_.scope;
  std::int64_t channel = scope.value(op.exprs[0], "channel of a signal");
  if (channel < 0 || channel >= s.num_channels) {
    state_.reject(op, fmt::format("channel {} of '{}' does not exist, there are channels 0 to {}",
                                  channel, s.name, s.num_channels - 1));
  }
  std::int64_t rank = is_wait ? state_.rank : scope.value(op.exprs[1], "rank that is notified");
  if (rank < 0 || rank >= state_.program.world_size) {
    state_.reject(op, fmt::format("rank {} does not exist, there are ranks 0 to {}", rank,
                                  state_.program.world_size - 1));
  }
  std::int64_t amount = scope.value(op.exprs[is_wait ? 1 : 2], "amount of a signal");
  if (!is_wait && amount < 0) state_.reject(op, fmt::format("amount {} is negative", amount));
  if (!is_wait && amount == 0) return;
  if (is_wait) amount = std::max<std::int64_t>(amount, 0);
  add(op, is_wait ? SyncKind::kWait : SyncKind::kNotify,
      first_of_signal_[at(op.symbol)] + static_cast<int>(rank * s.num_channels + channel), amount);
}

int SyncExpander::new_meeting() {
  return add_counter({.kind = CounterKind::kMeeting,
                      .rank = state_.rank,
                      .role = static_cast<int>(role_ - state_.program.roles.data()),
                      .worker = worker_});
}

void SyncExpander::meet(const Op& op, std::int64_t amount, int counter) {
  if (counter < 0) counter = meeting_;
  add(op, {.kind = SyncKind::kNotify, .counter = counter, .amount = 1});
  add(op, {.kind = SyncKind::kWait, .counter = counter, .amount = amount, .choice = no_choice()});
}

void SyncExpander::forget(const std::set<int>& registers) {
  for (int reg : registers) {
    for (std::size_t p = 0; p < pipes_.size(); ++p) held_.set(reg, {static_cast<int>(p), 0});
  }
}

bool SyncExpander::moved(int pipe) const {
  const PipeUse& use = pipes_[at(pipe)];
  return use.puts + use.gets + use.releases > 0;
}

SyncExpander::PipeUse& SyncExpander::pipe_use(const Op& op) {
  if (state_.untold_depth > 0) throw DependsOnTable{"whether a pipe moves"};
  return pipes_[at(op.symbol)];
}

void SyncExpander::note_choice(std::vector<int>& choices) {
  if (state_.deciding.any) choices.push_back(by_units_ ? unit() : state_.choice());
  if (state_.region == nullptr || !state_.region->masks_open()) return;
  auto number = static_cast<int>(cases_.size());
  choices.push_back(cases_.try_emplace(key_of(state_.there), number).first->second);
}

int SyncExpander::unit() {
  auto next = static_cast<int>(units_.size());
  int here = units_.try_emplace({state_.tile, state_.choice()}, next).first->second;
  in_order_ &= here >= unit_;
  return unit_ = here;
}

// Of an event that nobody may rely on.
int SyncExpander::no_choice() const {
  TableFact fact{.kind = FactKind::kCondition, .entry = {}, .condition = "a slot is free"};
  return state_.graph.choices->choice({state_.graph.choices->fact(fact)});
}

void SyncExpander::begin_put(const Op& op) {
  PipeUse& use = pipe_use(op);
  note_choice(use.put_choices);
  use.some |= state_.choice() != TableChoices::kAlways;
  ++use.puts;
  use.put_by = state_.recorder.agent().agent;
  if (int ring = ring_of_[at(op.symbol)]; ring >= 0) return free_shared(op, ring);
  std::int64_t released = use.puts - role_->pipes[at(op.symbol)].num_slots;
  if (released <= 0) return;
  // Where slots are passed for some tables only, the one that must be free may be an earlier one
  // than counting all of them says (table_choices.h).
  int choice = use.some ? no_choice() : TableChoices::kAlways;
  add(op,
      {.kind = SyncKind::kWait, .counter = empty(op.symbol), .amount = released, .choice = choice});
}

// A put into a ring takes the slot of the one that came as many puts before as there are slots.
void SyncExpander::free_shared(const Op& op, int ring) {
  if (state_.choice() != TableChoices::kAlways) {
    throw DependsOnTable{"which slot of a ring that pipes share is filled"};
  }
  std::vector<Turn>& turns = rings_[ring];
  PipeUse& use = pipes_[at(op.symbol)];
  if (turns.empty() || turns.back().pipe != op.symbol) {
    turns.push_back({.pipe = op.symbol, .first = use.puts, .count = 0, .number = ++use.turns});
  }
  ++turns.back().count;
  std::int64_t back = role_->pipes[at(op.symbol)].num_slots;
  for (auto t = turns.rbegin(); t != turns.rend(); ++t) {
    if (back < t->count) {
      std::int64_t freed = t->first + t->count - 1 - back;
      return add(op, SyncKind::kWait, empty(t->pipe), freed);
    }
    back -= t->count;
  }
}

// The turn that the pipe's next get is of. Producers stand above consumers: all puts are known.
SyncExpander::Turn& SyncExpander::turn_of_get(int pipe, int ring) {
  std::vector<Turn>& turns = rings_[ring];
  PipeUse& use = pipes_[at(pipe)];
  auto holds = [&](const Turn& t) { return t.pipe == pipe && use.gets < t.first + t.count; };
  while (use.turn < turns.size() && !holds(turns[use.turn])) ++use.turn;
  if (use.turn == turns.size()) {
    throw Rejected(fmt::format("{}:{}: pipe '{}' of role '{}': more gets than puts",
                               role_->loc.file, role_->loc.line, role_->pipes[at(pipe)].name,
                               role_->name));
  }
  return turns[use.turn];
}

std::int64_t SyncExpander::passed(int pipe) const {
  const PipeUse& use = pipes_[at(pipe)];
  bool puts = use.puts == 0 || use.put_by == state_.recorder.agent().agent;
  return puts ? use.puts : use.gets;
}

void SyncExpander::end_put(const Op& op) { add(op, SyncKind::kNotify, full(op.symbol), 1); }

void SyncExpander::pipe_fill(const Op& op) {
  begin_put(op);
  end_put(op);
}

void SyncExpander::pipe_get(const Op& op) {
  PipeUse& use = pipe_use(op);
  note_choice(use.get_choices);
  std::int64_t gets = ++use.gets;
  int ring = ring_of_[at(op.symbol)];
  const Turn* turn = ring < 0 ? nullptr : &turn_of_get(op.symbol, ring);
  if (turn != nullptr && turn->first == gets && use.turn > 0) {
    const Turn& before = rings_[ring][use.turn - 1];
    add(op, SyncKind::kWait, this->turn(before.pipe), before.number);
  }
  add(op, SyncKind::kWait, full(op.symbol), gets);
  held_.set(op.result, {op.symbol, gets});
  bool passes = turn != nullptr && gets == turn->first + turn->count - 1 &&
                use.turn + 1 < rings_[ring].size();
  if (passes) add(op, SyncKind::kNotify, this->turn(op.symbol), 1);
}

void SyncExpander::pipe_release(const Op& op) {
  PipeUse& use = pipe_use(op);
  note_choice(use.release_choices);
  const std::string& name = role_->pipes[at(op.symbol)].name;
  if (++use.releases > use.gets) {
    state_.reject(op, fmt::format("releases a slot of pipe '{}' that was not got", name));
  }
  for (const auto& slots : dots_) {
    if (std::find(slots.begin(), slots.end(), Slot{op.symbol, use.releases}) != slots.end()) {
      state_.reject(
          op,
          fmt::format("releases a slot of pipe '{}' that a pending dot_async still reads", name));
    }
  }
  add(op, SyncKind::kNotify, empty(op.symbol), 1);
}

// A transposed slot is read where it lies.
int SyncExpander::viewed(int reg) {
  const Agent& agent = role_->agents[at(state_.recorder.agent().agent)];
  if (viewing_ != &agent) {
    auto [it, is_new] = views_.try_emplace(&agent);
    if (is_new) it->second = views_of(agent.body);
    viewing_ = &agent;
    views_here_ = &it->second;
  }
  return at(reg) < views_here_->size() ? (*views_here_)[at(reg)] : reg;
}

void SyncExpander::HeldSlots::set(int reg, Slot slot) {
  if (at(reg) >= slots_.size()) slots_.resize(at(reg) + 1, kNone);
  num_held_ += slots_[at(reg)].first < 0 ? 1 : 0;
  slots_[at(reg)] = slot;
}
void SyncExpander::HeldSlots::erase(int reg) {
  if (find(reg) == nullptr) return;
  slots_[at(reg)] = kNone;
  --num_held_;
}
void SyncExpander::HeldSlots::clear() {
  if (num_held_ > 0) std::ranges::fill(slots_, kNone);
  num_held_ = 0;
}

void SyncExpander::read_slot(const Op& op, int reg) {
  const Slot* held = held_.find(reg);
  if (held == nullptr) return;
  const auto& [pipe, ordinal] = *held;
  if (ordinal > pipes_[at(pipe)].releases) return;
  state_.reject(op, fmt::format("reads a slot of pipe '{}' that was released before",
                                role_->pipes[at(pipe)].name));
}

void SyncExpander::use_registers(const Op& op) {
  for (int reg : op.operands) read_slot(op, reg);
  if (op.result >= 0) held_.erase(op.result);
}

bool SyncExpander::hold_slots(const std::set<int>& registers) const {
  return std::any_of(registers.begin(), registers.end(),
                     [&](int reg) { return held_.find(reg) != nullptr; });
}

void SyncExpander::async_dot(const Op& op) {
  std::vector<Slot> slots;
  for (int reg : op.operands) {
    read_slot(op, viewed(reg));
    const Slot* held = held_.find(viewed(reg));
    if (held != nullptr) slots.push_back(*held);
  }
  dots_.push_back(std::move(slots));
}

void SyncExpander::await(const Op& op) {
  auto keep = static_cast<std::size_t>(state_.scope.value(op.exprs[0], "dots to await"));
  while (dots_.size() > keep) dots_.pop_front();
}

void SyncExpander::barrier(const Op& op) {
  if (state_.may_depth > 0) throw DependsOnTable{"whether a barrier is reached"};
  int counter = first_counter_ + 2 * static_cast<int>(pipes_.size()) + op.symbol;
  add(op, SyncKind::kNotify, counter, 1);
  std::int64_t phase = ++phases_[{state_.recorder.agent().agent, op.symbol}];
  if (op.code == OpCode::kArrive) return;
  add(op, SyncKind::kWait, counter, phase * role_->barriers[at(op.symbol)].num_arrivals);
}

}  // namespace stretto
