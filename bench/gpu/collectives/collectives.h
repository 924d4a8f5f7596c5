// Collectives of ours against NCCL's on several GPUs, from a few kilobytes to hundreds of
// megabytes: the best of a few configs, launched one by one and in captured graphs, call by call in
// turn, slowest rank. The same three buffer sets are used in turn: small messages stay in the L2
// cache, as they do between the layers of a model. The all-reduce that adds a residual and
// normalises is compared with NCCL's all-reduce and our RMSNorm after it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/collectives/collective_shapes.h"
#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/harness/nccl_samples.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct CollectivesOptions {
  std::string only;  // those whose text contains this: "all_reduce packet 16 KB"
  bool quick = false;
  int samples = 40;
  std::uint64_t seed = 0;
};

struct CollectiveResult {
  CollectiveShape shape;
  std::string error;  // empty where both were measured
  std::vector<TriedConfig> configs;
  std::string chosen;
  std::optional<NcclSamples> eager, graph;

  std::string to_string() const;  // a line
  Json to_json() const;           // every sample
};

std::vector<LabelledProgram> collectives_programs(int world_size,
                                                  const CollectivesOptions& options);

// Calls `done` after each shape. What fails for a shape is in its result.
void compare_collectives(GpuWorld& world, const CollectivesOptions& options,
                         const std::function<void(const CollectiveResult&)>& done);

}  // namespace stretto::bench
