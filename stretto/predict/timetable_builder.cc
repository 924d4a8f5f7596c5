#include "stretto/predict/timetable_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/refuse.h"
#include "stretto/ir/walk_budget.h"
#include "stretto/predict/frame.h"
#include "stretto/predict/l2_model.h"
#include "stretto/predict/packets.h"
#include "stretto/predict/work_cost.h"

namespace stretto::predict {
namespace {

int sms_of(const Role& role, const Machine& machine) {
  const Resource& r = role.resource;
  if (r.kind != ResourceKind::kSm) return machine.copies_on_sms ? r.num_workers : 0;
  return r.num_own_sms();
}

void check_fits(const Program& program, const Machine& machine) {
  refuse_float64(program);
  if (program.world_size > machine.num_gpus) {
    throw UserError(fmt::format("{}: needs {} GPUs, machine {} has {}", program.name,
                                program.world_size, machine.name, machine.num_gpus));
  }
  int sms = 0;
  for (const Role& role : program.roles) sms += sms_of(role, machine);
  if (sms > machine.num_sms) {
    throw UserError(fmt::format("{}: its workers need {} SMs, machine {} has {}", program.name, sms,
                                machine.name, machine.num_sms));
  }
}

class TimetableBuilder {
 public:
  TimetableBuilder(const Lowered& program, const Machine& machine, const TimetableOptions& options)
      : program_(program.program()),
        machine_(machine),
        extents_(options.extents.empty() ? default_extents(program_) : options.extents),
        tables_(tables_of_launch(program_, extents_, options.tables)),
        scope_(program_, initial_vars(program_, 0, extents_), tables_.get()),
        frames_(program_, machine, shapes()) {
    timetable_.program = program.shared();
    timetable_.launch = options.eager ? machine.eager_launch : machine.graph_launch;
    timetable_.power[kTensor] = 1;
    timetable_.power[kL2] = machine.power.l2;
    timetable_.power[kHbm] = machine.power.hbm;
    timetable_.power[kLinkIn] = timetable_.power[kLinkOut] = machine.power.link;
    timetable_.copied_power = machine.power.copied;
    timetable_.burst = machine.burst;
    timetable_.clock_power = machine.power.clock;
  }

  Timetable run() {
    number_signals();
    try {
      for (int rank = 0; rank < program_.world_size; ++rank) plan_rank(rank);
    } catch (const NoValue& e) {
      throw Rejected(fmt::format("{}: {}", describe_loc(at_), e.what()));
    }
    packets_.link(timetable_);
    return std::move(timetable_);
  }

 private:
  std::vector<std::vector<std::int64_t>> shapes() {
    std::vector<std::vector<std::int64_t>> shapes;
    for (const Tensor& tensor : program_.tensors) {
      auto& shape = shapes.emplace_back();
      for (const Expr& dim : tensor.shape) shape.push_back(scope_.value(dim, "shape"));
    }
    return shapes;
  }

  void number_signals() {
    for (const Signal& signal : program_.signals) {
      first_counter_.push_back(timetable_.num_counters());
      for (int rank = 0; rank < program_.world_size; ++rank) {
        for (std::int64_t c = 0; c < signal.num_channels; ++c) {
          timetable_.counters.push_back(fmt::format("'{}'[{}] of rank {}", signal.name, c, rank));
        }
      }
    }
  }

  void plan_rank(int rank) {
    for (int unit = 0; unit < kNumUnits; ++unit) timetable_.capacity.push_back(capacity(unit));
    start_agent({.rank = rank, .stage = Stage::kStart}, program_.on_start);
    plan_outside_roles(program_.on_start);
    start_agent({.rank = rank, .stage = Stage::kEnd}, program_.on_end);
    plan_outside_roles(program_.on_end);
    for (std::size_t r = 0; r < program_.roles.size(); ++r) plan_role(rank, static_cast<int>(r));
  }

  double capacity(int unit) const {
    switch (unit) {
      case kTensor:
        return machine_.burst;
      case kL2:
        return machine_.l2_rate;
      case kHbm:
        return machine_.hbm_rate;
      case kCopy:
        return machine_.copy_rate;
      default:
        return machine_.link_rate;
    }
  }

  void plan_outside_roles(const Agent& agent) {
    worker_ = {.machine = &machine_, .rank = timetable_.agents.back().rank};
    role_ = nullptr;
    L2Model cache(machine_.l2_bytes, 1);
    cache_ = &cache;
    block(agent.body);
    flush();
    cache.charge(timetable_.agents.back().rank * kNumUnits + kHbm, timetable_.works);
  }

  bool has_role_beside(int role_idx) const {
    return std::any_of(program_.roles.begin(), program_.roles.end(),
                       [&](const Role& r) { return r.resource.beside == role_idx; });
  }

  void plan_role(int rank, int role_idx) {
    role_ = &program_.roles[at(role_idx)];
    const Resource& resource = role_->resource;
    bool engine = resource.kind != ResourceKind::kSm && !machine_.copies_on_sms;
    worker_ = {.machine = &machine_,
               .rank = rank,
               .by_copy_engine = engine,
               .beside = resource.beside >= 0,
               .shared = has_role_beside(role_idx),
               .num_sms = static_cast<double>(engine ? 1 : resource.cluster_size)};
    L2Model cache(machine_.l2_bytes, resource.num_workers);
    cache_ = &cache;
    auto multiplies = [](const Agent& agent) { return agent.kind == AgentKind::kConsumer; };
    bool turns = std::count_if(role_->agents.begin(), role_->agents.end(), multiplies) > 1;
    for (int w = 0; w < resource.num_workers; ++w) {
      link_of_pair_.clear();
      int turn = turns ? timetable_.num_tensor_turns++ : -1;
      for (std::size_t a = 0; a < role_->agents.size(); ++a) {
        const Agent& agent = role_->agents[a];
        start_agent({.rank = rank,
                     .stage = Stage::kRoles,
                     .role = role_idx,
                     .worker = w,
                     .agent = static_cast<int>(a),
                     .tensor_turn = multiplies(agent) ? turn : -1},
                    agent);
        plan_tiles(agent, w);
      }
    }
    cache.charge(rank * kNumUnits + kHbm, timetable_.works);
  }

  void start_agent(const TimetableAgent& planned, const Agent& agent) {
    timetable_.agents.push_back(planned);
    stores_bulk_ = agent.kind == AgentKind::kConsumer || agent.kind == AgentKind::kEpilogue;
    stored_ = 0;
    scope_ = EvalScope(program_, initial_vars(program_, planned.rank, extents_), tables_.get());
    frames_.start_agent(scope_, planned.rank, agent);
    tile_ = -1;
    waited_ = false;
  }

  void plan_tiles(const Agent& agent, int worker) {
    std::int64_t num_tiles = scope_.value(role_->num_tiles, "number of tiles");
    std::vector<Step>& steps = timetable_.agents.back().steps;
    for (tile_ = worker; tile_ < num_tiles; tile_ += role_->resource.num_workers) {
      budget_.step(role_->loc, kKept);
      scope_.set(role_->tile_var, tile_);
      waited_ = false;
      steps.push_back({.kind = StepKind::kTile, .tile = tile_});
      block(agent.body);
      flush();
      if (steps.back().kind == StepKind::kTile) steps.pop_back();  // somebody else's turn
    }
  }

  void block(const Block& ops) {
    for (const Op& o : ops) op(o);
  }

  void op(const Op& o) {
    at_ = &o;
    budget_.step(o.loc, kKept);
    if (!o.bodies.empty() && (has_signals(o.bodies) || has_stretches(o))) return control(o);
    switch (o.code) {
      case OpCode::kNotify:
      case OpCode::kWait:
        return signal(o);
      case OpCode::kStorePacket:
      case OpCode::kLoadPacket:
        return packet(o);
      default:
        return pend(o);
    }
  }

  static bool has_signals(const std::vector<Block>& bodies) {
    return std::any_of(bodies.begin(), bodies.end(), predict::has_signals);
  }

  // Whether what it holds may be several steps: a step takes or gives the slots of one pair of
  // agents, and what comes after the last slot of a condition's body is a step of its own.
  bool has_stretches(const Op& o) const {
    std::set<std::pair<int, int>> ways;
    for (const Block& b : o.bodies) find_ways(b, ways);
    return ways.size() > (o.code == OpCode::kWhen ? 0 : 1);
  }

  void find_ways(const Block& ops, std::set<std::pair<int, int>>& ways) const {
    for (const Op& o : ops) {
      if (o.code == OpCode::kPipePut || o.code == OpCode::kPipeFill || o.code == OpCode::kPipeGet) {
        const Pipe& pipe = role_->pipes[at(o.symbol)];
        ways.insert({pipe.producer, pipe.consumer});
      }
      for (const Block& b : o.bodies) find_ways(b, ways);
    }
  }

  void control(const Op& o) {
    if (o.code == OpCode::kWhen) {
      return block(o.bodies[scope_.value(o.exprs[0], "a condition") != 0 ? 0 : 1]);
    }
    std::int64_t begin = scope_.value(o.exprs[0], "begin of a loop");
    std::int64_t end = scope_.value(o.exprs[1], "end of a loop");
    for (std::int64_t i = begin; i < end; ++i) {
      budget_.step(o.loc, kKept);
      scope_.set(o.var, i);
      block(o.bodies[0]);
    }
  }

  // Work after the last slot that is taken is a piece of its own: the producer goes on meanwhile.
  void pend(const Op& o) {
    Frame frame;
    frame.loads = after_.loads;
    frame.loads_remote = after_.loads_remote;
    frames_.add(o, frame);
    if (!frame.moves_pipes()) {
      after_.add(frame, 1);
      after_.loads = frame.loads;
      after_.loads_remote = frame.loads_remote;
      return;
    }
    if (o.code == OpCode::kPipeFill && !frame.cost.is_zero()) {  // busy until the slot is full
      Frame busy;
      busy.cost = frame.cost;
      after_.add(busy, 1);
      flush();
      frame.cost = {};
    }
    int link = link_of(frame.gets.empty() ? frame.puts : frame.gets);
    if (link_ >= 0 && (link != link_ || frame.gets.empty() != before_.gets.empty())) flush();
    link_ = link;
    before_.add(after_, 1);
    before_.add(frame, 1);
    after_ = {};
  }

  int link_of(const std::vector<Slots>& slots) {
    const Pipe& pipe = role_->pipes[at(slots.front().pipe)];
    auto [entry, added] = link_of_pair_.try_emplace({pipe.producer, pipe.consumer}, 0);
    if (added) {
      entry->second = static_cast<int>(timetable_.links.size());
      Link link{.ring = entry->second};
      if (pipe.shares >= 0) {
        const Pipe& home = role_->pipes[at(pipe.shares)];
        auto shared = link_of_pair_.find({home.producer, home.consumer});
        if (shared != link_of_pair_.end()) link.ring = shared->second;
      }
      for (const Pipe& p : role_->pipes) {
        if (p.producer != pipe.producer || p.consumer != pipe.consumer) continue;
        link.num_slots += p.num_slots;
        auto loading = std::max<std::int64_t>(p.num_slots - 1, 1);
        link.num_bytes += static_cast<double>(loading * p.type.rows * p.type.cols) *
                          static_cast<double>(size_bytes(p.type.dtype));
      }
      timetable_.links.push_back(link);
    }
    return entry->second;
  }

  static double total(const std::vector<Slots>& slots) {
    double sum = 0;
    for (const Slots& s : slots) sum += s.count;
    return sum;
  }

  void flush() {
    if (link_ >= 0) {
      bool gets = !before_.gets.empty();
      Step step{
          .kind = gets ? StepKind::kGet : StepKind::kPut,
          .link = link_,
          .amount = static_cast<std::int64_t>(total(gets ? before_.gets : before_.puts) + 0.5)};
      step.work = add_work(before_, gets ? WorkKind::kGet : WorkKind::kPut);
      steps().push_back(step);
    }
    if (!after_.cost.is_zero()) {
      int work = add_work(after_, WorkKind::kPlain);
      steps().push_back({.kind = StepKind::kWork, .work = work});
    }
    link_ = -1;
    before_ = {};
    after_ = {};
  }

  int add_work(const Frame& frame, WorkKind kind) {
    stored_ += frame.cost.written;
    for (const RemoteBytes& r : frame.cost.remote) stored_ += r.written;
    WorkerRate rate = worker_;
    if (kind == WorkKind::kPut) rate.pipe_bytes = timetable_.links[at(link_)].num_bytes;
    int work = static_cast<int>(timetable_.works.size());
    timetable_.works.push_back(make_work(frame, kind, rate));
    cache_->add({tile_, work, waited_}, frame.reads, program_);
    return work;
  }

  void signal(const Op& o) {
    flush();
    bool is_wait = o.code == OpCode::kWait;
    const Signal& s = program_.signals[at(o.symbol)];
    std::int64_t channel = scope_.value(o.exprs[0], "channel of a signal");
    std::int64_t rank = is_wait ? worker_.rank : scope_.value(o.exprs[1], "rank that is notified");
    if (channel < 0 || channel >= s.num_channels || rank < 0 || rank >= program_.world_size) {
      throw Rejected(fmt::format("{}: channel {} of '{}' on rank {} does not exist",
                                 describe_loc(&o), channel, s.name, rank));
    }
    std::int64_t amount = scope_.value(o.exprs[is_wait ? 1 : 2], "amount of a signal");
    if (amount <= 0) return;
    bool remote = rank != worker_.rank;
    waited_ |= is_wait;
    steps().push_back({.kind = is_wait ? StepKind::kWait : StepKind::kNotify,
                       .counter = first_counter_[at(o.symbol)] +
                                  static_cast<int>(rank * s.num_channels + channel),
                       .amount = amount,
                       .cost = is_wait ? 0 : notify_cost(),
                       .delay = remote ? machine_.link_latency : machine_.local_signal_latency,
                       .is_remote = remote,
                       .op = &o});
  }

  // Of an agent that waits for what it has stored since it notified last: for a round trip, and
  // for the bytes.
  double notify_cost() {
    constexpr double kBulkBytes = 128 * 256 * 2;  // that Machine::bulk_notify_cost is for
    constexpr double kRoundTrip = 0.5;            // of that: 3 us with tiles of 1 to 4 KB
    if (!stores_bulk_) return machine_.notify_cost;
    double part = std::min(std::exchange(stored_, 0) / kBulkBytes, 1.0);
    return machine_.bulk_notify_cost * (kRoundTrip + (1 - kRoundTrip) * part);
  }

  void packet(const Op& o) {
    Target target = frames_.resolve(*o.region);
    if (target.bytes == 0) return;
    int agent = static_cast<int>(timetable_.agents.size()) - 1;
    Packets::OnRank where{o.region->tensor, target.rank};
    bool remote = target.rank != worker_.rank;
    Step step{.kind = StepKind::kWait, .amount = 1, .is_remote = remote, .op = &o};
    if (o.code == OpCode::kStorePacket) {
      frames_.add_write(*o.region, after_);
      flush();
      step.kind = StepKind::kNotify;
      step.delay = remote ? machine_.link_latency : machine_.local_signal_latency;
      packets_.add_store(where, target.box, agent);
      steps().push_back(step);
    } else {
      flush();
      packets_.add_load(where, target.box, agent);
      steps().push_back(step);
      frames_.add_read(*o.region, false, after_);  // the wait has seen it
    }
  }

  std::vector<Step>& steps() { return timetable_.agents.back().steps; }

  const Program& program_;
  const Machine& machine_;
  std::vector<std::int64_t> extents_;
  std::unique_ptr<TableWitness> tables_;
  EvalScope scope_;
  FrameBuilder frames_;
  Packets packets_;
  Timetable timetable_;
  std::vector<int> first_counter_;  // per signal

  // The worker and agent.
  const Role* role_ = nullptr;
  const Op* at_ = nullptr;  // what is being looked at
  WalkBudget budget_;
  WorkerRate worker_;
  L2Model* cache_ = nullptr;
  std::map<std::pair<int, int>, int> link_of_pair_;
  std::int64_t tile_ = -1;
  bool waited_ = false;  // for a signal, in this tile
  bool stores_bulk_ = false;
  double stored_ = 0;  // bytes since the last notify

  // What has been met since the last step: up to the last pipe operation, and after it.
  Frame before_, after_;
  int link_ = -1;
};

}  // namespace

std::vector<std::int64_t> default_extents(const Program& program) {
  std::vector<std::int64_t> extents = extent_bounds(program);
  std::size_t i = 0;
  for (const Var& var : program.vars) {
    if (var.kind != VarKind::kExtent && var.kind != VarKind::kScalar) continue;
    if (var.kind == VarKind::kScalar) extents[i] = 0;
    ++i;
  }
  return extents;
}

Timetable build_timetable(const Lowered& program, const Machine& machine,
                          const TimetableOptions& options) {
  check_fits(program.program(), machine);
  try {
    return TimetableBuilder(program, machine, options).run();
  } catch (const DependsOnTable& e) {
    throw UserError(
        fmt::format("{}: a table without a contract decides {}", program.program().name, e.what));
  }
}

}  // namespace stretto::predict
