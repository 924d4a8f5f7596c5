// What was timed once more, with the recorder: launches in turn, written as one trace a shape.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/recorder.h"

namespace stretto::bench {

struct TracedLaunch {
  std::string name, config;      // a rank is "NAME rank R" in the trace
  std::function<void()> launch;  // and what comes before and after it in turn
  // Of the program that is launched, which was compiled to record (launch/executable.h).
  std::function<void(bool)> set_recording;
  std::function<void(Recorder&)> collect;
};

// `recorded` outlives it: an Executable, or what has one's set_recording() and collect().
template <typename Recorded>
TracedLaunch traced(std::string name, std::string config, std::function<void()> launch,
                    Recorded* recorded) {
  return {std::move(name), std::move(config), std::move(launch),
          [=](bool on) { recorded->set_recording(on); },
          [=](Recorder& recorder) { recorded->collect(recorder); }};
}

// All in turn, some rounds of which are recorded, into `folder`, named after the shape. UserError
// where that cannot be written; Fault where a launch is aborted.
void write_traces(const GpuWorld& world, const std::vector<TracedLaunch>& launches,
                  const std::string& folder, std::string shape);

}  // namespace stretto::bench
