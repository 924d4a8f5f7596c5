#include "stretto/engine/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/engine/gpu_memory.h"
#include "stretto/engine/host_memory.h"
#include "stretto/model/gpu/gpu_batch.h"
#include "stretto/model/gpu/gpu_model.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {
namespace {

// The least of what the ranks hand in, on all of them. Collective.
std::int64_t least_of(Rank& rank, std::int64_t value) {
  SymmetricBuffer values = rank.allocate("values", DType::kI64, 1);
  *values.on<std::int64_t>(rank.index()) = value;
  rank.barrier();
  for (int r = 0; r < rank.size(); ++r) value = std::min(value, *values.on<std::int64_t>(r));
  rank.barrier();
  rank.release(values);
  return value;
}

// What every rank hands in, at rank 0 and by rank; elsewhere empty. Collective.
std::vector<Json> gather(Rank& rank, const Json& value) {
  std::vector<std::uint8_t> bytes = Json::to_cbor(value);
  SymmetricBuffer sizes = rank.allocate("sizes of results", DType::kI64, 1);
  *sizes.on<std::int64_t>(rank.index()) = static_cast<std::int64_t>(bytes.size());
  rank.barrier();
  std::int64_t most = 0;
  for (int r = 0; r < rank.size(); ++r) most = std::max(most, *sizes.on<std::int64_t>(r));
  SymmetricBuffer results = rank.allocate("results", DType::kU8, static_cast<std::size_t>(most));
  std::copy(bytes.begin(), bytes.end(), results.on<std::uint8_t>(rank.index()));
  rank.barrier();
  std::vector<Json> all;
  for (int r = 0; rank.index() == 0 && r < rank.size(); ++r) {
    const auto* begin = results.on<std::uint8_t>(r);
    all.push_back(Json::from_cbor(begin, begin + *sizes.on<std::int64_t>(r)));
  }
  rank.barrier();
  rank.release(results);
  rank.release(sizes);
  return all;
}

}  // namespace

Engine::Engine(const ModelFiles& files, const EngineOptions& options)
    : files_(files), options_(options), world_(options.world) {
  bool on_cpu = options.device == Target::kCpu;
  if (options.record && options.data_groups > 1) {
    throw UserError("timelines are of one data-parallel group");
  }
  if (on_cpu && world_ == nullptr) {
    world_ =
        std::make_shared<World>(WorldOptions{.size = options.world_size, .record = options.record});
  }
  if (world_ != nullptr && world_->size() != options.world_size) {
    throw UserError(fmt::format("the engine is for {} ranks, its world has {}", options.world_size,
                                world_->size()));
  }
  if (on_cpu) return;
  if (options.record) throw UserError("timelines are recorded on CPU ranks only");
  if (options.data_groups > 1 && world_ == nullptr) {
    throw UserError("data-parallel groups on GPUs need a process per GPU");
  }
  if (world_ != nullptr) {
    gpus_ = std::make_unique<GpuWorld>(world_->local_rank(), GpuProcessOptions{});
    if (options.data_groups > 1) join_group();
  } else {
    gpus_ = std::make_unique<GpuWorld>(GpuWorldOptions{.size = options.world_size});
  }
}

void Engine::join_group() {
  Rank& rank = world_->local_rank();
  ModelShape shape{.world_size = options_.world_size / options_.data_groups,
                   .data_groups = options_.data_groups};
  group_rank_ = rank.split(ranks_of_group(shape, rank.index()));
  int device = gpus_->device(rank.index()).properties().ordinal;
  group_gpus_ = std::make_unique<GpuWorld>(*group_rank_, GpuProcessOptions{.device = device});
}

bool Engine::reports() const { return world_ == nullptr || world_->local_ranks().front() == 0; }

void Engine::run_batches(const BatchOptions& options, const RunBatches& body) {
  ModelShape shape = batch_model_shape(options);
  if (gpus_) {
    GpuModelOptions gpu{.progress = options.progress};
    if (group_gpus_) gpu.data_group.emplace(GpuDataGroup{*group_gpus_, world_->local_rank()});
    BatchModel model(std::make_unique<GpuBatchRunner>(*gpus_, shape, files_.checkpoint, gpu),
                     options.max_rows, options.progress);
    return body(nullptr, model);
  }
  check_host_memory(shape);
  world_->run([&](Rank& rank) {
    BatchModel model(rank, files_.config, files_.checkpoint, options);
    body(&rank, model);
  });
}

ModelShape Engine::batch_model_shape(const BatchOptions& options) const {
  ModelShape shape = batch_shape(files_.config, options_.world_size, options);
  shape.weight_dtype = weight_dtype(files_.checkpoint, options_.dtype);
  if (gpus_) shape.target = gpus_->target();
  return shape;
}

CacheSize Engine::size_cache(const BatchOptions& options, std::size_t bytes) const {
  ModelShape shape = batch_model_shape(options);
  if (gpus_) {
    CacheSize size = size_of_gpu_cache(*gpus_, shape, options.max_rows, bytes);
    if (world_) size.num_pages = least_of(world_->local_rank(), size.num_pages);
    return size;
  }
  CacheSize size = size_of_cache(shape, bytes);
  shape.paged.num_pages = std::max<std::int64_t>(size.num_pages, 1);
  for (const step::Buffer& b : model_buffers(shape)) size.weight_bytes += step::num_bytes(b);
  size.weight_bytes -= static_cast<std::size_t>(shape.paged.num_pages) * size.page_bytes /
                       static_cast<std::size_t>(shape.world_size);
  BatchMemory work = batch_memory(shape, options.max_rows);
  size.work_bytes = work.bytes;
  size.unshared_bytes = work.unshared;
  return size;
}

// Of GPUs one thread runs all of its process, as the first of them.
int Engine::index_of(const Rank* rank) const {
  return rank != nullptr ? rank->index() : gpus_->local_ranks().front();
}

int Engine::group_of(int rank) const { return rank / (options_.world_size / options_.data_groups); }

std::vector<Json> Engine::gather_groups(Rank* rank, const Json& mine) const {
  if (options_.data_groups == 1) return {mine};
  std::vector<Json> of_ranks = gather(rank != nullptr ? *rank : world_->local_rank(), mine);
  std::vector<Json> out;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    if (group_of(static_cast<int>(r)) == std::ssize(out)) out.push_back(std::move(of_ranks[r]));
  }
  return out;
}

}  // namespace stretto
