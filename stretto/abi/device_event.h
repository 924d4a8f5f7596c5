// What a kernel that records leaves in device memory of each tile, wait and notify. Plain data, the
// same on host and device.
#pragma once

enum class DeviceEventKind : short { kTile, kWait, kNotify };

struct DeviceEvent {
  unsigned long long begin_ns = 0, end_ns = 0;  // the device's timer; the same of a notify
  long long what = -1;  // the tile, or an index into a rank's counters; -1: packets
  unsigned epoch = 0;
  DeviceEventKind kind = DeviceEventKind::kTile;
  short rank = -1;  // whose counter, of a notify
};
static_assert(sizeof(DeviceEvent) == 32);
