#include "stretto/codegen/record_text.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/codegen/agent_writer.h"
#include "stretto/codegen/role_plan.h"
#include "stretto/device/device_sources.h"

namespace stretto {

void add_lanes(const Role& role, int index, int beside, int per_block, LaunchPlan& launch) {
  const Resource& r = role.resource;
  int agents = static_cast<int>(role.agents.size());
  for (int block = 0; block < r.num_own_sms(); ++block) {
    for (int a = 0; a < per_block; ++a) {
      EventLanePlan lane{-1, -1, block / r.cluster_size};
      bool used = block % r.cluster_size == 0;
      if (used && a < agents) lane.role = index, lane.agent = a;
      if (used && a == agents && beside >= 0) lane.role = beside, lane.agent = 0;
      launch.event_lanes.push_back(lane);
    }
  }
}

std::string open_lanes_text(int per_block, int num_blocks, bool in_cluster,
                            std::size_t shared_limit, LaunchPlan& launch) {
  // Not static memory, which would take as much as what the rest is aligned to.
  constexpr std::size_t kBytesOfLane = 40;  // device/sm90/event.h
  const auto num_lanes = static_cast<std::size_t>(per_block) + 2;
  std::size_t at = launch.take_shared(num_lanes * kBytesOfLane);
  if (launch.shared_bytes > shared_limit) {
    throw UserError(
        fmt::format("{}: needs {} bytes of shared memory where it records, a block has {}",
                    launch.kernel, launch.shared_bytes, shared_limit));
  }
  return fmt::format(
      "  EventLane* const lanes = reinterpret_cast<EventLane*>(smem + {4});\n"
      "  if (threadIdx.x < {0}) {{\n"
      "    const int of_block = int(blockIdx.x) * {1} + int(threadIdx.x);\n"
      "    const int of_edge = {2} + int(threadIdx.x);\n"
      "    open_lane(lanes[threadIdx.x], p.events, threadIdx.x < {1} ? of_block : of_edge, epoch, "
      "{3});\n  }}\n  __syncthreads();\n",
      num_lanes, per_block, (num_blocks - 1) * per_block,
      in_cluster ? fmt::format("cta == 0 || threadIdx.x >= {}", per_block) : "true", at);
}

std::string close_lanes_text(int per_block) {
  return fmt::format(
      "  __syncthreads();\n  if (threadIdx.x < {}) close_lane(lanes[threadIdx.x]);\n",
      per_block + 2);
}

std::string clock_kernel_text() {
  return expand_includes(
      "#include \"stretto/device/sm90/clock.h\"\n\n"
      "extern \"C\" __global__ void stretto_clock(u64* words, i64 num_questions, u64 timeout_ns) "
      "{\n  answer_with_timer(words, num_questions, timeout_ns);\n}\n");
}

void AgentWriter::tile_begins() {
  if (!records()) return;
  line("{}record_tile_begin(lanes[{}]);", alone() ? "" : "if (team.tid == 0) ", site_.lane);
}

void AgentWriter::tile_ends() {
  if (!records()) return;
  line("{}record_tile_end(lanes[{}], {});", alone() ? "" : "if (team.tid == 0) ", site_.lane,
       var_text(program_, site_.role->tile_var));
}

void AgentWriter::timer_text(const char* name) {
  if (records()) line("const u64 {} = global_timer_ns();", name);
}

}  // namespace stretto
