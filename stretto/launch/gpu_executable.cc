#include "stretto/launch/gpu_executable.h"

#include <algorithm>
#include <array>
#include <utility>

#include "stretto/gpu/gpu_instance.h"

namespace stretto {

static_assert(GpuExecutable::kMostPrepared == GpuInstance::kMostPrepared);

GpuLaunches::GpuLaunches(GpuInstance& instance, const GpuWorld& world, OfRanks launches)
    : instance_(instance), world_(world), launches_(std::move(launches)) {}

void GpuLaunches::run(std::span<const std::int64_t> extents) {
  std::array<RankStream, World::kMaxWorldSize> on;
  const std::vector<int>& ranks = world_.local_ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) on.at(i) = {ranks[i], &world_.stream(ranks[i])};
  if (world_.aborted()) world_.throw_fault();
  run(extents, std::span(on.data(), ranks.size()));
}

void GpuLaunches::run(std::span<const std::int64_t> extents, std::span<const RankStream> on) {
  std::array<GpuInstance::RankLaunch, World::kMaxWorldSize> parts;
  for (std::size_t i = 0; i < on.size(); ++i) {
    parts.at(i) = {launches_[world_.local_index(on[i].rank)].get(), on[i].stream};
  }
  instance_.run({parts.data(), on.size()}, extents);
}

void GpuLaunches::run(std::span<const std::int64_t> extents, int rank, const cuda::Stream& stream) {
  const RankStream on{rank, &stream};
  run(extents, {&on, 1});
}

GpuExecutable::GpuExecutable(const Proved& program, GpuWorld& world, GpuCode code)
    : world_(world), instance_(std::make_unique<GpuInstance>(world, program, std::move(code))) {}

GpuExecutable::~GpuExecutable() = default;

std::shared_ptr<GpuLaunches> GpuExecutable::prepare(const GpuLaunchArgs& args) {
  std::array<std::shared_ptr<GpuLaunch>, World::kMaxWorldSize> launches;
  const std::vector<int>& ranks = world_.local_ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    launches.at(i) = instance_->prepare(args, ranks[i]);
  }
  const std::span<const std::shared_ptr<GpuLaunch>> now(launches.data(), ranks.size());
  auto known = std::ranges::find_if(
      made_, [&](const auto& m) { return std::ranges::equal(m->launches_, now); });
  if (known != made_.end()) {
    std::rotate(made_.begin(), known, known + 1);
    return made_.front();
  }
  if (made_.size() == kMostPrepared) made_.pop_back();
  std::shared_ptr<GpuLaunches> made(new GpuLaunches(*instance_, world_, {now.begin(), now.end()}));
  return *made_.insert(made_.begin(), std::move(made));
}

void GpuExecutable::wait() { instance_->wait(); }
void GpuExecutable::recover() { instance_->recover(); }
void GpuExecutable::replay_copies(bool on) { instance_->replay_copies(on); }
void GpuExecutable::set_recording(bool on) { instance_->set_recording(on); }
std::int64_t GpuExecutable::collect(Recorder& recorder) { return instance_->collect(recorder); }
const Program& GpuExecutable::program() const { return instance_->program(); }

std::unique_ptr<GpuExecutable> load_on_all(const Proved& program, GpuWorld& world, GpuCode code) {
  return std::unique_ptr<GpuExecutable>(new GpuExecutable(program, world, std::move(code)));
}

}  // namespace stretto
