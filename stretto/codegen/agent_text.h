// The program of one agent as CUDA C++ on the vocabulary of stretto/device.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/codegen/early_loads.h"
#include "stretto/codegen/role_plan.h"
#include "stretto/device/wgmma_text.h"

namespace stretto {

// What agents of a kernel share while they are written.
struct KernelContext {
  const Program& program;
  LaunchPlan& launch;
  std::set<std::pair<WgmmaType, int>> wgmmas;
  std::vector<bool> constant;    // by tensor, where known (KernelOptions::constants)
  std::vector<bool> lines = {};  // by tensor: packets go in lines (codegen/packet_lines.h)
  // What declares the epoch, where agents that wait for the launch before read it for themselves.
  std::string epoch = "";
  std::string epoch_read = "";  // what reads it, at any time of the launch
  bool delays = false;          // pauses before waits and notifies (KernelOptions::delays)
  int num_pauses = 0;           // so far
  // The word of shared memory that says that a wait of the block was aborted; "" where nobody
  // asks (codegen/abort_text.h).
  std::string aborted = "";
  // Who has which named barrier, in the blocks of the role whose they are.
  std::map<std::pair<int, int>, std::string> barriers = {};
};

struct AgentSite {
  const Role* role = nullptr;
  int role_idx = -1, agent_idx = -1;
  const RolePlan* plan = nullptr;
  bool rings = false;         // a doorbell, `bell`, after every wait
  bool heeds_aborts = false;  // others could see what the block does after an aborted wait
  EarlyLoads early = {};
  int lane = -1;  // of the kernel's `lanes`, where it records
};

// All of them with the place in the tile program before each line (codegen/program_lines.h).

// Declarations, the loop over tiles and the body, as the inside of the branch that the agent's
// threads take.
std::string agent_text(KernelContext& kernel, const AgentSite& site);
// The agent of one thread, as the thread that begins at tile `first` and goes on by `step`.
std::string waits_text(KernelContext& kernel, const AgentSite& site, const std::string& first,
                       const std::string& step);
// The body alone, once: on_start and on_end.
std::string edge_text(KernelContext& kernel, const AgentSite& site);

}  // namespace stretto
