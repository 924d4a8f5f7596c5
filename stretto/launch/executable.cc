#include "stretto/launch/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/recently_used.h"
#include "stretto/gpu/gpu_instance.h"

namespace stretto {

static_assert(Executable::kMostPrepared == GpuInstance::kMostPrepared);

namespace {

template <typename Made>
using LastMade = RecentlyUsed<std::shared_ptr<Made>, Executable::kMostPrepared>;

class CpuLaunch final : public Launch {
 public:
  CpuLaunch(Instance& instance, const Args& args) : instance_(instance), args_(args) {}

  using Launch::run;
  void run(std::span<const std::int64_t> extents) override { instance_.launch(args_, extents); }
  void run(std::span<const std::int64_t>, std::span<const RankStream>) override {
    throw InternalError("CPU ranks have no streams");
  }
  bool is_on(const Args& args) const { return args.tensors == args_.tensors; }

 private:
  Instance& instance_;
  const Args args_;
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Rank& rank, const Proved& program, const InstanceOptions& options)
      : instance_(rank, program, options) {}

  std::shared_ptr<Launch> prepare(const Args& args) override {
    if (args.scalars != TensorArg{} || args.starts_early) {
      throw UserError(fmt::format("{}: CPU ranks take scalars by value, and begin launches in turn",
                                  program().name));
    }
    if (auto* known = made_.find([&](const auto& m) { return m->is_on(args); })) return *known;
    return made_.keep(std::make_shared<CpuLaunch>(instance_, args));
  }
  const Program& program() const override { return instance_.program(); }

 private:
  Instance instance_;
  LastMade<CpuLaunch> made_;
};

class GpuLaunches final : public Launch {
 public:
  using OfRanks = std::span<const std::shared_ptr<GpuLaunch>>;  // [local rank]
  GpuLaunches(GpuInstance& instance, const GpuWorld& world, OfRanks launches)
      : instance_(instance), world_(world), launches_(launches.begin(), launches.end()) {}

  using Launch::run;
  void run(std::span<const std::int64_t> extents) override {
    std::array<RankStream, World::kMaxWorldSize> on;
    const std::vector<int>& ranks = world_.local_ranks();
    for (std::size_t i = 0; i < ranks.size(); ++i) on.at(i) = {ranks[i], &world_.stream(ranks[i])};
    run(extents, {on.data(), ranks.size()});
  }
  void run(std::span<const std::int64_t> extents, std::span<const RankStream> on) override {
    if (world_.aborted()) world_.throw_fault();
    std::array<GpuInstance::RankLaunch, World::kMaxWorldSize> parts;
    for (std::size_t i = 0; i < on.size(); ++i) {
      parts.at(i) = {launches_[world_.local_index(on[i].rank)].get(), on[i].stream};
    }
    instance_.run({parts.data(), on.size()}, extents);
  }
  bool has(OfRanks launches) const { return std::ranges::equal(launches_, launches); }

 private:
  GpuInstance& instance_;
  const GpuWorld& world_;
  const std::vector<std::shared_ptr<GpuLaunch>> launches_;  // [local rank]
};

class GpuExecutable final : public Executable {
 public:
  GpuExecutable(const Proved& program, GpuWorld& world, GpuCode code)
      : world_(world), instance_(world, program, std::move(code)) {}

  std::shared_ptr<Launch> prepare(const Args& args) override {
    std::array<std::shared_ptr<GpuLaunch>, World::kMaxWorldSize> launches;
    const std::vector<int>& ranks = world_.local_ranks();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      launches.at(i) = instance_.prepare(args, ranks[i]);
    }
    const GpuLaunches::OfRanks now(launches.data(), ranks.size());
    if (auto* known = made_.find([&](const auto& m) { return m->has(now); })) return *known;
    return made_.keep(std::make_shared<GpuLaunches>(instance_, world_, now));
  }
  const Program& program() const override { return instance_.program(); }
  void wait() override { instance_.wait(); }
  void recover() override { instance_.recover(); }
  void replay_copies(bool on) override { instance_.replay_copies(on); }
  std::optional<SmDemand> waiting() const override { return instance_.waiting(); }
  void set_recording(bool on) override {
    if (instance_.records()) instance_.set_recording(on);
  }
  std::int64_t collect(Recorder& recorder) override {
    return instance_.records() ? instance_.collect(recorder) : 0;
  }

 private:
  const GpuWorld& world_;
  GpuInstance instance_;
  LastMade<GpuLaunches> made_;
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

std::unique_ptr<Executable> load(const Proved& program, GpuWorld& world, GpuCode code) {
  return std::make_unique<GpuExecutable>(program, world, std::move(code));
}

}  // namespace stretto
