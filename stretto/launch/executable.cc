#include "stretto/launch/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_instance.h"

namespace stretto {

static_assert(Executable::kMostPrepared == GpuInstance::kMostPrepared);

namespace {

// What was made last, the last used first.
template <typename Made>
class LastMade {
 public:
  // What `is_it` knows, or null.
  template <typename IsIt>
  std::shared_ptr<Made> find(const IsIt& is_it) {
    auto known = std::find_if(made_.begin(), made_.end(), [&](const auto& m) { return is_it(*m); });
    if (known == made_.end()) return nullptr;
    std::rotate(made_.begin(), known, known + 1);
    return made_.front();
  }
  std::shared_ptr<Made> keep(std::shared_ptr<Made> made) {
    if (made_.size() == Executable::kMostPrepared) made_.pop_back();
    return *made_.insert(made_.begin(), std::move(made));
  }

 private:
  std::vector<std::shared_ptr<Made>> made_;
};

class CpuLaunch final : public Launch {
 public:
  CpuLaunch(Instance& instance, const Args& args)
      : instance_(instance), args_{.tensors = args.tensors, .extents = {}} {}

  void run(std::span<const std::int64_t> extents, const cuda::Stream* stream) override {
    STRETTO_CHECK(stream == nullptr, "CPU ranks have no streams");
    args_.extents.assign(extents.begin(), extents.end());
    instance_.launch(args_);
  }
  bool is_on(const Args& args) const { return args.tensors == args_.tensors; }

 private:
  Instance& instance_;
  LaunchArgs args_;
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Rank& rank, const Proved& program, const InstanceOptions& options)
      : instance_(rank, program, options) {}

  std::shared_ptr<Launch> prepare(const Args& args) override {
    if (args.scalars != nullptr || args.starts_early) {
      throw UserError(fmt::format("{}: CPU ranks take scalars by value, and begin launches in turn",
                                  program().name));
    }
    if (auto known = made_.find([&](const CpuLaunch& m) { return m.is_on(args); })) return known;
    return made_.keep(std::make_shared<CpuLaunch>(instance_, args));
  }
  const Program& program() const override { return instance_.program(); }

 private:
  Instance instance_;
  LastMade<CpuLaunch> made_;
};

class GpuRankLaunch final : public Launch {
 public:
  GpuRankLaunch(GpuInstance& instance, std::shared_ptr<GpuLaunch> launch, const GpuWorld& world,
                int rank)
      : instance_(instance), launch_(std::move(launch)), world_(world), rank_(rank) {}

  void run(std::span<const std::int64_t> extents, const cuda::Stream* stream) override {
    if (world_.aborted()) world_.throw_fault();
    instance_.run(*launch_, extents, stream == nullptr ? world_.stream(rank_) : *stream);
  }
  const GpuLaunch* prepared() const { return launch_.get(); }

 private:
  GpuInstance& instance_;
  std::shared_ptr<GpuLaunch> launch_;
  const GpuWorld& world_;
  int rank_;
};

class GpuExecutable final : public Executable {
 public:
  GpuExecutable(std::shared_ptr<GpuInstance> instance, GpuWorld& world, int rank, bool is_first)
      : instance_(std::move(instance)), world_(world), rank_(rank), is_first_(is_first) {
    args_.tensors.resize(program().tensors.size());
  }

  std::shared_ptr<Launch> prepare(const Args& args) override {
    place(args);
    std::shared_ptr<GpuLaunch> launch = instance_->prepare(args_, rank_);
    auto is_it = [&](const GpuRankLaunch& m) { return m.prepared() == launch.get(); };
    if (auto known = made_.find(is_it)) return known;
    return made_.keep(
        std::make_shared<GpuRankLaunch>(*instance_, std::move(launch), world_, rank_));
  }

  const Program& program() const override { return instance_->program(); }
  void recover() override {
    if (is_first_) instance_->recover();
  }
  void begin_recording() override {
    if (is_first_ && instance_->records()) instance_->set_recording(true);
  }
  void end_recording(Recorder& recorder) override {
    if (!is_first_ || !instance_->records()) return;
    instance_->collect(recorder);
    instance_->set_recording(false);
  }

 private:
  // The addresses of `args` on every rank.
  void place(const Args& args) {
    const Program& p = program();
    const auto size = static_cast<std::size_t>(world_.size());
    if (args.tensors.size() != p.tensors.size()) {
      throw UserError(fmt::format("{}: {} tensor arguments given, the program has {} tensors",
                                  p.name, args.tensors.size(), p.tensors.size()));
    }
    for (std::size_t t = 0; t < p.tensors.size(); ++t) {
      const Tensor& tensor = p.tensors[t];
      if (tensor.kind == TensorKind::kBuffer) continue;
      const TensorArg& from = args.tensors[t];
      std::vector<CUdeviceptr>& to = args_.tensors[t];
      to.assign(size, reinterpret_cast<CUdeviceptr>(from.data));
      if (tensor.space != Space::kSymmetric) continue;
      if (from.symmetric == nullptr) {
        throw UserError(fmt::format("{}: tensor '{}': is symmetric, pass a SymmetricBuffer", p.name,
                                    tensor.name));
      }
      for (std::size_t r = 0; r < size; ++r) {
        to[r] = reinterpret_cast<CUdeviceptr>(from.symmetric->at[r] + from.offset_bytes);
      }
    }
    args_.scalars.clear();
    if (args.scalars != nullptr) {
      args_.scalars.assign(size, reinterpret_cast<CUdeviceptr>(args.scalars));
    }
    args_.starts_early = args.starts_early;
  }

  std::shared_ptr<GpuInstance> instance_;
  GpuWorld& world_;
  int rank_;
  bool is_first_;  // of the process's: what holds for all of them is done there
  GpuLaunchArgs args_;
  LastMade<GpuRankLaunch> made_;
};

}  // namespace

SymmetricBuffer on_gpus(std::string name, const SymmetricGpuMemory& memory) {
  SymmetricBuffer out{.name = std::move(name), .at = {}};
  for (const cuda::DeviceMemory& on : memory.on) {
    out.bytes = on.bytes();
    out.at.push_back(reinterpret_cast<std::byte*>(on.address()));
  }
  return out;
}

std::unique_ptr<Executable> load(const Proved& program, Rank& rank,
                                 const InstanceOptions& options) {
  return std::make_unique<CpuExecutable>(rank, program, options);
}

std::vector<std::unique_ptr<Executable>> load(const Proved& program, GpuWorld& world,
                                              GpuCode code) {
  auto instance = std::make_shared<GpuInstance>(world, program, std::move(code));
  instance->replay_copies(world.local_ranks().size() == 1);
  std::vector<std::unique_ptr<Executable>> out;
  for (int r : world.local_ranks()) {
    out.push_back(std::make_unique<GpuExecutable>(instance, world, r, out.empty()));
  }
  return out;
}

}  // namespace stretto
