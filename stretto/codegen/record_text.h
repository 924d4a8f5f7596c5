// What kernels that record have beside their agents' events: lanes in shared memory, opened at the
// begin and written back at the end of every block. And the kernel that reads a device's timer.
#pragma once

#include <string>

#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// Of every block of the role a lane for each agent and one for the role beside it (-1: none), of
// `per_block`, to launch.event_lanes.
void add_lanes(const Role& role, int index, int beside, int per_block, LaunchPlan& launch);

// `per_block` lanes of each block's agents, then those of on_start and on_end. In a cluster the
// first block records for all. Adds the shared memory that they take; UserError where there is not
// enough.
std::string open_lanes_text(int per_block, int num_blocks, bool in_cluster,
                            std::size_t shared_limit, LaunchPlan& launch);
std::string close_lanes_text(int per_block);

// extern "C" stretto_clock(u64* words, i64 num_questions, u64 timeout_ns), as device/sm90/clock.h
// says; self-contained.
std::string clock_kernel_text();

}  // namespace stretto
