// Makes text with a model on a world of ranks: prompts in, tokens out one by one. Requests run
// together (run_requests.h): every rank runs the same loop and draws the same tokens from the same
// logits, and rank 0 reports. On GPUs one host thread does so for all ranks of its process. Data
// groups have a loop and a cache each, for their share of the requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/engine/answer.h"
#include "stretto/engine/host_memory.h"
#include "stretto/engine/model_files.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/runtime/recorder.h"
#include "stretto/runtime/world.h"

namespace stretto {

// For tests: is called on every rank with each token's logits of each request before sampling
// changes them; on GPUs for the first rank of each process.
using OnLogits = std::function<void(int rank, std::size_t request, std::int64_t token,
                                    std::span<const float> logits)>;

struct EngineOptions {
  int world_size = 1;
  DType dtype = DType::kF32;
  std::int64_t max_tokens = 0;  // cache capacity; 0: the model's positions
  bool record = false;          // CPU ranks only
  Target device = Target::kCpu;
  // Ranks to run on, world_size of them; none: threads of this process, or its GPUs. GPUs take a
  // world of processes, where the process of rank 0 reports.
  std::shared_ptr<World> world;
  int expert_groups = 1;   // model_shape.h
  int data_groups = 1;     // likewise; several on GPUs: those of processes
  bool ulysses = false;    // likewise
  FusedExperts fused_experts = FusedExperts::kAuto;
  bool fp8_cache = false;  // model_shape.h: PagedCache
};

class Engine {
 public:
  // UserError for a world size outside 1..64, record on GPUs, or data groups on those of one
  // process; DeviceError where there are too few GPUs.
  Engine(const ModelFiles& files, const EngineOptions& options);

  // Serves the requests on one set of ranks, or dealt out over D data groups: group g has the
  // requests g, g + D and so on. Pieces of text of different requests come in any order. UserError
  // for an empty or too long prompt; all requests are checked before the first one runs. Results in
  // the order of the requests, empty where this process does not report.
  std::vector<GenerateResult> generate(const std::vector<GenerateRequest>& requests,
                                       const OnText& on_text = {}, const OnLogits& on_logits = {});

  struct Score {
    double nll_per_token = 0;
    std::int64_t tokens = 0;  // predicted
  };
  // Mean negative log-likelihood of every token after the first of each document (token ids), which
  // are dealt out as requests are.
  Score score(const std::vector<std::vector<int>>& documents,
              const std::function<void(std::size_t done)>& progress = {});

  // Runs `body` on every CPU rank with a model for many sequences at once, or once with one that
  // drives all GPUs of this process, and then without a rank. UserError where it does not fit the
  // memory.
  using RunBatches = std::function<void(Rank* rank, BatchModel& model)>;
  void run_batches(const BatchOptions& options, const RunBatches& body);

  // Its shape, from which its steps are planned; on GPUs for theirs.
  ModelShape batch_model_shape(const BatchOptions& options) const;
  // How large the cache of such a model is (host_memory.h, gpu_memory.h).
  CacheSize size_cache(const BatchOptions& options, std::size_t bytes) const;

  // Whether results come out in this process: it has rank 0.
  bool reports() const;

  // The world of CPU ranks, or of processes.
  World& world() { return *world_; }

 private:
  void join_group();  // on GPUs
  BatchOptions batch_options() const;    // what generate() and score() run with
  int index_of(const Rank* rank) const;  // among those that run_batches() gives
  int group_of(int rank) const;          // among the data groups
  // What the first rank of each data group hands in, by group, for rank 0. All ranks of
  // run_batches() call it.
  std::vector<Json> gather_groups(Rank* rank, const Json& mine) const;

  const ModelFiles& files_;
  EngineOptions options_;
  std::shared_ptr<World> world_;    // CPU ranks, or the processes that drive GPUs
  std::unique_ptr<GpuWorld> gpus_;  // on GPUs
  // Those of the own data group, where there are several.
  std::shared_ptr<Rank> group_rank_;
  std::unique_ptr<GpuWorld> group_gpus_;
};

}  // namespace stretto
