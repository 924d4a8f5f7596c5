#include "stretto/proof/instance_graph.h"

#include <fmt/format.h>

#include <algorithm>

namespace stretto {

bool is_empty(const Box& box) {
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (box.hi[d] <= box.lo[d]) return true;
  }
  return false;
}

bool overlaps(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (a.hi[d] <= b.lo[d] || b.hi[d] <= a.lo[d]) return false;
  }
  return true;
}

Box intersection(const Box& a, const Box& b) {
  Box out;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    out.lo[d] = std::max(a.lo[d], b.lo[d]);
    out.hi[d] = std::min(a.hi[d], b.hi[d]);
  }
  return out;
}

std::int64_t volume(const Box& box) {
  if (is_empty(box)) return 0;
  std::int64_t n = 1;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) n *= box.hi[d] - box.lo[d];
  return n;
}

std::size_t InstanceGraph::num_events() const {
  std::size_t n = 0;
  for (const AgentTrace& a : agents) n += a.syncs.size() + a.accesses.size();
  return n;
}

void share_choices(InstanceGraph& graph, const std::shared_ptr<TableChoices>& all) {
  if (graph.choices == all) return;
  std::vector<int> numbers = all->adopt(*graph.choices);
  graph.choices = all;
  auto renumber = [&](int& choice) {
    if (choice != TableChoices::kAlways) choice = numbers[static_cast<std::size_t>(choice)];
  };
  if (numbers.empty()) return;
  for (AgentTrace& agent : graph.agents) {
    for (Sync& s : agent.syncs) renumber(s.choice);
    for (Access& a : agent.accesses) {
      renumber(a.choice);
      renumber(a.when);
    }
  }
}

bool nobody_writes(const Tensor& tensor) {
  return tensor.kind == TensorKind::kInput && tensor.space == Space::kLocal;
}

Box whole_tensor(const InstanceGraph& graph, int tensor) {
  Box box;
  box.hi.fill(1);
  const auto& shape = graph.shapes[static_cast<std::size_t>(tensor)];
  std::copy(shape.begin(), shape.end(), box.hi.begin());
  return box;
}

std::string describe_agent(const InstanceGraph& graph, int agent, std::int64_t tile) {
  const AgentTrace& a = graph.agents[static_cast<std::size_t>(agent)];
  if (a.phase == Phase::kStart) return fmt::format("on_start (rank {})", a.rank);
  if (a.phase == Phase::kEnd) return fmt::format("on_end (rank {})", a.rank);
  const Role& role = graph.program->roles[static_cast<std::size_t>(a.role)];
  std::string part;
  if (role.agents.size() > 1) {
    part = fmt::format(" agent '{}'", role.agents[static_cast<std::size_t>(a.agent)].name);
  }
  return fmt::format("role '{}'{} (rank {}, worker {}, tile {})", role.name, part, a.rank, a.worker,
                     tile);
}

std::string describe_counter(const InstanceGraph& graph, int counter) {
  const Counter& c = graph.counters[static_cast<std::size_t>(counter)];
  auto symbol = static_cast<std::size_t>(c.symbol);
  if (c.kind == CounterKind::kSignal) {
    return fmt::format("signal '{}'[{}] of rank {}", graph.program->signals[symbol].name, c.channel,
                       c.rank);
  }
  const Role& role = graph.program->roles[static_cast<std::size_t>(c.role)];
  if (c.kind == CounterKind::kBarrier) {
    return fmt::format("barrier '{}' of role '{}' (rank {}, worker {})", role.barriers[symbol].name,
                       role.name, c.rank, c.worker);
  }
  if (c.kind == CounterKind::kMeeting) {
    return fmt::format("loops over slots of role '{}' (rank {}, worker {})", role.name, c.rank,
                       c.worker);
  }
  if (c.kind == CounterKind::kPipeTurn) {
    return fmt::format("turn of the consumer of pipe '{}' of role '{}' (rank {}, worker {})",
                       role.pipes[symbol].name, role.name, c.rank, c.worker);
  }
  return fmt::format("{} slots of pipe '{}' of role '{}' (rank {}, worker {})",
                     c.kind == CounterKind::kPipeFull ? "full" : "empty", role.pipes[symbol].name,
                     role.name, c.rank, c.worker);
}

std::string describe_access(const InstanceGraph& graph, const Access& access) {
  const Box& box = graph.boxes[static_cast<std::size_t>(access.box)];
  return describe_box(graph, access.tensor, box, access.kind, access.rank);
}

std::string describe_range(const InstanceGraph& graph, int tensor_idx, const Box& box, int rank) {
  const Tensor& tensor = graph.program->tensors[static_cast<std::size_t>(tensor_idx)];
  std::string range;
  for (std::size_t d = 0; d < tensor.shape.size() && d < kMaxTensorDims; ++d) {
    range += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.lo[d], box.hi[d]);
  }
  return fmt::format("'{}' [{}] on rank {}", tensor.name, range, rank);
}

std::string describe_box(const InstanceGraph& graph, int tensor, const Box& box, AccessKind kind,
                         int rank) {
  const char* verb = kind == AccessKind::kRead    ? "read"
                     : kind == AccessKind::kWrite ? "write"
                                                  : "reduction";
  return fmt::format("{} of {}", verb, describe_range(graph, tensor, box, rank));
}

std::string describe_loc(const Op* op) {
  return op == nullptr ? std::string("?") : fmt::format("{}:{}", op->loc.file, op->loc.line);
}

}  // namespace stretto
