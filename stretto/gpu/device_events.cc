#include "stretto/gpu/device_events.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/codegen/signal_place.h"

namespace stretto {
namespace {

class EventReader {
 public:
  EventReader(const Program& program, const LaunchPlan& launch, Recorder& recorder)
      : program_(program),
        launch_(launch),
        recorder_(recorder),
        name_(recorder.intern(program.name)) {}

  struct Line {
    const char* role;
    const char* agent;
  };

  Line line_of(const EventLanePlan& lane) {
    if (lane.role < 0) return {recorder_.intern(lane.agent == 0 ? "on_start" : "on_end"), ""};
    const Role& role = program_.roles[static_cast<std::size_t>(lane.role)];
    auto consumers = std::count_if(role.agents.begin(), role.agents.end(),
                                   [](const Agent& a) { return a.kind != AgentKind::kProducer; });
    const Agent& agent = role.agents[static_cast<std::size_t>(lane.agent)];
    bool alone = agent.kind != AgentKind::kProducer && consumers == 1;
    return {recorder_.intern(role.name), alone ? "" : recorder_.intern(agent.name)};
  }

  Span span(const EventLanePlan& lane, const Line& line, const DeviceEvent& e) {
    Span s{.worker = lane.worker,
           .program = name_,
           .role = line.role,
           .agent = line.agent,
           .epoch = static_cast<std::int64_t>(e.epoch)};
    if (e.kind == DeviceEventKind::kTile) {
      s.tile = e.what;
      return s;
    }
    s.kind = SpanKind::kWait;
    s.detail = "packet";
    if (e.what >= 0) {
      SignalChannel at = channel_of(e.what);
      s.detail = at.signal;
      s.channel = at.channel;
    }
    return s;
  }

  NotifyMark mark(const EventLanePlan& lane, const Line& line, const DeviceEvent& e) {
    SignalChannel at = channel_of(e.what);
    return {.to_rank = e.rank,
            .worker = lane.worker,
            .program = name_,
            .role = line.role,
            .agent = line.agent,
            .signal = at.signal,
            .channel = at.channel,
            .epoch = static_cast<std::int64_t>(e.epoch)};
  }

  const char* name() const { return name_; }

 private:
  struct SignalChannel {
    const char* signal;
    std::int64_t channel;
  };

  SignalChannel channel_of(std::int64_t counter) {
    auto [signal, channel] = signal_place(launch_.signal_offsets, counter);
    return {recorder_.intern(program_.signals[signal].name), channel};
  }

  const Program& program_;
  const LaunchPlan& launch_;
  Recorder& recorder_;
  const char* name_;
};

}  // namespace

void add_events(const Program& program, const LaunchPlan& launch, int rank,
                const std::vector<LaneEvents>& lanes, const ClockReading& first,
                const ClockReading& last, Recorder& recorder) {
  EventReader reader(program, launch, recorder);
  auto time = [&](unsigned long long device_ns) {
    return host_time(static_cast<std::int64_t>(device_ns), first, last);
  };
  std::map<unsigned, Span> launches;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const EventLanePlan& lane = launch.event_lanes[l];
    if (lane.role < 0 && lane.agent < 0) continue;
    EventReader::Line line = reader.line_of(lane);
    for (const DeviceEvent& e : lanes[l].kept) {
      std::int64_t begin_ns = time(e.begin_ns), end_ns = time(e.end_ns);
      Span whole{.kind = SpanKind::kLaunch,
                 .rank = rank,
                 .program = reader.name(),
                 .epoch = static_cast<std::int64_t>(e.epoch),
                 .begin_ns = begin_ns,
                 .end_ns = end_ns};
      Span& around = launches.try_emplace(e.epoch, whole).first->second;
      around.begin_ns = std::min(around.begin_ns, begin_ns);
      around.end_ns = std::max(around.end_ns, end_ns);
      if (e.kind == DeviceEventKind::kNotify) {
        NotifyMark mark = reader.mark(lane, line, e);
        mark.from_rank = rank;
        mark.time_ns = begin_ns;
        recorder.add(mark);
        continue;
      }
      Span span = reader.span(lane, line, e);
      span.rank = rank;
      span.begin_ns = begin_ns;
      span.end_ns = end_ns;
      recorder.add(span);
    }
    auto kept = static_cast<std::int64_t>(lanes[l].kept.size());
    recorder.add_dropped(rank, lanes[l].num_seen - kept);
  }
  for (const auto& [epoch, span] : launches) recorder.add(span);
}

DeviceEvents::DeviceEvents(const GpuWorld& world, const LaunchPlan& launch)
    : world_(world),
      launch_(launch),
      capacity_(std::max<std::size_t>(kMaxEventsOfRank / launch.event_lanes.size(), 1)) {
  std::size_t lanes = launch.event_lanes.size();
  for (int r : world.local_ranks()) {
    const cuda::Device& device = world.device(r);
    ranks_.push_back({.clock = DeviceClock(device),
                      .first = {},
                      .events = {device, lanes * capacity_ * sizeof(DeviceEvent)},
                      .counts = {device, lanes * sizeof(std::uint32_t)}});
  }
  clear();
}

void DeviceEvents::clear() {
  for (int r : world_.local_ranks()) {
    const cuda::DeviceMemory& counts = ranks_[world_.local_index(r)].counts;
    world_.stream(r).fill_bytes(counts.address(), 0, counts.bytes());
  }
  world_.synchronize();
}

void DeviceEvents::set_enabled(bool on) {
  enabled_ = on;
  if (!on) return;
  clear();
  for (int r : world_.local_ranks()) {
    RankState& rank = ranks_[world_.local_index(r)];
    rank.first = rank.clock.read(world_.stream(r));
  }
}

DeviceEvents::Words DeviceEvents::words(int rank) const {
  const RankState& of_rank = ranks_[world_.local_index(rank)];
  return {.events = enabled_ ? of_rank.events.address() : 0,
          .counts = of_rank.counts.address(),
          .capacity = static_cast<std::int64_t>(capacity_)};
}

std::vector<LaneEvents> DeviceEvents::download(int rank) const {
  const RankState& of_rank = ranks_[world_.local_index(rank)];
  const cuda::Stream& stream = world_.stream(rank);
  std::vector<std::uint32_t> counts(launch_.event_lanes.size());
  stream.download(counts.data(), of_rank.counts.address(), of_rank.counts.bytes());
  stream.synchronize();
  std::vector<LaneEvents> lanes(counts.size());
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    lanes[l].num_seen = counts[l];
    lanes[l].kept.resize(std::min<std::size_t>(counts[l], capacity_));
    if (lanes[l].kept.empty()) continue;
    stream.download(lanes[l].kept.data(),
                    of_rank.events.address() + l * capacity_ * sizeof(DeviceEvent),
                    lanes[l].kept.size() * sizeof(DeviceEvent));
  }
  stream.synchronize();
  return lanes;
}

std::int64_t DeviceEvents::collect(const Program& program, Recorder& recorder) {
  std::vector<std::int64_t> errors;
  for (int r : world_.local_ranks()) {
    RankState& rank = ranks_[world_.local_index(r)];
    ClockReading last = rank.clock.read(world_.stream(r));
    add_events(program, launch_, r, download(r), rank.first, last, recorder);
    errors.push_back(std::max(rank.first.error_ns, last.error_ns));
    rank.first = last;
  }
  clear();
  std::sort(errors.begin(), errors.end(), std::greater<>());
  return errors.size() > 1 ? errors[0] + errors[1] : 0;
}

}  // namespace stretto
