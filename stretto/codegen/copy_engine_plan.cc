#include "stretto/codegen/copy_engine_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/codegen/engine_walk.h"
#include "stretto/codegen/signal_place.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

// The gate writes a word for each in every launch.
constexpr std::size_t kMostMarks = 8192;

using Counter = std::pair<int, std::int64_t>;  // rank, counter

bool uses(const Block& block, OpCode code, int signal) {
  return any_op(block, [&](const Op& op) { return op.code == code && op.symbol == signal; });
}

bool uses(const Role& role, OpCode code, int signal) {
  return std::any_of(role.agents.begin(), role.agents.end(),
                     [&](const Agent& agent) { return uses(agent.body, code, signal); });
}

// Why no role of the program can be a copy engine's, or "". The gate keeps all their queues back
// until on_start has ended, also from what another rank's on_start waits for; and on_end does not
// wait for queues, whose reads and writes are not there yet.
std::string edges_obstacle(const Program& program) {
  if (any_op(program.on_start.body, [](const Op& op) { return op.code == OpCode::kWait; })) {
    return "on_start waits, and queues begin after it";
  }
  if (!only<OpCode::kWait>(program.on_end.body)) {
    return "on_end does more than wait, and does not come after queues";
  }
  return "";
}

// Sets of workers that must share a queue.
class Unions {
 public:
  explicit Unions(std::size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int a) {
    while (parent_[static_cast<std::size_t>(a)] != a) a = parent_[static_cast<std::size_t>(a)];
    return a;
  }
  void join(int a, int b) {
    int x = find(a), y = find(b);
    parent_[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
  }

 private:
  std::vector<int> parent_;
};

class Planner {
 public:
  Planner(const Program& program, const std::vector<std::int64_t>& offsets)
      : program_(program), offsets_(offsets), refused_(program.roles.size()) {}

  CopyEnginePlan run() {
    const std::string edges = edges_obstacle(program_);
    for (std::size_t r = 0; r < program_.roles.size(); ++r) {
      const Role& role = program_.roles[r];
      if (role.resource.kind == ResourceKind::kSm) continue;
      if (role.resource.kind == ResourceKind::kHost) {
        refuse(r, "it is for host threads");
        continue;
      }
      std::string why = edges.empty() ? walk_obstacle(program_, role) : edges;
      if (!why.empty()) refuse(r, why);
      feeds_blocks_.resize(program_.roles.size());
      for (std::size_t s = 0; s < program_.signals.size(); ++s) {
        auto signal = static_cast<int>(s);
        if (!uses(role, OpCode::kNotify, signal)) continue;
        for (const Role& other : program_.roles) {
          bool waits =
              other.resource.kind == ResourceKind::kSm && uses(other, OpCode::kWait, signal);
          if (waits) feeds_blocks_[r] = other.name;
        }
      }
    }
    if (!engine_roles().empty()) {
      extents_ = extent_bounds(program_);
      quotas_ = count_quotas(program_, extents_);
      while (!try_plan()) {
      }
    }
    for (std::size_t r = 0; r < refused_.size(); ++r) {
      if (!refused_[r].empty()) plan_.on_sms.push_back({static_cast<int>(r), refused_[r]});
    }
    return std::move(plan_);
  }

 private:
  struct Writer {
    int rank = -1, node = -1;
    std::int64_t amount = 0;
    std::vector<std::size_t> roles;
  };

  void refuse(std::size_t role, const std::string& why) { refused_[role] = why; }

  std::vector<std::size_t> engine_roles() const {
    std::vector<std::size_t> out;
    for (std::size_t r = 0; r < program_.roles.size(); ++r) {
      bool engine = program_.roles[r].resource.kind == ResourceKind::kCopyEngine;
      if (engine && refused_[r].empty()) out.push_back(r);
    }
    return out;
  }

  const std::string& signal_of(std::int64_t counter) const {
    return program_.signals[signal_place(offsets_, counter).signal].name;
  }

  // False where a role had to be refused, which may free others.
  bool try_plan() {
    plan_ = {};
    std::vector<std::size_t> roles = engine_roles();
    std::vector<int> first_node;  // of each role: its worker 0
    int nodes = 0;
    for (std::size_t r : roles) {
      first_node.push_back(nodes);
      nodes += program_.roles[r].resource.num_workers;
      plan_.roles.push_back({.role = static_cast<int>(r)});
    }
    Unions queues(static_cast<std::size_t>(nodes));
    std::map<Counter, Writer> writers;
    for (int rank = 0; rank < program_.world_size; ++rank) {
      for (std::size_t i = 0; i < roles.size(); ++i) {
        if (!walk(rank, roles[i], first_node[i], plan_.roles[i], queues, writers)) return false;
      }
    }
    for (const auto& [counter, writer] : writers) {
      if (writer.amount == quota(counter)) continue;
      for (std::size_t r : writer.roles) {
        refuse(r, fmt::format("others notify '{}' too", signal_of(counter.second)));
      }
      return false;
    }
    return place_queues(roles, first_node, queues) && place_marks(roles, writers);
  }

  std::int64_t quota(const Counter& c) const {
    auto [signal, channel] = signal_place(offsets_, c.second);
    return quotas_[signal][static_cast<std::size_t>(c.first)][static_cast<std::size_t>(channel)];
  }

  bool walk(int rank, std::size_t role_idx, int first_node, EngineRole& role, Unions& queues,
            std::map<Counter, Writer>& writers) {
    const Role& source = program_.roles[role_idx];
    std::vector<int> bells(static_cast<std::size_t>(source.resource.num_workers), 0);
    for (const WalkStep& s : walk_role(program_, offsets_, source, rank, extents_)) {
      int node = first_node + s.worker;
      if (s.op->code == OpCode::kWait) {
        int count = ++bells[static_cast<std::size_t>(s.worker)];
        role.num_bells = std::max(role.num_bells, count);
      } else if (s.op->code == OpCode::kCopy && s.grows) {
        refuse(role_idx, "a copy's destination is larger than its source");
        return false;
      } else if (s.op->code == OpCode::kCopy && s.copy.row_bytes > 0 &&
                 s.copy.from_rank == s.copy.to_rank && !feeds_blocks_[role_idx].empty()) {
        // The driver may use a kernel for it.
        refuse(role_idx, fmt::format("it copies within a GPU, which may need an SM while role '{}' "
                                     "holds them all and waits",
                                     feeds_blocks_[role_idx]));
        return false;
      } else if (s.op->code == OpCode::kNotify && s.amount > 0) {
        if (program_.world_size == 1) {
          refuse(role_idx, "it notifies, and there is no other rank to copy the words from");
          return false;
        }
        Writer& w = writers[{s.rank, s.counter}];
        if (w.rank >= 0 && w.rank != rank) {
          refuse(role_idx, fmt::format("several ranks notify the same counter of '{}'",
                                       signal_of(s.counter)));
          return false;
        }
        if (w.node >= 0) queues.join(w.node, node);
        w.rank = rank;
        w.node = node;
        w.amount += s.amount;
        if (w.roles.empty() || w.roles.back() != role_idx) w.roles.push_back(role_idx);
      }
    }
    return true;
  }

  // Workers that ring bells keep a queue each: one that waits would hold up the others.
  bool place_queues(const std::vector<std::size_t>& roles, const std::vector<int>& first_node,
                    Unions& queues) {
    std::map<int, int> queue_of;  // by set
    std::map<int, int> members;
    int nodes = 0;
    for (std::size_t i = 0; i < roles.size(); ++i) {
      nodes = first_node[i] + program_.roles[roles[i]].resource.num_workers;
    }
    for (int n = 0; n < nodes; ++n) ++members[queues.find(n)];
    for (std::size_t i = 0; i < roles.size(); ++i) {
      EngineRole& role = plan_.roles[i];
      int workers = program_.roles[roles[i]].resource.num_workers;
      for (int w = 0; w < workers; ++w) {
        int set = queues.find(first_node[i] + w);
        if (role.num_bells > 0 && members[set] > 1) {
          refuse(roles[i], "its queues wait, and several of them notify the same counter");
          return false;
        }
        auto [at, added] = queue_of.try_emplace(set, static_cast<int>(queue_of.size()));
        role.queue_of_worker.push_back(at->second);
      }
      role.first_bell = plan_.num_bells;
      plan_.num_bells += std::int64_t{role.num_bells} * workers;
    }
    plan_.num_queues = static_cast<int>(queue_of.size());
    plan_.first_gate_bell = plan_.num_bells;
    plan_.num_bells += plan_.num_queues;
    return true;
  }

  bool place_marks(const std::vector<std::size_t>& roles,
                   const std::map<Counter, Writer>& writers) {
    plan_.marks.resize(static_cast<std::size_t>(program_.world_size));
    for (const auto& [counter, writer] : writers) {
      std::vector<EngineMark>& marks = plan_.marks[static_cast<std::size_t>(writer.rank)];
      if (marks.size() + static_cast<std::size_t>(writer.amount) > kMostMarks) {
        for (std::size_t r : roles) refuse(r, "it notifies too often");
        return false;
      }
      for (std::int64_t n = 1; n <= writer.amount; ++n) {
        marks.push_back({counter.first, counter.second, writer.amount, n});
      }
    }
    return true;
  }

  const Program& program_;
  const std::vector<std::int64_t>& offsets_;
  std::vector<std::string> refused_;       // by role: why; empty where it is not
  std::vector<std::string> feeds_blocks_;  // by role: the SM role that waits for it; empty: none
  std::vector<std::int64_t> extents_;
  Quotas quotas_;
  CopyEnginePlan plan_;
};

}  // namespace

const EngineRole* CopyEnginePlan::find(int role) const {
  auto at =
      std::find_if(roles.begin(), roles.end(), [&](const EngineRole& r) { return r.role == role; });
  return at == roles.end() ? nullptr : &*at;
}

bool announced_at_start(const Program& schedule, int signal) {
  constexpr OpCode kNotify = OpCode::kNotify;
  if (!uses(schedule.on_start.body, kNotify, signal)) return false;
  if (uses(schedule.on_end.body, kNotify, signal)) return false;
  return std::none_of(schedule.roles.begin(), schedule.roles.end(),
                      [&](const Role& role) { return uses(role, kNotify, signal); });
}

CopyEnginePlan plan_engines(const Program& schedule,
                            const std::vector<std::int64_t>& signal_offsets) {
  return Planner(schedule, signal_offsets).run();
}

std::vector<std::vector<EngineStep>> engine_steps(const Program& schedule,
                                                  const std::vector<std::int64_t>& signal_offsets,
                                                  const CopyEnginePlan& plan, int rank,
                                                  const std::vector<std::int64_t>& extents) {
  using Kind = EngineStep::Kind;
  const std::vector<EngineMark>& marks = plan.marks[static_cast<std::size_t>(rank)];
  struct MarkRange {
    std::int64_t next = 0, end = 0;  // of its marks
    int queue = -1;
  };
  std::map<Counter, MarkRange> ranges;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i].count != 1) continue;
    auto first = static_cast<std::int64_t>(i);
    ranges[{marks[i].rank, marks[i].counter}] = {first, first + marks[i].quota};
  }
  std::vector<std::vector<EngineStep>> queues(static_cast<std::size_t>(plan.num_queues));
  for (std::size_t q = 0; q < queues.size(); ++q) {
    queues[q] = {
        {.kind = Kind::kAwaitBell, .bell = plan.first_gate_bell + static_cast<std::int64_t>(q)}};
  }
  for (const EngineRole& role : plan.roles) {
    const Role& source = schedule.roles[static_cast<std::size_t>(role.role)];
    std::vector<int> bells(static_cast<std::size_t>(source.resource.num_workers), 0);
    for (const WalkStep& s : walk_role(schedule, signal_offsets, source, rank, extents)) {
      auto worker = static_cast<std::size_t>(s.worker);
      int queue = role.queue_of_worker[worker];
      std::vector<EngineStep>& steps = queues[static_cast<std::size_t>(queue)];
      auto add = [&](EngineStep step) {
        step.role = role.role;
        step.worker = s.worker;
        step.tile = s.tile;
        steps.push_back(step);
      };
      if (s.op->code == OpCode::kWait) {
        STRETTO_CHECK(bells[worker] < role.num_bells, "as many waits as at the bounds, at most");
        std::int64_t first = role.first_bell + std::int64_t{s.worker} * role.num_bells;
        steps.push_back({.kind = Kind::kAwaitBell, .bell = first + bells[worker]++});
      } else if (s.op->code == OpCode::kCopy) {
        if (s.grows) {
          throw UserError(fmt::format(
              "{}:{}: role '{}' on copy engines: a copy's destination is larger than its source",
              s.op->loc.file, s.op->loc.line, source.name));
        }
        if (s.copy.row_bytes > 0) add({.kind = Kind::kCopy, .copy = s.copy});
      } else if (s.amount > 0) {
        auto at = ranges.find({s.rank, s.counter});
        bool known = at != ranges.end() && at->second.next + s.amount <= at->second.end &&
                     (at->second.queue < 0 || at->second.queue == queue);
        STRETTO_CHECK(known, "the notifies of a launch do not depend on its extents");
        at->second.queue = queue;
        at->second.next += s.amount;
        add({.kind = Kind::kSignal, .mark = at->second.next - 1});
      }
    }
  }
  return queues;
}

std::string to_string(const Program& schedule, const std::vector<std::int64_t>& signal_offsets,
                      const CopyEnginePlan& plan, int rank, const EngineStep& step) {
  if (step.kind == EngineStep::Kind::kAwaitBell) {
    return step.bell < plan.first_gate_bell ? fmt::format("bell {}", step.bell) : "gate";
  }
  if (step.kind == EngineStep::Kind::kSignal) {
    const EngineMark& m =
        plan.marks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step.mark)];
    auto [signal, channel] = signal_place(signal_offsets, m.counter);
    return fmt::format("signal {}[{}]@{} to {}", schedule.signals[signal].name, channel, m.rank,
                       m.count);
  }
  const EngineCopy& c = step.copy;
  auto place = [&](int tensor, int of, std::int64_t offset) {
    return fmt::format("{}@{}+{}", schedule.tensors[static_cast<std::size_t>(tensor)].name, of,
                       offset);
  };
  std::string size = fmt::format("{} bytes", c.row_bytes);
  if (c.rows > 1) size = fmt::format("{} rows of {}", c.rows, size);
  return fmt::format("copy {} <- {} {}", place(c.to_tensor, c.to_rank, c.to_offset),
                     place(c.from_tensor, c.from_rank, c.from_offset), size);
}

}  // namespace stretto
