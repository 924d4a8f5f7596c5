#include "stretto/proof/launch_kinds.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "stretto/base/at.h"
#include "stretto/proof/sync_kinds.h"

namespace stretto {
namespace {

// All that the order of two accesses of different launches depends on.
using Touch = std::tuple<int, int, int, int, int, int, AccessKind, bool, bool, bool, bool, int, int,
                         const Op*>;

Touch touch_of(const Access& a, int box) {
  return {a.pos, a.tensor, a.rank,   box,     a.landed.agent, a.landed.pos, a.kind,
          a.may, a.sure,   a.packet, a.tiled, a.choice,       a.when,       a.op};
}

int reach_of(const Access& a) { return a.span >= 0 ? a.span : a.box; }

class Union {
 public:
  Union(const std::vector<SizedGraph>& cases, const std::vector<bool>& tensors)
      : cases_(cases), tensors_(tensors) {
    const InstanceGraph& first = *cases[0].graph;
    out_ = {.program = first.program,
            .extents = first.extents,
            .shapes = first.shapes,
            .first_agent = first.first_agent,
            .counters = first.counters,
            .quota = first.quota,
            .packet_loads = first.packet_loads,
            .choices = first.choices};
    for (const SizedGraph& one : cases) boxes_.emplace_back(one.graph->boxes.size(), -1);
    for (std::size_t a = 0; a < first.agents.size(); ++a) add_agent(a);
  }

  InstanceGraph take() { return std::move(out_); }

 private:
  void add_agent(std::size_t a) {
    const AgentTrace& first = cases_[0].graph->agents[a];
    AgentTrace agent{.rank = first.rank,
                     .phase = first.phase,
                     .role = first.role,
                     .worker = first.worker,
                     .agent = first.agent,
                     .syncs = first.syncs};
    std::set<Touch> seen;
    for (std::size_t c = 0; c < cases_.size(); ++c) {
      const auto& accesses = cases_[c].graph->agents[a].accesses;
      const auto* before = c > 0 ? &cases_[c - 1].graph->agents[a].accesses : nullptr;
      for (std::size_t i = 0; i < accesses.size(); ++i) {
        const Access& access = accesses[i];
        if (!tensors_[at(access.tensor)]) continue;
        Touch touch = touch_of(access, box(c, reach_of(access)));
        // Mostly the size before does just this, in the same place.
        bool as_before = before != nullptr && i < before->size() &&
                         tensors_[at((*before)[i].tensor)] &&
                         touch_of((*before)[i], box(c - 1, reach_of((*before)[i]))) == touch;
        if (as_before || !seen.insert(touch).second) continue;
        agent.accesses.push_back(access);
        agent.accesses.back().box = std::get<3>(touch);
        agent.accesses.back().span = -1;
        agent.accesses.back().of_case = static_cast<int>(c);
      }
    }
    std::stable_sort(agent.accesses.begin(), agent.accesses.end(),
                     [](const Access& x, const Access& y) { return x.pos < y.pos; });
    out_.agents.push_back(std::move(agent));
  }

  int box(std::size_t of_case, int number) {
    int& known = boxes_[of_case][at(number)];
    if (known >= 0) return known;
    const Box& box = cases_[of_case].graph->boxes[at(number)];
    auto [it, is_new] = numbers_.try_emplace(box, static_cast<int>(out_.boxes.size()));
    if (is_new) out_.boxes.push_back(box);
    return known = it->second;
  }

  const std::vector<SizedGraph>& cases_;
  const std::vector<bool>& tensors_;
  std::vector<std::vector<int>> boxes_;  // per case: its boxes' numbers here
  std::map<Box, int> numbers_;
  InstanceGraph out_;
};

}  // namespace

std::vector<LaunchKind> kinds_of(const std::vector<SizedGraph>& cases) {
  std::vector<const InstanceGraph*> graphs;
  for (const SizedGraph& one : cases) graphs.push_back(one.graph);
  std::vector<int> numbers = synchronisation_kinds(graphs);
  std::vector<LaunchKind> kinds;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    if (at(numbers[c]) == kinds.size()) kinds.emplace_back();
    kinds[at(numbers[c])].cases.push_back(cases[c]);
  }
  return kinds;
}

std::vector<bool> buffers_met(const std::vector<SizedGraph>& cases) {
  const Program& program = *cases[0].graph->program;
  std::vector<bool> met(program.tensors.size(), false);
  for (const SizedGraph& one : cases) {
    for (const AgentTrace& agent : one.graph->agents) {
      for (const Access& a : agent.accesses) {
        if (a.rank != agent.rank) met[at(a.tensor)] = true;
      }
    }
  }
  for (std::size_t t = 0; t < met.size(); ++t) {
    if (program.tensors[t].kind != TensorKind::kBuffer) met[t] = false;
  }
  return met;
}

InstanceGraph merge(const std::vector<SizedGraph>& cases, const std::vector<bool>& tensors) {
  return Union(cases, tensors).take();
}

}  // namespace stretto
