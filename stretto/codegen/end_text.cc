#include "stretto/codegen/end_text.h"

#include <fmt/format.h>

#include "stretto/codegen/launch_plan.h"

namespace stretto {

std::string blocks_await_start_text(std::size_t site, const std::string& aborted) {
  return fmt::format(
      "  __syncthreads();\n  if (threadIdx.x == 0) {{\n    if (blockIdx.x == 0) {{\n"
      "      fence_acq_rel_gpu();\n      store_relaxed_sys(p.control + {0}, epoch + 1);\n"
      "    }} else {{\n"
      "      wait_acquire_sys(p.control + {0}, epoch + 1, p.watch, {1}, -1{2});\n"
      "    }}\n  }}\n  __syncthreads();\n  fence_proxy_async_global();\n",
      int{kControlStarted}, site, aborted.empty() ? "" : ", " + aborted);
}

// The epoch is read again, since few registers are left to threads that gave theirs away, and
// products take all of the others'.
std::string end_of_launch_text(const std::string& on_end, const std::vector<RolePlan>& plans,
                               bool beside_gate) {
  std::string out =
      "  bool last = false;\n  __syncthreads();\n"
      "  const u64 now = load_relaxed_sys(p.control);\n  if (threadIdx.x == 0) {\n"
      "    fence_acq_rel_gpu();\n"
      "    u64 finished = add_relaxed_gpu(p.control + 2, 1) + 1;\n"
      "    last = finished == (now + 1) * gridDim.x;\n"
      "    fence_acq_rel_gpu();\n  }\n  last = __syncthreads_or(last);\n";
  out += on_end;
  out += "  __syncthreads();\n  if (last && threadIdx.x == 0) {\n";
  if (beside_gate) out += "    wait_for_previous_launch();  // the gate\n";
  for (const RolePlan& plan : plans) {
    if (plan.ticket_word < 0) continue;
    out += fmt::format("    store_relaxed_sys(p.control + {}, 0);\n", plan.ticket_word);
  }
  return out + "    store_relaxed_sys(p.control, now + 1);\n  }\n";
}

}  // namespace stretto
