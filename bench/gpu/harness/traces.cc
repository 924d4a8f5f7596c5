#include "bench/gpu/harness/traces.h"

#include <algorithm>
#include <filesystem>
#include <list>
#include <utility>

namespace stretto::bench {

void write_traces(const GpuWorld& world, const std::vector<TracedLaunch>& launches,
                  const std::string& folder, std::string shape) {
  constexpr int kRounds = 6, kRecorded = 3;
  for (int i = 0; i < kRounds; ++i) {
    if (i == kRounds - kRecorded) {
      world.synchronize();
      for (const TracedLaunch& l : launches) l.set_recording(true);
    }
    for (const TracedLaunch& l : launches) l.launch();
  }
  world.synchronize();
  std::list<Recorder> recorders;
  std::vector<Recorder::Group> groups;
  Recorder::Notes notes;
  for (const TracedLaunch& l : launches) {
    l.collect(recorders.emplace_back(world.size()));
    groups.push_back({&recorders.back(), l.name});
    notes[l.name] = l.config;
  }
  std::ranges::replace(shape, ' ', '-');
  Recorder::write_trace(std::filesystem::path(folder) / (shape + ".trace.json"), groups, notes);
}

}  // namespace stretto::bench
