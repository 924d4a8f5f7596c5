// How a world of either kind is made, and the error that its ranks get together (world.h).
#pragma once

#include <chrono>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/processes/bootstrap_address.h"

namespace stretto {

// The UserError of a collective call that every rank comes to: all get it, and on each it counts as
// that call.
class Disagreement : public UserError {
 public:
  using UserError::UserError;
};

struct WorldOptions {
  int size = 1;                                       // 1..kMaxWorldSize
  std::chrono::milliseconds timeout = env_timeout();  // longest wait before a Fault
  bool record = false;                                // recorder on from the start
};

// One rank of a world of processes. Every process constructs its World at about the same time, and
// again for each further world.
struct ProcessWorldOptions {
  BootstrapAddress bootstrap;  // rank, size, and where the processes find each other
  std::chrono::milliseconds timeout = env_timeout();
  bool record = false;
};

}  // namespace stretto
