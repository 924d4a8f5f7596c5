#include "stretto/predict/event_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/predict/flow_pool.h"
#include "stretto/predict/link_state.h"
#include "stretto/predict/power.h"
#include "stretto/predict/tensor_turn.h"
#include "stretto/proof/instance_graph.h"

namespace stretto::predict {
namespace {

enum class EventKind : std::uint8_t { kResume, kWork, kSignal, kLoad };

struct Event {
  double time = 0;
  std::uint64_t serial = 0;  // first come, first served
  EventKind kind = EventKind::kResume;
  int index = 0;  // agent, counter or link
  std::int64_t amount = 0;
  std::uint64_t group = 0;  // kLoad
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : serial > other.serial;
  }
};

struct AgentState {
  std::size_t next = 0;
  bool is_done = false;
  double wait_begin = -1, tile_begin = 0;
  std::int64_t tile = -1;
  double slots_left = -1;  // of the current kGet; below 0: not begun
  double part = 0;         // slots of it in flight
};

enum class FlowKind : std::uint8_t { kWork, kPart, kLoad };
struct FlowOwner {
  FlowKind kind = FlowKind::kWork;
  int index = -1;  // agent or link
  std::uint64_t group = 0;
};

class EventLoop {
 public:
  // `clock`: of the SMs, over the highest.
  EventLoop(const Timetable& timetable, const RunOptions& options, double clock)
      : timetable_(timetable),
        options_(options),
        slower_(1 / clock - 1),
        pool_(capacity_at(clock, timetable), options.free_communication),
        agents_(timetable.agents.size()),
        links_(timetable.links.size()),
        rings_(timetable.links.size()),
        turns_(at(timetable.num_tensor_turns)),
        counts_(timetable.counters.size(), 0),
        waiters_(timetable.counters.size()),
        unfinished_(at(timetable.program->world_size), 0) {
    run_.agents.resize(timetable.agents.size());
  }

  Run run() {
    find_ranks();
    for (std::size_t rank = 0; rank < unfinished_.size(); ++rank) {
      post({.time = timetable_.launch, .kind = EventKind::kResume, .index = start_of_[rank]});
      run_.agents[at(start_of_[rank])].begin = timetable_.launch;
    }
    while (step()) {
    }
    if (num_ended_ < unfinished_.size()) throw Rejected(who_waits());
    return std::move(run_);
  }

 private:
  void find_ranks() {
    start_of_.resize(unfinished_.size());
    end_of_.resize(unfinished_.size());
    for (std::size_t a = 0; a < timetable_.agents.size(); ++a) {
      const TimetableAgent& agent = timetable_.agents[a];
      if (agent.stage == Stage::kStart) start_of_[at(agent.rank)] = static_cast<int>(a);
      if (agent.stage == Stage::kEnd) end_of_[at(agent.rank)] = static_cast<int>(a);
      if (agent.stage == Stage::kRoles) ++unfinished_[at(agent.rank)];
    }
  }

  bool step() {
    bool now = !events_.empty() && events_.top().time <= now_;
    FlowPool::Next flow = now ? FlowPool::Next{} : pool_.next(now_);
    if (events_.empty() && flow.id < 0) return false;
    if (flow.id >= 0 && (events_.empty() || flow.time < events_.top().time)) {
      now_ = flow.time;
      FlowOwner owner = owners_[at(flow.id)];
      pool_.cancel(flow.id, now_);
      flow_ended(owner);
      return true;
    }
    Event event = events_.top();
    events_.pop();
    now_ = event.time;
    switch (event.kind) {
      case EventKind::kResume:
        advance(event.index);
        break;
      case EventKind::kWork:
        start_work(event.index);
        break;
      case EventKind::kSignal:
        signal(event.index, event.amount);
        break;
      case EventKind::kLoad:
        start_load(event.index, event.group);
        break;
    }
    return true;
  }

  void post(Event event) {
    event.serial = ++serial_;
    events_.push(event);
  }

  const Step& current(int agent) const {
    return timetable_.agents[at(agent)].steps[agents_[at(agent)].next];
  }
  const Work& work(const Step& step) const { return timetable_.works[at(step.work)]; }
  double own(const Work& w) const {
    return (options_.free_communication ? w.own_local : w.own) + w.compute * slower_;
  }
  double latency(const Work& w) const {
    return options_.free_communication ? w.latency - w.remote_latency : w.latency;
  }

  // Runs an agent until it has to wait for time, a signal or a slot.
  void advance(int agent) {
    AgentState& state = agents_[at(agent)];
    const std::vector<Step>& steps = timetable_.agents[at(agent)].steps;
    while (state.next < steps.size()) {
      if (!execute(agent, steps[state.next])) return;
      ++state.next;
    }
    finish(agent);
  }

  // False: the agent is called again when it may go on; the step is then done if it was work.
  bool execute(int agent, const Step& step) {
    switch (step.kind) {
      case StepKind::kTile:
        end_tile(agent);
        agents_[at(agent)].tile = step.tile;
        agents_[at(agent)].tile_begin = now_;
        return true;
      case StepKind::kWait:
        return wait(agent, step);
      case StepKind::kNotify:
        return notify(agent, step);
      case StepKind::kWork: {
        double delay = latency(work(step));
        if (delay == 0) return start_work(agent), false;
        post({.time = now_ + delay, .kind = EventKind::kWork, .index = agent});
        return false;
      }
      case StepKind::kPut:
        return put(agent, step);
      case StepKind::kGet:
        return get(agent, step);
    }
    return true;
  }

  void start_flow(double own, const FlowPool::Part* parts, int num_parts, const FlowOwner& owner,
                  int* id = nullptr) {
    constexpr double kShortest = 1e-12;  // a flow of no length has no rate
    int flow = pool_.start(std::max(own, kShortest), parts, num_parts, now_);
    if (owners_.size() <= at(flow)) owners_.resize(at(flow) + 1);
    owners_[at(flow)] = owner;
    if (id != nullptr) *id = flow;
  }

  void start_work(int agent) {
    const Work& w = work(current(agent));
    FlowPool::Part part{&w, 1};
    start_flow(own(w), &part, 1, {FlowKind::kWork, agent});
  }

  void flow_ended(const FlowOwner& owner) {
    switch (owner.kind) {
      case FlowKind::kWork:
        ++agents_[at(owner.index)].next;
        return advance(owner.index);
      case FlowKind::kPart:
        return part_ended(owner.index);
      case FlowKind::kLoad:
        return load_ended(owner.index, owner.group);
    }
  }

  // --- signals ---

  void begin_wait(int agent) {
    if (agents_[at(agent)].wait_begin < 0) agents_[at(agent)].wait_begin = now_;
  }
  void end_wait(int agent, const Step* waited) {
    AgentState& state = agents_[at(agent)];
    if (state.wait_begin < 0) return;
    run_.agents[at(agent)].waited += now_ - state.wait_begin;
    if (options_.record && waited != nullptr && now_ > state.wait_begin) {
      run_.spans.push_back(
          {agent, state.tile, waited->op, waited->counter, state.wait_begin, now_});
    }
    state.wait_begin = -1;
  }

  bool wait(int agent, const Step& step) {
    if (counts_[at(step.counter)] >= step.amount) {
      end_wait(agent, &step);
      return true;
    }
    begin_wait(agent);
    waiters_[at(step.counter)].push_back(agent);
    return false;
  }

  // The first of several notifies waits for the agent's writes.
  bool notify(int agent, const Step& step) {
    AgentState& state = agents_[at(agent)];
    const std::vector<Step>& steps = timetable_.agents[at(agent)].steps;
    bool is_first = state.next == 0 || steps[state.next - 1].kind != StepKind::kNotify;
    bool is_packet = step.op->code == OpCode::kStorePacket;
    double cost = is_first && !is_packet ? step.cost : 0;
    double delay = step.is_remote && options_.free_communication ? 0 : step.delay;
    post({.time = now_ + cost + delay,
          .kind = EventKind::kSignal,
          .index = step.counter,
          .amount = step.amount});
    if (options_.record && !is_packet) {
      run_.notifies.push_back({agent, step.op, step.counter, now_ + cost});
    }
    if (cost == 0) return true;
    ++state.next;
    post({.time = now_ + cost, .kind = EventKind::kResume, .index = agent});
    return false;
  }

  void signal(int counter, std::int64_t amount) {
    counts_[at(counter)] += amount;
    std::vector<int> woken;
    std::erase_if(waiters_[at(counter)], [&](int agent) {
      if (current(agent).amount > counts_[at(counter)]) return false;
      woken.push_back(agent);
      return true;
    });
    for (int agent : woken) advance(agent);
  }

  // --- pipes ---

  // The producer goes on when all of its slots but those that the pipe holds have been taken.
  bool put(int agent, const Step& step) {
    RingState& ring = ring_of(step.link);
    double capacity = timetable_.links[at(step.link)].num_slots;
    if (!ring.producer_has_offered) {
      if (ring.outstanding > capacity) return park_producer(agent, ring);
      offer(step, ring, capacity);
    }
    ring.producer_has_offered = ring.outstanding > capacity;
    return ring.producer_has_offered ? park_producer(agent, ring) : true;
  }

  RingState& ring_of(int link) { return rings_[at(timetable_.links[at(link)].ring)]; }

  bool park_producer(int agent, RingState& ring) {
    begin_wait(agent);
    ring.producer = agent;
    return false;
  }

  void offer(const Step& step, RingState& ring, double capacity) {
    const Work& w = work(step);
    auto count = static_cast<double>(step.amount);
    Group group{.serial = ++serial_, .work = &w, .count = count, .left = count};
    // A consumer that still holds all slots gives them back one by one while these are loaded.
    group.ahead = std::min(count, capacity);
    ring.outstanding += count;
    links_[at(step.link)].groups.push_back(group);
    post({.time = now_ + latency(w),
          .kind = EventKind::kLoad,
          .index = step.link,
          .group = group.serial});
  }

  Group* find_group(int link, std::uint64_t serial) {
    for (Group& g : links_[at(link)].groups) {
      if (g.serial == serial) return &g;
    }
    return nullptr;
  }

  // Loads the first slot, for which a consumer may wait, then the others that the pipe holds.
  void start_load(int link, std::uint64_t serial) {
    Group* group = find_group(link, serial);
    if (group == nullptr) return;
    group->flow_slots = group->loaded == 0 ? 1 : group->ahead - group->loaded;
    FlowPool::Part part{group->work, group->flow_slots / group->count};
    start_flow(own(*group->work) * part.share, &part, 1, {FlowKind::kLoad, link, serial},
               &group->flow);
  }

  void load_ended(int link, std::uint64_t serial) {
    Group* group = find_group(link, serial);
    group->flow = -1;
    group->loaded += group->flow_slots;
    if (group->loaded < group->ahead) start_load(link, serial);
    wake_consumer(links_[at(link)]);
  }

  void wake_consumer(LinkState& link) {
    int agent = std::exchange(link.consumer, -1);
    if (agent >= 0) advance(agent);
  }

  // Takes slots group by group; each part of the step's work runs together with the loads that are
  // still to be done.
  bool get(int agent, const Step& step) {
    AgentState& state = agents_[at(agent)];
    LinkState& link = links_[at(step.link)];
    if (state.slots_left < 0) state.slots_left = static_cast<double>(step.amount);
    if (state.slots_left == 0) {
      state.slots_left = -1;
      release_turn(agent);
      return true;
    }
    if (link.groups.empty() || link.groups.front().loaded == 0) {
      release_turn(agent);
      begin_wait(agent);
      link.consumer = agent;
      return false;
    }
    if (!take_turn(agent, work(step))) {
      begin_wait(agent);
      return false;
    }
    end_wait(agent, nullptr);
    start_part(agent, step, link);
    return false;
  }

  void start_part(int agent, const Step& step, LinkState& link) {
    AgentState& state = agents_[at(agent)];
    Group& group = link.groups.front();
    double capacity = timetable_.links[at(step.link)].num_slots;
    if (group.flow >= 0) {
      group.loaded += group.flow_slots * (1 - pool_.cancel(group.flow, now_));
      group.flow = -1;
    }
    double slots = std::min(state.slots_left, group.left);
    // Up to where the producer is free again; the rest of the slots is loaded by then.
    double excess = ring_of(step.link).outstanding - capacity;
    if (excess > 0) slots = std::min(slots, excess);
    double loads = std::max(std::min(group.left, slots + capacity) - group.loaded, 0.0);
    const Work& w = work(step);
    FlowPool::Part parts[2] = {{&w, slots / static_cast<double>(step.amount)},
                               {group.work, loads / group.count}};
    group.loaded += loads - slots;
    group.left -= slots;
    state.part = slots;
    start_flow(std::max(own(w) * parts[0].share, own(*group.work) * parts[1].share), parts, 2,
               {FlowKind::kPart, agent});
  }

  void part_ended(int agent) {
    AgentState& state = agents_[at(agent)];
    const Step& step = current(agent);
    LinkState& link = links_[at(step.link)];
    RingState& ring = ring_of(step.link);
    state.slots_left -= state.part;
    ring.outstanding -= state.part;
    if (link.groups.front().left == 0) link.groups.pop_front();
    double capacity = timetable_.links[at(step.link)].num_slots;
    if (ring.producer >= 0 && ring.outstanding <= capacity) {
      int producer = std::exchange(ring.producer, -1);
      end_wait(producer, nullptr);
      advance(producer);
    }
    advance(agent);
  }

  bool take_turn(int agent, const Work& w) {
    int turn = timetable_.agents[at(agent)].tensor_turn;
    return turn < 0 || !w.uses_tensor || turns_[at(turn)].take(agent);
  }

  void release_turn(int agent) {
    int turn = timetable_.agents[at(agent)].tensor_turn;
    int next = turn < 0 ? -1 : turns_[at(turn)].release(agent);
    if (next >= 0) post({.time = now_, .kind = EventKind::kResume, .index = next});
  }

  // --- ends ---

  void end_tile(int agent) {
    AgentState& state = agents_[at(agent)];
    if (options_.record && state.tile >= 0) {
      run_.spans.push_back({agent, state.tile, nullptr, -1, state.tile_begin, now_});
    }
  }

  void finish(int agent) {
    AgentState& state = agents_[at(agent)];
    if (state.is_done) return;
    state.is_done = true;
    end_tile(agent);
    run_.agents[at(agent)].end = now_;
    const TimetableAgent& planned = timetable_.agents[at(agent)];
    int& left = unfinished_[at(planned.rank)];
    if (planned.stage == Stage::kStart) {
      if (left == 0) return begin(end_of_[at(planned.rank)]);
      for (std::size_t a = at(end_of_[at(planned.rank)]) + 1;
           a < timetable_.agents.size() && timetable_.agents[a].stage == Stage::kRoles; ++a) {
        begin(static_cast<int>(a));
      }
    } else if (planned.stage == Stage::kRoles) {
      if (--left == 0) begin(end_of_[at(planned.rank)]);
    } else {
      ++num_ended_;
      run_.seconds = std::max(run_.seconds, now_);
    }
  }

  void begin(int agent) {
    run_.agents[at(agent)].begin = now_;
    post({.time = now_, .kind = EventKind::kResume, .index = agent});
  }

  std::string who_waits() const {
    std::string first;
    for (std::size_t a = 0; a < agents_.size(); ++a) {
      const TimetableAgent& agent = timetable_.agents[a];
      if (agents_[a].is_done || agents_[a].wait_begin < 0) continue;
      const Step& step = agent.steps[agents_[a].next];
      std::string who =
          agent.stage == Stage::kRoles
              ? fmt::format("role '{}' (rank {}, worker {}, tile {})",
                            timetable_.program->roles[at(agent.role)].name, agent.rank,
                            agent.worker, agents_[a].tile)
              : fmt::format("{} (rank {})", agent.stage == Stage::kStart ? "on_start" : "on_end",
                            agent.rank);
      if (step.kind == StepKind::kWait) {
        return fmt::format(
            "{}: the launch never ends: {} waits at {} for {} >= {}, which stays at {}",
            timetable_.program->name, who, describe_loc(step.op),
            timetable_.counters[at(step.counter)], step.amount, counts_[at(step.counter)]);
      }
      if (first.empty()) first = who + " waits for a pipe";
    }
    return fmt::format("{}: the launch never ends: {}", timetable_.program->name, first);
  }

  const Timetable& timetable_;
  RunOptions options_;
  double slower_;  // what computing takes beside its time at the highest clock
  FlowPool pool_;
  Run run_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<AgentState> agents_;
  std::vector<LinkState> links_;
  std::vector<RingState> rings_;  // by Link::ring
  std::vector<TensorTurn> turns_;
  std::vector<std::int64_t> counts_;
  std::vector<std::vector<int>> waiters_;
  std::vector<FlowOwner> owners_;  // per flow
  std::vector<int> unfinished_, start_of_, end_of_;
  std::size_t num_ended_ = 0;
  double now_ = 0;
  std::uint64_t serial_ = 0;
};

}  // namespace

Run run_timetable(const Timetable& timetable, const RunOptions& options) {
  Run run = EventLoop(timetable, options, 1).run();
  PowerUse use = power_use(timetable, options);
  if (use.seconds(timetable.burst, timetable) <= run.seconds) return run;
  RunOptions unrecorded{.free_communication = options.free_communication};
  double sustained = EventLoop(timetable, unrecorded, 1 / timetable.burst).run().seconds;
  stretch(run, throttled_seconds(use, timetable, run.seconds, sustained));
  return run;
}

}  // namespace stretto::predict
