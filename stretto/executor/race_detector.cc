#include "stretto/executor/race_detector.h"

#include <fmt/format.h>

#include <algorithm>

namespace stretto {
namespace {

void join(std::vector<std::uint32_t>& into, const std::vector<std::uint32_t>& from) {
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool overlap(const Observer::Box& a, const Observer::Box& b) {
  for (int d = 0; d < a.num_dims; ++d) {
    if (a.lo[d] >= b.hi[d] || b.lo[d] >= a.hi[d]) return false;
  }
  return true;
}

bool covers(const Observer::Box& outer, const Observer::Box& inner) {
  for (int d = 0; d < outer.num_dims; ++d) {
    if (inner.lo[d] < outer.lo[d] || inner.hi[d] > outer.hi[d]) return false;
  }
  return true;
}

bool conflict(TouchKind a, TouchKind b) {
  if (a == TouchKind::kReduce && b == TouchKind::kReduce) return false;
  return a != TouchKind::kRead || b != TouchKind::kRead;
}

const char* verb(TouchKind kind) {
  switch (kind) {
    case TouchKind::kRead:
      return "reads";
    case TouchKind::kWrite:
      return "writes";
    default:
      return "adds to";
  }
}

}  // namespace

RaceDetector::RaceDetector(const Program& program, int num_agents)
    : program_(program),
      clocks_(static_cast<std::size_t>(num_agents), Clock(static_cast<std::size_t>(num_agents))) {
  for (std::size_t a = 0; a < clocks_.size(); ++a) clocks_[a][a] = 1;
}

// What the agent does afterwards is not covered by what it published before.
void RaceDetector::publish(int agent, Clock& to) {
  to.resize(clocks_.size());
  join(to, clock(agent));
  ++clock(agent)[static_cast<std::size_t>(agent)];
}

void RaceDetector::order(int from, int to) { publish(from, clock(to)); }

void RaceDetector::notify(int agent, int rank, std::int64_t counter) {
  publish(agent, counters_[{rank, counter}]);
}

void RaceDetector::acquire(int agent, int rank, std::int64_t counter) {
  auto it = counters_.find({rank, counter});
  if (it != counters_.end()) join(clock(agent), it->second);
}

void RaceDetector::release(int agent, const void* object) { publish(agent, objects_[object]); }

void RaceDetector::acquire(int agent, const void* object) {
  auto it = objects_.find(object);
  if (it != objects_.end()) join(clock(agent), it->second);
}

void RaceDetector::store_packet(int agent, const Access& a) {
  access(agent, a);
  std::vector<PacketStore>& stores = packets_[{a.box.tensor, a.box.rank, a.slot}];
  std::erase_if(stores, [&](const PacketStore& s) { return covers(a.box, s.box); });
  PacketStore store{.box = a.box, .epoch = a.where.epoch};
  publish(agent, store.clock);
  stores.push_back(std::move(store));
}

void RaceDetector::load_packet(int agent, const Access& a) {
  for (const PacketStore& store : packets_[{a.box.tensor, a.box.rank, a.slot}]) {
    if (store.epoch == a.where.epoch && overlap(store.box, a.box)) {
      join(clock(agent), store.clock);
    }
  }
  access(agent, a);
}

void RaceDetector::access(int agent, const Access& a) {
  if (found()) return;
  std::vector<Record>& records = accesses_[{a.box.tensor, a.box.rank, a.slot}];
  const Clock& now = clock(agent);
  auto ordered = [&](const Record& r) { return now[static_cast<std::size_t>(r.agent)] >= r.time; };
  for (const Record& r : records) {
    if (ordered(r) || !conflict(r.access.kind, a.kind) || !overlap(r.access.box, a.box)) continue;
    report_ = fmt::format("race on tensor '{}' of rank {}:\n  {}\n  {}\n  nothing orders the two",
                          program_.tensors[static_cast<std::size_t>(a.box.tensor)].name, a.box.rank,
                          describe(r.access), describe(a));
    return;
  }
  // A covered and ordered record can no longer be the only witness of a race.
  std::erase_if(records, [&](const Record& r) {
    bool replaces = a.kind == TouchKind::kWrite || (r.agent == agent && r.access.kind == a.kind);
    return replaces && ordered(r) && covers(a.box, r.access.box);
  });
  records.push_back({agent, now[static_cast<std::size_t>(agent)], a});
}

std::string RaceDetector::describe(const Access& a) const {
  std::string range;
  for (int d = 0; d < a.box.num_dims; ++d) {
    range += fmt::format("{}{}:{}", d == 0 ? "" : ", ", a.box.lo[d], a.box.hi[d]);
  }
  std::string tile = a.where.tile < 0 ? "" : fmt::format(" tile {}", a.where.tile);
  std::string at =
      a.where.loc.file.empty() ? "" : fmt::format(" at {}:{}", a.where.loc.file, a.where.loc.line);
  return fmt::format("rank {} {}{} (launch {}) {} [{}]{}", a.where.rank, a.where.role, tile,
                     a.where.epoch, verb(a.kind), range, at);
}

}  // namespace stretto
