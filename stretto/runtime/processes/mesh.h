// A local socket between every two processes of a world, over which memory is passed and a death is
// noticed. Names are abstract: nothing lies on disk. After bootstrap(), before Peers.
#pragma once

#include <chrono>
#include <vector>

#include "stretto/runtime/processes/fd.h"
#include "stretto/runtime/processes/bootstrap_address.h"

namespace stretto {

// Sockets by rank (SOCK_SEQPACKET, non-blocking, closed on exec), the own one empty. Errors as
// bootstrap(), and a Fault naming the rank that ends or stalls in between.
std::vector<Fd> connect_peers(const BootstrapAddress& at, std::chrono::milliseconds timeout);

}  // namespace stretto
