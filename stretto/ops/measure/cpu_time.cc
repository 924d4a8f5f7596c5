#include "stretto/ops/measure/cpu_time.h"

#include <algorithm>
#include <chrono>

#include "stretto/launch/executable.h"
#include "stretto/ops/measure/values.h"
#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<double> slowest_of(const SymmetricBuffer& times, int num_ranks, std::size_t count) {
  std::vector<double> slowest(count, 0.0);
  for (int r = 0; r < num_ranks; ++r) {
    const auto* ns = times.on<std::int64_t>(r);
    for (std::size_t i = 0; i < count; ++i) {
      slowest[i] = std::max(slowest[i], 1e-6 * static_cast<double>(ns[i]));
    }
  }
  return slowest;
}

// The caller's tensors of one rank, filled.
class FilledTensors {
 public:
  // Collective: allocates symmetric tensors on the rank's world.
  FilledTensors(Rank& rank, const Program& program, std::uint64_t seed)
      : rank_(rank), owned_(program.tensors.size()) {
    args_.tensors.resize(owned_.size());
    const std::vector<Values> values = launch_values(program, rank.index(), seed);
    symmetric_.reserve(owned_.size());  // arguments point to them
    for (std::size_t t = 0; t < owned_.size(); ++t) {
      const Tensor& tensor = program.tensors[t];
      if (tensor.kind == TensorKind::kBuffer) continue;
      std::byte* to = allocate(tensor, t, storage_bytes(program, static_cast<int>(t)));
      for (std::size_t i = 0; i < values[t].size(); ++i) {
        store_element(tensor.dtype, to + i * size_bytes(tensor.dtype), values[t][i]);
      }
    }
  }
  ~FilledTensors() {
    for (const SymmetricBuffer& buffer : symmetric_) rank_.release(buffer);
  }
  FilledTensors(const FilledTensors&) = delete;
  FilledTensors& operator=(const FilledTensors&) = delete;

  const Args& args() const { return args_; }

 private:
  std::byte* allocate(const Tensor& tensor, std::size_t t, std::size_t bytes) {
    constexpr std::byte kPoison{0xFF};  // a NaN in every float format, -1 in integers
    std::byte* to = nullptr;
    if (tensor.space == Space::kSymmetric) {
      symmetric_.push_back(
          rank_.allocate(tensor.name, DType::kU8, std::max<std::size_t>(bytes, 1)));
      args_.tensors[t].symmetric = &symmetric_.back();
      to = symmetric_.back().at[static_cast<std::size_t>(rank_.index())];
    } else {
      owned_[t].resize(bytes);
      args_.tensors[t].data = to = owned_[t].data();
    }
    std::fill_n(to, bytes, kPoison);
    return to;
  }

  Rank& rank_;
  std::vector<std::vector<std::byte>> owned_;
  std::vector<SymmetricBuffer> symmetric_;
  Args args_;
};

}  // namespace

std::vector<double> time_on_cpu(const Program& program, const CpuTimeOptions& options) {
  Lowered lowered = lower(program);
  const std::vector<std::int64_t> extents = extent_bounds(program);
  ProveOptions launches = for_launches_of(lowered, extents);
  launches.waiver = options.waiver;
  Proved compiled = prove(lowered, launches);
  std::shared_ptr<World> world = options.world;
  if (world == nullptr) {
    world = std::make_shared<World>(WorldOptions{.size = program.world_size});
  }
  auto num_samples = static_cast<std::size_t>(options.samples);
  std::vector<double> slowest;  // by the lowest rank here
  world->run([&](Rank& rank) {
    SymmetricBuffer times = rank.allocate("times", DType::kI64, num_samples);
    FilledTensors memory(rank, program, options.seed);
    std::unique_ptr<Executable> loaded = load(compiled, rank);
    std::shared_ptr<Launch> launch = loaded->prepare(memory.args());
    for (int i = 0; i < options.warmups; ++i) launch->run(extents);
    rank.barrier();
    bool is_first = rank.index() == world->local_ranks().front();
    if (options.recorded && is_first) world->recorder().set_enabled(true);
    for (std::size_t i = 0; i < num_samples; ++i) {
      rank.barrier();
      Clock::time_point begin = Clock::now();
      launch->run(extents);
      std::chrono::nanoseconds time = Clock::now() - begin;
      times.on<std::int64_t>(rank.index())[i] = time.count();
    }
    rank.barrier();
    if (is_first) slowest = slowest_of(times, rank.size(), num_samples);
    rank.barrier();
    rank.release(times);
  });
  if (options.recorded) options.recorded(world->recorder());
  return slowest;
}

}  // namespace stretto
