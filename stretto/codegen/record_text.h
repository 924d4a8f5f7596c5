// What kernels that record have beside their agents' events: lanes in shared memory, opened at the
// begin and written back at the end of every block. And the kernel that reads a device's timer.
#pragma once

#include <string>

namespace stretto {

// `per_block` lanes of each block's agents, then those of on_start and on_end. In a cluster the
// first block records for all.
std::string open_lanes_text(int per_block, int num_blocks, bool in_cluster);
std::string close_lanes_text(int per_block);

// extern "C" stretto_clock(u64* words, i64 num_questions, u64 timeout_ns), as device/sm90/clock.h
// says; self-contained.
std::string clock_kernel_text();

}  // namespace stretto
