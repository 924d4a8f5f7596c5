// How often tests launch.
#pragma once

#include "stretto/runtime/cuda/device.h"

namespace stretto {

// So often on GPUs; where they are simulated, a launch takes tens of milliseconds: a hundredth.
inline bool is_simulated() { return cuda::Device(0).properties().name == "simulated Hopper"; }
inline int launches_here(int on_gpus) { return is_simulated() ? (on_gpus + 99) / 100 : on_gpus; }

}  // namespace stretto
