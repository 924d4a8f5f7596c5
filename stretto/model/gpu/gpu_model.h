// A model on all GPUs of a world: each rank's share of the weights and of the cache in that GPU's
// memory. One object on one host thread drives all ranks of this process, and is made in the same
// order in every process. gpu_batch.h makes its steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "stretto/base/progress.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/model/checkpoint/checkpoint.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/step/gpu_runner.h"

namespace stretto {

// Where there are several data groups, all GPUs are of a world of processes, and those of a group
// are a world, too; launches of both go onto the stream of the former.
struct GpuDataGroup {
  GpuWorld& world;
  Rank& rank;  // of the processes of all groups
};

struct GpuModelOptions {
  // Steps are captured once and replayed.
  bool graphs = true;
  // Launches of a captured step overlap at their edges (Args::starts_early).
  bool early_starts = true;
  std::optional<std::int64_t> swapped_expert_rows;  // else as the model's shape has it
  std::optional<std::int64_t> fused_expert_rows;    // likewise
  bool poison = false;                              // for tests, without graphs: step/cpu_runner.h
  std::optional<GpuDataGroup> data_group;           // where shape.data_groups is more than one
  Progress* progress = nullptr;  // hears what making model and steps does; outlives that
};

// Memory of a GPU that weights, cache and steps leave to code, signals and the driver's own needs,
// and where steps are not counted to them.
std::size_t gpu_reserve_bytes(const ModelShape& shape);

class GpuModel {
 public:
  // Copies the weights to the GPUs; `checkpoint` is read here only, `shape.config` and the world
  // must outlive the model. shape.weight_dtype is taken from the checkpoint, shape.target is CUDA;
  // products of long spread prompts take the configs that are predicted to be the fastest on this
  // machine. UserError where the weights and the cache do not fit the GPUs' free memory.
  GpuModel(GpuWorld& world, const ModelShape& shape, const Checkpoint& checkpoint,
           const GpuModelOptions& options = {});
  GpuModel(const GpuModel&) = delete;
  GpuModel& operator=(const GpuModel&) = delete;

  const ModelShape& shape() const { return shape_; }
  // By the names of model_buffers.h.
  const step::GpuBuffers& buffers() const { return buffers_; }

 private:
  void check_memory(const std::vector<step::Buffer>& buffers) const;
  void upload_weights(int rank, const Checkpoint& checkpoint);

  GpuWorld& world_;
  ModelShape shape_;
  GpuModelOptions options_;
  predict::Machine machine_;
  std::vector<SymmetricGpuMemory> memory_;
  step::GpuBuffers buffers_;
  std::map<std::string, std::size_t> bytes_;
};

}  // namespace stretto
