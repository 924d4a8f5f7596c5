// What a waiting thread of a kernel leaves in host-mapped memory when its deadline passes. Plain
// data, the same on host and device.
#pragma once

struct DeviceFault {
  unsigned claimed = 0;  // the first thread to fault writes the rest
  int site = -1;         // index into the launch plan's list of waits
  int block = -1;
  int rank = -1;
  long long counter = -1;  // index into the rank's counters; -1: a packet
  unsigned long long expected = 0, seen = 0;
  unsigned long long ready = 0;  // written last
};
