// Timestamps of tiles, waits and notifies, for kernels that record. A lane belongs to one agent of
// one block; what it holds lies in shared memory, so that no register is taken between events.
#pragma once

#include "stretto/abi/device_event.h"
#include "stretto/device/ptx/memory.h"

// The kernel's parameter: `capacity` events of each lane, and how many each has seen since they
// were last collected. Null events: off.
struct EventLog {
  DeviceEvent* events;
  u32* counts;
  i64 capacity;
};

struct EventLane {
  DeviceEvent* events;
  u32* count_home;
  u64 tile_begin_ns;
  u32 count, first, capacity, epoch;
};
static_assert(sizeof(EventLane) == 40, "codegen/record_text.cc");

STRETTO_DEVICE void open_lane(EventLane& lane, const EventLog& log, i64 idx, u64 epoch, bool on) {
  lane.events = on && log.events != nullptr ? log.events + idx * log.capacity : nullptr;
  lane.count_home = log.counts + idx;
  lane.count = lane.first = lane.events == nullptr ? 0 : *lane.count_home;
  lane.capacity = u32(log.capacity);
  lane.epoch = u32(epoch);
}
// Lanes that several blocks opened are written back by the one that added to them.
STRETTO_DEVICE void close_lane(const EventLane& lane) {
  if (lane.count != lane.first) *lane.count_home = lane.count;
}

// Events past the capacity are counted, not kept. Threads may add to a lane at the same time.
STRETTO_DEVICE void add_event(EventLane& lane, DeviceEventKind kind, i64 what, int rank,
                              u64 begin_ns, u64 end_ns) {
  if (lane.events == nullptr) return;
  u32 at = atomicAdd(&lane.count, 1u);
  if (at < lane.capacity) {
    lane.events[at] = DeviceEvent{begin_ns, end_ns, what, lane.epoch, kind, short(rank)};
  }
}

STRETTO_DEVICE void record_tile_begin(EventLane& lane) { lane.tile_begin_ns = global_timer_ns(); }
STRETTO_DEVICE void record_tile_end(EventLane& lane, i64 tile) {
  add_event(lane, DeviceEventKind::kTile, tile, -1, lane.tile_begin_ns, global_timer_ns());
}
// After the wait, whose thread has read the timer before it.
STRETTO_DEVICE void record_wait(EventLane& lane, i64 counter, u64 begin_ns) {
  add_event(lane, DeviceEventKind::kWait, counter, -1, begin_ns, global_timer_ns());
}
// After the notify, which is held up by nothing but the reading of the timer before it.
STRETTO_DEVICE void record_notify(EventLane& lane, i64 counter, int rank, u64 time_ns) {
  add_event(lane, DeviceEventKind::kNotify, counter, rank, time_ns, time_ns);
}
