#include "stretto/predict/flow_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "stretto/base/at.h"

namespace stretto::predict {
FlowPool::FlowPool(std::vector<double> capacity, bool free_communication)
    : capacity_(std::move(capacity)),
      load_(capacity_.size(), 0),
      pace_(capacity_.size(), 1),
      num_users_(capacity_.size(), 0),
      lanes_of_(capacity_.size()),
      free_communication_(free_communication) {}

int FlowPool::lane_of(const std::vector<Use>& uses) {
  std::vector<int> key;
  key.reserve(uses.size());
  for (const Use& use : uses) key.push_back(use.resource);
  std::sort(key.begin(), key.end());
  auto [entry, added] = lane_by_resources_.try_emplace(key, static_cast<int>(lanes_.size()));
  if (added) {
    for (int r : key) lanes_of_[at(r)].push_back(entry->second);
    lanes_.emplace_back().resources = std::move(key);
  }
  return entry->second;
}

void FlowPool::mark(int lane) {
  if (std::exchange(lanes_[at(lane)].is_stale, true)) return;
  changed_lanes_.push_back(lane);
}

void FlowPool::use(int resource, double load) {
  double& sum = load_[at(resource)];
  int& users = num_users_[at(resource)];
  sum += load;
  users += load > 0 ? 1 : -1;
  if (users == 0) sum = 0;  // no rounding left over
  changed_resources_.push_back(resource);
}

int FlowPool::start(double own, const Part* parts, int num_parts, double now) {
  int id = static_cast<int>(flows_.size());
  if (unused_.empty()) {
    flows_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Flow& flow = flows_[at(id)];
  flow.uses.clear();
  // Nobody wants more of a resource than there is, else they would slow down those who want little.
  for (int p = 0; p < num_parts; ++p) {
    for (const Demand& d : parts[p].work->demands) {
      if (d.is_comm && free_communication_) continue;
      own = std::max(own, d.amount * parts[p].share / capacity_[at(d.resource)]);
    }
  }
  for (int p = 0; p < num_parts; ++p) {
    for (const Demand& d : parts[p].work->demands) {
      double load = d.amount * parts[p].share / own;
      if (load <= 0 || (d.is_comm && free_communication_)) continue;
      auto same = std::find_if(flow.uses.begin(), flow.uses.end(),
                               [&](const Use& use) { return use.resource == d.resource; });
      if (same != flow.uses.end()) {
        same->load += load;
      } else {
        flow.uses.push_back({d.resource, load});
      }
    }
  }
  flow.lane = lane_of(flow.uses);
  Lane& lane = lanes_[at(flow.lane)];
  if (lane.num_flows++ == 0) {  // before its resources change: an idle lane has no pace to keep
    lane.clock = 0;
    lane.since = now;
    lane.rate = 1;
    for (int r : lane.resources) lane.rate = std::min(lane.rate, pace_[at(r)]);
  }
  for (const Use& u : flow.uses) use(u.resource, u.load);
  flow.own = own;
  flow.end = clock(lane, now) + own;
  flow.serial = ++serial_;
  lane.ends.push({flow.end, flow.serial, id});
  mark(flow.lane);
  ++num_flows_;
  return id;
}

void FlowPool::remove(int id, double now) {
  Flow& flow = flows_[at(id)];
  for (const Use& u : flow.uses) use(u.resource, -u.load);
  Lane& lane = lanes_[at(flow.lane)];
  lane.clock = clock(lane, now);
  lane.since = now;
  if (--lane.num_flows == 0) lane.ends = {};
  mark(flow.lane);
  flow.serial = 0;
  unused_.push_back(id);
  --num_flows_;
}

double FlowPool::cancel(int id, double now) {
  const Flow& flow = flows_[at(id)];
  double left = (flow.end - clock(lanes_[at(flow.lane)], now)) / flow.own;
  remove(id, now);
  return std::clamp(left, 0.0, 1.0);
}

void FlowPool::refresh(double now) {
  for (int r : changed_resources_) {
    double pace = load_[at(r)] > capacity_[at(r)] ? capacity_[at(r)] / load_[at(r)] : 1;
    if (pace == pace_[at(r)]) continue;
    pace_[at(r)] = pace;
    for (int l : lanes_of_[at(r)]) {
      if (lanes_[at(l)].num_flows > 0) mark(l);
    }
  }
  changed_resources_.clear();
  for (int l : changed_lanes_) {
    Lane& lane = lanes_[at(l)];
    lane.is_stale = false;
    ++lane.version;
    if (lane.num_flows == 0) continue;
    lane.clock = clock(lane, now);
    lane.since = now;
    lane.rate = 1;
    for (int r : lane.resources) lane.rate = std::min(lane.rate, pace_[at(r)]);
    while (flows_[at(lane.ends.top().id)].serial != lane.ends.top().serial) lane.ends.pop();
    const FlowEnd& first = lane.ends.top();
    lane_ends_.push({.time = now + std::max(first.end - lane.clock, 0.0) / lane.rate,
                     .serial = first.serial,
                     .lane = l,
                     .id = first.id,
                     .version = lane.version});
  }
  changed_lanes_.clear();
}

FlowPool::Next FlowPool::next(double now) {
  refresh(now);
  while (!lane_ends_.empty()) {
    const LaneEnd& first = lane_ends_.top();
    if (lanes_[at(first.lane)].version == first.version) return {first.time, first.id};
    lane_ends_.pop();
  }
  return {std::numeric_limits<double>::infinity(), -1};
}

}  // namespace stretto::predict
