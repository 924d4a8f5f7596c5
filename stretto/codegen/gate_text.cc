#include "stretto/codegen/gate_text.h"

#include <fmt/format.h>

namespace stretto {

std::string stream_order_text(bool beside_gate, bool roles_wait) {
  std::string out = "  let_next_launch_start();\n";
  if (beside_gate) {
    return out + "  if (threadIdx.x == 0) fence_acq_rel_gpu();\n  __syncthreads();\n";
  }
  return out + (roles_wait ? "" : "  wait_for_previous_launch();\n");
}

std::string gate_begin_text() {
  return "  let_next_launch_start();\n  if (blockIdx.x + 1 < gridDim.x) return;\n";
}

std::string let_queues_go_text(const CopyEnginePlan& engines) {
  return fmt::format(
      "  for (i64 i = threadIdx.x; i < p.num_engine_marks; i += blockDim.x) {{\n"
      "    u64 word = epoch * p.engine_marks[2 * i] + p.engine_marks[2 * i + 1];\n"
      "    p.engine_words[i] = word;\n    p.engine_words_for_peers[i] = word;\n  }}\n"
      "  __syncthreads();\n  for (int queue = threadIdx.x; queue < {}; queue += blockDim.x) {{\n"
      "    ring_release_sys(p.engine_bells + {} + queue);\n  }}\n",
      engines.num_queues, engines.first_gate_bell);
}

}  // namespace stretto
