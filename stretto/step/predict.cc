#include "stretto/step/predict.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "stretto/compiler.h"
#include "stretto/predict/prediction.h"
#include "stretto/step/check.h"
#include "stretto/step/memory.h"

namespace stretto::step {
namespace {

constexpr int kNumBounds = 4;

// Of what a launch took, at least half is the launch itself: it is held up by nothing else.
Bound bound_of(const predict::Prediction& p, const predict::Machine& machine) {
  constexpr double kMilli = 1e3;
  if (machine.graph_launch * kMilli > p.time_ms / 2) return Bound::kLaunch;
  if (p.bound_by == "tensor" || p.bound_by == "sms") return Bound::kCompute;
  if (p.bound_by == "hbm" || p.bound_by == "l2") return Bound::kMemory;
  if (p.bound_by == "nvlink" || p.bound_by == "copy_engine") return Bound::kLinks;
  return p.exposed_comm_ms > p.time_ms / 2 ? Bound::kLinks : Bound::kLaunch;
}

// Of each node, how often it is launched.
std::vector<std::int64_t> launches_of(const Plan& plan,
                                      const std::map<std::string, std::int64_t>& runs) {
  std::vector<std::int64_t> out(plan.nodes.size(), 1);
  for (const Section& section : plan.sections) {
    const auto found = runs.find(section.name);
    if (found == runs.end()) continue;
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(section.begin),
              out.begin() + static_cast<std::ptrdiff_t>(section.end), found->second);
  }
  return out;
}

}  // namespace

const char* name(Bound bound) {
  constexpr const char* kNames[] = {"compute", "memory", "links", "launch"};
  return kNames[static_cast<int>(bound)];
}

StepPrediction predict(const Plan& plan, const predict::Machine& machine,
                       const StepPredictOptions& options) {
  check(plan);
  std::map<int, Lowered> lowered;
  std::map<std::pair<int, std::vector<std::int64_t>>, NodePrediction> known;
  StepPrediction out;
  std::array<double, kNumBounds> by_bound{};
  const std::vector<std::int64_t> launches = launches_of(plan, options.runs);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    std::vector<std::int64_t> extents = eval(node.extents, options.values);
    if (!extents.empty() && extents.front() == 0) continue;
    auto found = known.find({node.program, extents});
    if (found == known.end()) {
      auto program = lowered.find(node.program);
      if (program == lowered.end()) {
        program = lowered.emplace(node.program, lower(plan.program_of(node))).first;
      }
      predict::PredictOptions asked{.timetable = {.extents = extents}};
      if (options.tables) {
        asked.timetable.tables = options.tables(static_cast<std::size_t>(node.program));
      }
      predict::Prediction p = predict::predict(program->second, machine, asked);
      NodePrediction one{.time_ms = p.time_ms, .bound = bound_of(p, machine)};
      found = known.emplace(std::pair{node.program, extents}, one).first;
    }
    NodePrediction one = found->second;
    one.node = i;
    const auto times = static_cast<double>(launches[i]);
    out.time_ms += times * one.time_ms;
    by_bound[static_cast<std::size_t>(one.bound)] += times * one.time_ms;
    out.nodes.insert(out.nodes.end(), static_cast<std::size_t>(launches[i]), one);
  }
  auto most = std::max_element(by_bound.begin(), by_bound.end());
  if (!out.nodes.empty()) out.bound = static_cast<Bound>(most - by_bound.begin());
  return out;
}

StepBytes bytes_of(const Plan& plan) {
  StepBytes bytes{.work = assign(plan).total()};
  for (const Buffer& b : plan.buffers) {
    if (b.symmetric) continue;  // of the step's own
    if (b.kind == BufferKind::kConstant) bytes.constants += num_bytes(plan, b);
    if (b.kind == BufferKind::kState) bytes.state += num_bytes(plan, b);
  }
  for (const Program& p : plan.programs) {
    for (std::size_t t = 0; t < p.tensors.size(); ++t) {
      if (p.tensors[t].kind != TensorKind::kBuffer) continue;
      bytes.programs += storage_bytes(p, static_cast<int>(t));
    }
  }
  return bytes;
}

}  // namespace stretto::step
