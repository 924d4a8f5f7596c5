#include "stretto/predict/prediction.h"

#include <algorithm>
#include <utility>

#include "stretto/base/at.h"

namespace stretto::predict {
namespace {

constexpr double kMsPerSecond = 1e3;

bool communicates(const Timetable& timetable) {
  return std::any_of(timetable.works.begin(), timetable.works.end(),
                     [](const Work& w) { return w.own != w.own_local || w.remote_latency > 0; }) ||
         std::any_of(timetable.agents.begin(), timetable.agents.end(), [](const TimetableAgent& a) {
           return std::any_of(a.steps.begin(), a.steps.end(),
                              [](const Step& s) { return s.is_remote; });
         });
}

// Seconds per resource if nothing else held its users up.
std::vector<double> resource_times(const Timetable& timetable) {
  std::vector<double> seconds(timetable.capacity.size(), 0);
  for (const Work& w : timetable.works) {
    for (const Demand& d : w.demands) {
      seconds[at(d.resource)] += d.amount / timetable.capacity[at(d.resource)];
    }
  }
  return seconds;
}

Floors floors_of(const std::vector<double>& times) {
  Floors floors;
  auto raise = [](double& floor, double seconds) {
    floor = std::max(floor, seconds * kMsPerSecond);
  };
  for (std::size_t r = 0; r < times.size(); ++r) {
    switch (static_cast<int>(r % kNumUnits)) {
      case kTensor:
        raise(floors.tensor_ms, times[r]);
        break;
      case kL2:
        raise(floors.l2_ms, times[r]);
        break;
      case kHbm:
        raise(floors.hbm_ms, times[r]);
        break;
      case kCopy:
        raise(floors.copy_ms, times[r]);
        break;
      default:
        raise(floors.link_ms, times[r]);
    }
  }
  return floors;
}

std::string bound_of(const Floors& floors, const Timetable& timetable, double time_ms) {
  constexpr double kMost = 0.5;  // of the time, for a resource to be what counts
  const std::pair<double, Unit> candidates[] = {{floors.tensor_ms, kTensor},
                                                {floors.hbm_ms, kHbm},
                                                {floors.link_ms, kLinkIn},
                                                {floors.copy_ms, kCopy},
                                                {floors.l2_ms, kL2}};
  auto most = std::max_element(std::begin(candidates), std::end(candidates),
                               [](auto& a, auto& b) { return a.first < b.first; });
  if (most->first >= kMost * time_ms) return name(most->second);
  double own = 0, latency = 0;
  for (const Work& w : timetable.works) {
    own += w.own;
    latency += w.latency;
  }
  return own > latency ? "sms" : "latency";
}

std::vector<RoleSummary> roles_of(const Timetable& timetable, const Run& run) {
  std::vector<RoleSummary> roles;
  for (const Role& role : timetable.program->roles) {
    roles.push_back({.name = role.name, .num_workers = role.resource.num_workers});
  }
  for (std::size_t a = 0; a < timetable.agents.size(); ++a) {
    const TimetableAgent& agent = timetable.agents[a];
    if (agent.stage != Stage::kRoles) continue;
    const Agent& ir = timetable.program->roles[at(agent.role)].agents[at(agent.agent)];
    if (ir.kind == AgentKind::kProducer || ir.kind == AgentKind::kEpilogue) continue;
    const AgentTime& time = run.agents[a];
    roles[at(agent.role)].wait_ms += time.waited * kMsPerSecond;
    roles[at(agent.role)].busy_ms += (time.end - time.begin - time.waited) * kMsPerSecond;
  }
  return roles;
}

}  // namespace

const char* name(Unit unit) {
  constexpr const char* kNames[] = {"tensor", "l2", "hbm", "nvlink", "nvlink", "copy_engine"};
  return kNames[unit];
}

Prediction predict(const Lowered& program, const Machine& machine, const PredictOptions& options) {
  Prediction p;
  p.timetable = build_timetable(program, machine, options.timetable);
  p.run = run_timetable(p.timetable, {.record = options.record});
  p.time_ms = p.run.seconds * kMsPerSecond;
  if (communicates(p.timetable)) {
    double alone = run_timetable(p.timetable, {.free_communication = true}).seconds * kMsPerSecond;
    p.exposed_comm_ms = std::max(p.time_ms - alone, 0.0);
  }
  p.floors = floors_of(resource_times(p.timetable));
  p.bound_by = bound_of(p.floors, p.timetable, p.time_ms);
  p.roles = roles_of(p.timetable, p.run);
  return p;
}

}  // namespace stretto::predict
