// What the parts of the simulated driver share.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "stretto/runtime/cuda/driver_types.h"
#include "stretto/simulator/tasks.h"

#define SIM_API extern "C" __attribute__((visibility("default"))) CUresult

namespace stretto::cuda {

namespace sim = stretto::simulator;

constexpr CUresult kInvalid = CUresult(1), kNotFound = CUresult(500), kLaunchFailed = CUresult(719);
constexpr CUresult kCaptureInvalid = CUresult(901);
constexpr std::size_t kMemoryBytes = std::size_t{80} << 30;  // of a GPU, as it says

// A captured task: what to do, and the captured ones that it comes after.
struct Node {
  std::function<sim::Work()> work;
  std::vector<int> after;
};
struct Capture {
  std::uint64_t id = 0;
  std::vector<Node> nodes;
  std::vector<CUstream> streams;  // began it, or came to wait for its events
};
struct CUstream_st {
  int device = 0;
  int queue = 0;  // of the device's, where it has any
  sim::TaskRef last;
  std::shared_ptr<Capture> capture;  // that goes on
  std::vector<int> nodes;
};

// Of this process, as long as it lasts.
sim::Tasks& tasks();
// After a violation every call says so, as after a fault of a kernel.
CUresult state();
int current_device();
// After what is on the stream, or into the graph that it captures. `other`: a GPU through whose
// hardware queue it goes, too, or -1.
CUresult enqueue(CUstream stream, std::function<sim::Work()> work, int other = -1);
CUresult enqueue_act(CUstream stream, std::function<void()> act, int other = -1);

// Device memory is the host's.
inline unsigned char* bytes_at(CUdeviceptr address) {
  return reinterpret_cast<unsigned char*>(address);
}

}  // namespace stretto::cuda
