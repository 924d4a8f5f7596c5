// How a kernel stands to the launch before it and to its own gate (launch_plan.h).
#pragma once

#include <string>

#include "stretto/codegen/copy_engine_plan.h"

namespace stretto {

// At a main kernel's begin. Beside its gate, which the stream holds first, it waits for nothing:
// what came before has ended, and this SM forgets what it may have read of that. `roles_wait`: for
// the launch before, each where it must (docs/decisions/0006-launches-that-start-early.md).
std::string stream_order_text(bool beside_gate, bool roles_wait);

// At the begin of a gate that a main kernel begins beside: it has as many blocks, of which the last
// stays.
std::string gate_begin_text();

// The gate's last steps: the words that the engines' queues copy, and that they may go on.
std::string let_queues_go_text(const CopyEnginePlan& engines);

}  // namespace stretto
