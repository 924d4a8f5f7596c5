#include "stretto/proof/steady_runs.h"

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/open_loops.h"
#include "stretto/proof/steady_slots.h"

namespace stretto {
namespace {

bool passes_any(const Op& op) { return any_op({op}, passes_slot); }

void collect(const Block& block, std::vector<const Block*>& blocks) {
  blocks.push_back(&block);
  for (const Op& op : block) {
    for (const Block& body : op.bodies) collect(body, blocks);
  }
}

void note_registers(const Op& op, SteadyRun& run) {
  run.used.insert(op.operands.begin(), op.operands.end());
  if (op.code == OpCode::kPipeGet) run.got.insert(op.result);
  if (passes_slot(op)) run.pipes.insert(op.symbol);
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) note_registers(inner, run);
  }
}

}  // namespace

// --- how operations are written ---

bool SteadyRuns::is_steady_run(const Op& op, bool inner) {
  auto rule = [&](const Op& o, const std::set<int>&) -> std::optional<bool> {
    switch (o.code) {
      case OpCode::kLoop: {
        bool around = any_op(
            o.bodies[0], [](const Op& in) { return in.code == OpCode::kLoop && passes_any(in); });
        if (inner && around) return false;
        return std::nullopt;
      }
      case OpCode::kLoad:
      case OpCode::kPipePut:
      case OpCode::kDotAsync:  // of however many rows
        return true;
      default:
        return std::nullopt;
    }
  };
  return is_steady(op, {}, rule);
}

// In a loop that is folded (pipe_loops.h) there are none.
void SteadyRuns::find_runs(const Block& block, bool inner, Found& found) {
  for (std::size_t i = 0; i < block.size(); ++i) {
    bool begins = passes_any(block[i]) && is_steady_run(block[i], inner);
    if (!begins) {
      bool folded = block[i].code == OpCode::kLoop && LoopShapes().of(block[i]).piped;
      if (folded) continue;
      for (const Block& body : block[i].bodies) find_runs(body, inner, found);
      continue;
    }
    SteadyRun run{.block = &block, .begin = i, .end = i + 1, .pipes = {}, .used = {}, .got = {}};
    for (std::size_t k = i; k < block.size() && is_steady_run(block[k], inner); ++k) {
      if (passes_any(block[k]) || block[k].code == OpCode::kAwait) run.end = k + 1;
    }
    for (std::size_t k = i; k < run.end; ++k) note_registers(block[k], run);
    i = run.end - 1;
    found.runs[&block].push_back(std::move(run));
  }
}

// Slots that runs pass, and those that share memory with them, are passed in runs alone, and one
// agent puts all that share. Where pipes share slots, agents meet that pass each other slots; else
// all that have runs do.
bool SteadyRuns::fits(const Role& role, Found& found) {
  std::vector<int> rings = rings_of(role);
  bool shares = std::ranges::any_of(rings, [](int ring) { return ring >= 0; });
  std::set<int> in_runs, with_runs;
  std::vector<std::pair<int, const SteadyRun*>> all;
  for (std::size_t a = 0; a < role.agents.size(); ++a) {
    if (!keeps_sides(role.agents[a].body, static_cast<int>(a), role)) return false;
    std::vector<const Block*> blocks;
    collect(role.agents[a].body, blocks);
    for (const Block* block : blocks) {
      auto runs = found.runs.find(block);
      if (runs == found.runs.end()) continue;
      for (const SteadyRun& run : runs->second) {
        all.emplace_back(static_cast<int>(a), &run);
        in_runs.insert(run.pipes.begin(), run.pipes.end());
        with_runs.insert(static_cast<int>(a));
      }
    }
  }
  for (const Agent& agent : role.agents) {
    for (int pipe : slots_outside(agent.body, found)) {
      for (int other : in_runs) {
        bool shared = rings[at(pipe)] >= 0 && rings[at(pipe)] == rings[at(other)];
        if (other == pipe || shared) return false;
      }
    }
  }
  for (int pipe : in_runs) {
    for (int other : in_runs) {
      bool shared = rings[at(pipe)] >= 0 && rings[at(pipe)] == rings[at(other)];
      if (shared && role.pipes[at(pipe)].producer != role.pipes[at(other)].producer) return false;
    }
  }
  for (auto [agent, run] : all) {
    std::set<int> parties;
    for (int pipe : run->pipes) {
      const Pipe& p = role.pipes[at(pipe)];
      if (p.producer == p.consumer) return false;
      parties.insert({p.producer, p.consumer});
    }
    if (!shares) parties = with_runs;
    found.met[run] = std::move(parties);
  }
  return true;
}

std::set<int> SteadyRuns::slots_outside(const Block& block, const Found& found) {
  std::set<int> out;
  auto runs = found.runs.find(&block);
  for (std::size_t i = 0; i < block.size(); ++i) {
    bool within = runs != found.runs.end() && std::ranges::any_of(runs->second, [&](auto& run) {
                    return i >= run.begin && i < run.end;
                  });
    if (within) continue;
    if (passes_slot(block[i])) out.insert(block[i].symbol);
    for (const Block& body : block[i].bodies) out.merge(slots_outside(body, found));
  }
  return out;
}

const SteadyRuns::Found& SteadyRuns::found_in(const Role& role, bool inner) {
  auto [it, is_new] = found_.try_emplace({&role, inner});
  if (!is_new) return *it->second;
  it->second = std::make_unique<Found>();
  Found& found = *it->second;
  bool open = at_one_size_ || (state_.region != nullptr && state_.region->loops_open());
  for (const Agent& agent : role.agents) {
    if (open) find_runs(agent.body, inner, found);
  }
  if (!fits(role, found)) found = {};
  return found;
}

const SteadyRuns::Found* SteadyRuns::taken_in(const Role& role) {
  auto uneven = uneven_.find(static_cast<int>(&role - state_.program.roles.data()));
  int times = uneven == uneven_.end() ? 0 : uneven->second;
  if (times > 1) return nullptr;
  const Found& found = found_in(role, /*inner=*/times == 1);
  return found.runs.empty() ? nullptr : &found;
}

bool SteadyRuns::has_all_slots_of(const Role& role, const Block& block) {
  const Found* found = taken_in(role);
  return found != nullptr && slots_outside(block, *found).empty();
}

// --- the walk of a launch ---

void SteadyRuns::start_worker(const Role& role, bool others) {
  role_ = &role;
  agent_ = -1;
  first_agent_ = state_.graph.agents.size();
  visits_.clear();
  counters_.clear();
  // Counters are the same whichever runs are taken.
  for (bool inner : {false, true}) {
    for (const auto& [run, parties] : found_in(role, inner).met) counters_[parties] = -1;
  }
  for (auto& [parties, counter] : counters_) counter = syncs_.new_meeting();
  here_ = others ? nullptr : taken_in(role);
}

void SteadyRuns::start_agent() { ++agent_; }

const std::vector<SteadyRun>* SteadyRuns::of(const Block& block) const {
  if (here_ == nullptr || state_.recorder.agent().phase != Phase::kRoles) return nullptr;
  auto runs = here_->runs.find(&block);
  return runs == here_->runs.end() ? nullptr : &runs->second;
}

void SteadyRuns::enter(const SteadyRun& run) {
  const Op& op = (*run.block)[run.begin];
  for (int reg : run.used) {
    if (run.got.count(syncs_.viewed(reg)) == 0) syncs_.read_register(op, reg);
  }
}

void SteadyRuns::leave(const SteadyRun& run, std::size_t first_read) {
  if (state_.untold_depth > 0) throw DependsOnTable{"whether a pipe moves"};
  const std::set<int>& parties = here_->met.at(&run);
  std::vector<Visit>& visits = visits_[parties][agent_];
  Visit visit{.run = &run,
              .there = state_.there,
              .choice = state_.choice(),
              .tile = state_.tile,
              .pos = 0,
              .reads = {}};
  const AgentTrace& agent = state_.recorder.agent();
  for (std::size_t i = first_read; i < agent.accesses.size(); ++i) {
    const Op* op = agent.accesses[i].op;
    if (op->code == OpCode::kPipePut) visit.reads.push_back({op->symbol, i});
  }
  syncs_.meet((*run.block)[run.begin],
              static_cast<std::int64_t>(parties.size() * (visits.size() + 1)),
              counters_.at(parties));
  syncs_.forget(run.got);
  visit.pos = static_cast<int>(agent.syncs.size());
  visits.push_back(std::move(visit));
  state_.graph.has_open_loops = true;
}

// Where any of its conditions is not positive nothing happens.
std::vector<WherePositive> SteadyRuns::at_some_sizes(const Visit& visit) const {
  EvalScope::Clauses least;
  if (state_.region == nullptr) return {};
  for (const SizeForm& f : visit.there) {
    if (state_.region->least(f) < 1) least.push_back({f});
  }
  std::vector<WherePositive> out;
  for (const auto& clause : state_.scope.simplified(std::move(least))) {
    out.push_back(key_of(clause));
  }
  std::ranges::sort(out);
  return out;
}

// The facts of tables under which it happens.
std::vector<int> SteadyRuns::of_tables(const Visit& visit) const {
  std::vector<int> out;
  if (visit.choice == TableChoices::kAlways) return out;
  for (int fact : state_.graph.choices->facts_in(visit.choice)) {
    bool of_sizes = state_.graph.masks != nullptr && state_.graph.masks->has_fact(fact);
    if (!of_sizes) out.push_back(fact);
  }
  return out;
}

void SteadyRuns::refuse() const {
  throw UnevenRuns{static_cast<int>(role_ - state_.program.roles.data())};
}

void SteadyRuns::finish_worker() {
  if (here_ == nullptr) return;
  for (auto& [parties, of_agents] : visits_) {
    const std::vector<Visit>& first = of_agents[*parties.begin()];
    for (int a : parties) {
      if (of_agents[a].size() != first.size()) refuse();
    }
    for (std::size_t k = 0; k < first.size(); ++k) {
      std::vector<Part> parts;
      auto first_there = at_some_sizes(first[k]);
      for (int a : parties) {
        const Visit& visit = of_agents[a][k];
        bool alike = visit.tile == first[k].tile && of_tables(visit) == of_tables(first[k]) &&
                     at_some_sizes(visit) == first_there;
        if (!alike) refuse();
        parts.emplace_back(a, visit.run);
      }
      if (!come_through(parts)) refuse();
      for (int a : parties) {
        for (const SlotRead& read : of_agents[a][k].reads) {
          int consumer = role_->pipes[at(read.pipe)].consumer;
          state_.graph.agents[first_agent_ + at(a)].accesses[read.access].landed = {
              static_cast<int>(first_agent_) + consumer, of_agents[consumer][k].pos};
        }
      }
    }
  }
}

// Each by itself, from slots that are all free, to slots that are all free.
bool SteadyRuns::come_through(const std::vector<Part>& parts) {
  auto [it, is_new] = known_.try_emplace(parts, false);
  if (!is_new) return it->second;
  ExpandState state(state_.program, state_.graph.extents, nullptr, nullptr);
  SyncExpander syncs(state, /*by_units=*/false);
  auto role = static_cast<int>(role_ - state_.program.roles.data());
  syncs.start_worker(role, 0);
  try {
    for (auto [agent, run] : parts) {
      state.recorder.start_agent(
          {.rank = 0, .phase = Phase::kRoles, .role = role, .worker = 0, .agent = agent});
      syncs.start_agent();
      syncs.forget(run->got);  // of an earlier run
      SlotWalk walk(state, syncs, nullptr, 0);
      for (std::size_t i = run->begin; i < run->end; ++i) walk.walk((*run->block)[i]);
      if (syncs.awaits_dots()) return false;
    }
  } catch (const Rejected&) {  // said by those that walk every slot
    return false;
  }
  return it->second = syncs.even() && stretto::come_through(state.graph, 0);
}

}  // namespace stretto
