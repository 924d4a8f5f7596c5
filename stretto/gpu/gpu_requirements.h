// What a world asks of GPUs before anything runs on them, told from what drivers say about them
// alone: gpu_world.cc asks, and a machine without a GPU can test the answers.
#pragma once

#include "stretto/runtime/cuda/device.h"

namespace stretto {

// DeviceError, which names the GPU, where kernels are not made for it: they use what compute
// capability 9.0 alone has (PTX ISA, targets with suffix a).
void require_hopper(const cuda::DeviceProperties& device);

// What one GPU can do in another's memory.
struct PeerAccess {
  bool addresses = false;  // loads and stores
  bool atomics = false;
};

// DeviceError, which names both and says what is missing, where ranks on them could not reach each
// other. There is no way around it within a world: NVLink, or PCIe with native atomics, is needed.
void require_peers(const cuda::DeviceProperties& from, const cuda::DeviceProperties& to,
                   const PeerAccess& access);

}  // namespace stretto
