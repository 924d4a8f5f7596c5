#include "stretto/gpu/gpu_requirements.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto {

void require_hopper(const cuda::DeviceProperties& device) {
  constexpr int kMajor = 9, kMinor = 0;
  if (device.cc_major == kMajor && device.cc_minor == kMinor) return;
  throw DeviceError(
      fmt::format("GPU {} ({}) has compute capability {}.{}, kernels are made for {}.{}: an H100, "
                  "H200 or GH200 is needed, or ranks on CPU",
                  device.ordinal, device.name, device.cc_major, device.cc_minor, kMajor, kMinor));
}

void require_peers(const cuda::DeviceProperties& from, const cuda::DeviceProperties& to,
                   const PeerAccess& access) {
  if (access.addresses && access.atomics) return;
  const char* what = access.addresses ? "has no atomics in" : "cannot address";
  throw DeviceError(
      fmt::format("GPU {} ({}, at {}) {} the memory of GPU {} ({}, at {}): peer access is off, or "
                  "no NVLink connects them (nvidia-smi topo -p2p rwa); ranks on them cannot reach "
                  "each other",
                  from.ordinal, from.name, from.pci, what, to.ordinal, to.name, to.pci));
}

}  // namespace stretto
