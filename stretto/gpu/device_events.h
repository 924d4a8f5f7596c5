// What an instance whose kernel records has in device memory, and its way into a Recorder.
// device/sm90/event.h fills it, GpuInstance owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/abi/device_event.h"
#include "stretto/codegen/launch_plan.h"
#include "stretto/gpu/device_clock.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

// What a rank's device held: of each lane the events that it kept, and how many there were.
struct LaneEvents {
  std::vector<DeviceEvent> kept;
  std::int64_t num_seen = 0;
};

// As spans and notifies of `rank`, with a launch around those of each epoch; times through the two
// readings of the rank's clock. `lanes` as in launch.event_lanes. Producers, and consumers that
// take turns, have lines of their own.
void add_events(const Program& program, const LaunchPlan& launch, int rank,
                const std::vector<LaneEvents>& lanes, const ClockReading& first,
                const ClockReading& last, Recorder& recorder);

class DeviceEvents {
 public:
  static constexpr std::size_t kMaxEventsOfRank = std::size_t{1} << 19;  // 16 MiB

  DeviceEvents(const GpuWorld& world, const LaunchPlan& launch);

  // With all ranks idle. Switched on, forgets what was there and reads the clocks.
  void set_enabled(bool on);
  // The words of the kernel's parameter; a null address first while off.
  struct Words {
    CUdeviceptr events = 0, counts = 0;
    std::int64_t capacity = 0;
  };
  Words words(int rank) const;
  // With all ranks idle: moves what was recorded since it was switched on, or last collected.
  // Returns how far clocks of two ranks of this process may be apart, in ns.
  std::int64_t collect(const Program& program, Recorder& recorder);

 private:
  struct RankState {
    DeviceClock clock;
    ClockReading first;
    cuda::DeviceMemory events, counts;
  };

  std::vector<LaneEvents> download(int rank) const;
  void clear();

  const GpuWorld& world_;
  const LaunchPlan& launch_;
  std::size_t capacity_;  // events of a lane
  bool enabled_ = false;
  std::vector<RankState> ranks_;  // [world.local_ranks()]
};

}  // namespace stretto
