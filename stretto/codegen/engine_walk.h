// Behind copy_engine_plan.h: one rank's tiles of a copy role, evaluated on the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/codegen/copy_engine_plan.h"

namespace stretto {

struct WalkStep {
  int worker = 0;
  std::int64_t tile = -1;
  const Op* op = nullptr;  // kCopy, kNotify, or a kWait that is not the gate's
  EngineCopy copy;         // kCopy; row_bytes 0 where nothing is copied
  bool grows = false;      // kCopy: the destination is larger than the source
  int rank = 0;            // kNotify
  std::int64_t counter = 0, amount = 0;
};

// Why the host cannot evaluate the role's tiles, or a copy engine not do what they say; empty where
// both can.
std::string walk_obstacle(const Program& schedule, const Role& role);

// In the order of tiles, for a role without obstacle.
std::vector<WalkStep> walk_role(const Program& schedule,
                                const std::vector<std::int64_t>& signal_offsets, const Role& role,
                                int rank, const std::vector<std::int64_t>& extents);

}  // namespace stretto
