// Calls of the driver as phases of the host's time (base/host_phases.h), each under its symbol.
#pragma once

namespace stretto::cuda {

// From now on, for as long as the process lives: every call goes through one function more. With no
// other thread calling the driver, at the first time. DeviceError as driver().
void phase_driver_calls();

}  // namespace stretto::cuda
