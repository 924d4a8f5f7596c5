#include "stretto/model/gpu/gpu_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <future>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/base/threads.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {
namespace {

constexpr std::size_t kMostLayersAhead = 4;  // of each rank

double gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

// Steps of a prompt through sequence-parallel attention have up to four times as many rows.
std::size_t gpu_reserve_bytes(const ModelShape& shape) {
  return std::size_t{shape.has_whole_attention() ? 2u : 1u} << 30;
}

GpuModel::GpuModel(GpuWorld& world, const ModelShape& shape, const Checkpoint& checkpoint,
                   const GpuModelOptions& options)
    : world_(world), shape_(shape), options_(options) {
  STRETTO_CHECK(shape.all_ranks() == world.size(), "a model cut for another number of GPUs");
  STRETTO_CHECK((shape.data_groups > 1) == options.data_group.has_value(),
                "data groups are worlds, too");
  shape_.target = world.target();
  shape_.weight_dtype = weight_dtype(checkpoint, shape_.dtype);
  machine_ = calibrated_machine(shape_.world_size, world.target());
  // Rows of other steps have the same bits in all of them, so their products take one config.
  const bool chooses = shape_.has_whole_attention() && shape_.world_size <= machine_.num_gpus;
  shape_.machine = chooses ? &machine_ : nullptr;
  std::vector<step::Buffer> buffers = model_buffers(shape_);
  check_memory(buffers);
  for (const step::Buffer& b : buffers) {
    const std::size_t bytes = step::num_bytes(b);
    memory_.push_back(world_.allocate(bytes));
    buffers_[b.name] = memory_.back().addresses();
    bytes_[b.name] = bytes;
    for (int r : world_.local_ranks()) {
      CUdeviceptr address = buffers_[b.name][static_cast<std::size_t>(r)];
      world_.stream(r).fill_bytes(address, 0, bytes);
    }
  }
  world_.meet();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_.size()));
  checkpoint.check_unchanged();
  {
    std::vector<std::jthread> ranks;
    for (int r : world_.local_ranks()) {
      ranks.emplace_back([&, r] {
        try {
          upload_weights(r, checkpoint);
        } catch (...) {
          errors[static_cast<std::size_t>(r)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& e : errors) {
    if (e) std::rethrow_exception(e);
  }
  checkpoint.check_unchanged();
}

void GpuModel::check_memory(const std::vector<step::Buffer>& buffers) const {
  std::size_t needed = 0;
  for (const step::Buffer& b : buffers) needed += step::num_bytes(b);
  for (int r : world_.local_ranks()) {
    cuda::MemoryInfo memory = world_.device(r).memory();
    if (needed + gpu_reserve_bytes(shape_) <= memory.free_bytes) continue;
    throw UserError(fmt::format(
        "{}: {:.1f} GiB of weights and cache on each of {} GPUs, and {:.0f} GiB for work, do not "
        "fit: GPU {} has {:.1f} GiB free of {:.1f}; more ranks or fewer tokens would need less",
        shape_.config->where, gib(needed), world_.size(), gib(gpu_reserve_bytes(shape_)), r,
        gib(memory.free_bytes), gib(memory.total_bytes)));
  }
}

// Some layers are cut ahead, each on a thread of its own: copying takes longer than uploading. So
// the host holds a few layers, and no second copy of the model.
void GpuModel::upload_weights(int rank, const Checkpoint& checkpoint) {
  const ModelConfig& config = *shape_.config;
  const cuda::Stream& stream = world_.stream(rank);
  auto upload = [&](const std::string& name, const Matrix& m) {
    auto bytes = static_cast<std::size_t>(m.rows() * m.cols()) * size_bytes(m.dtype());
    STRETTO_CHECK(bytes == bytes_.at(name), name + " differs from the size that was planned");
    stream.upload(buffers_.at(name)[static_cast<std::size_t>(rank)], m.data(), bytes);
  };
  WeightLoader loader(checkpoint, config, shard_spec(shape_, rank));
  {
    ModelWeights outer = loader.outer();
    for_each_weight(outer, upload);
    stream.synchronize();
  }
  const bool tells = rank == world_.local_ranks().front();
  const std::size_t most_ahead =
      std::clamp<std::size_t>(num_processors() / world_.local_ranks().size(), 1, kMostLayersAhead);
  std::deque<std::future<LayerWeights>> ahead;
  std::int64_t begun = 0;
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    for (; begun < config.num_layers() && ahead.size() < most_ahead; ++begun) {
      ahead.push_back(
          std::async(std::launch::async, [&loader, begun] { return loader.layer(begun); }));
    }
    tell_layer(tells ? options_.progress : nullptr, i, config.num_layers());
    LayerWeights layer = ahead.front().get();
    ahead.pop_front();
    for_each_weight(layer, i, upload);
    stream.synchronize();
  }
}

}  // namespace stretto
