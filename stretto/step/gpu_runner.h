// A step plan (runner.h) on all GPUs of a world, driven by one host thread: a kernel per program,
// launches on the local ranks' streams. The inputs of a section come by one copy from page-locked
// memory; only who writes inputs again waits for its end. Behind it each rank launches one graph
// where a run's extents were captured.
//
// Launches of a rank follow one another on its stream, and one that starts early touches what it
// shares with those before once they have ended (decision 0006): so buffers share memory by life
// here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/launch/executable.h"
#include "stretto/step/runner.h"

namespace stretto::step {

// Addresses of buffers on every rank, by name.
using GpuBuffers = std::map<std::string, std::vector<CUdeviceptr>>;

// The world of all ranks, on whose streams everything runs, and that of the own group.
struct GpuWorlds {
  GpuWorld& all;
  GpuWorld& group;
};

struct GpuRunnerOptions {
  Sharing sharing = Sharing::kByLife;
  // By program, which launches it is proved for; none: for all that it takes.
  std::vector<ProveOptions> proofs = {};
  // Inputs that copy_rows writes, and the host does not.
  std::set<std::string> copied = {};
  // Launches of a captured section overlap at their edges (Args::starts_early).
  bool early_starts = true;
  // As CpuRunnerOptions.
  std::shared_ptr<const SymmetricGpuMemory> arena = nullptr;
  // As CpuRunnerOptions; then nothing can be captured.
  bool poison = false;
  Progress* progress = nullptr;  // hears what the construction does; outlives that
};

class GpuRunner final : public Runner {
 public:
  // `given`: memory of constants and states but for symmetric ones; outlives this. Collective in a
  // world of processes, as the destruction. UserError as check(), and where one is not given;
  // Rejected and errors of the compiler as build_kernels.
  GpuRunner(const GpuWorlds& worlds, Plan plan, const GpuBuffers& given,
            const GpuRunnerOptions& options = {});
  ~GpuRunner() override;

  std::byte* input(const std::string& buffer) override;
  void copy_rows(const std::string& from, std::span<const std::int64_t> rows,
                 const std::string& to) override;
  const std::byte* read(const std::string& output, std::size_t bytes) override;

  // From now on such runs are a graph. With all ranks idle.
  void capture(const std::string& section, const std::vector<std::int64_t>& values);
  // The nodes that such a run does not pass over.
  std::vector<std::size_t> nodes_of(const std::string& section,
                                    const std::vector<std::int64_t>& values);
  // Returns when all local ranks are done. Fault where a wait was aborted.
  void wait();
  // Returns when `event`, recorded on a local rank's stream, has passed; in a world of processes
  // when all local ranks are done. Fault where a wait was aborted.
  void wait_for(const cuda::Event& event);
  // By rank; a buffer's memory stays where it is.
  const std::vector<CUdeviceptr>& addresses(const std::string& buffer) const {
    return buffers_[static_cast<std::size_t>(index_of(buffer))];
  }
  const std::shared_ptr<const SymmetricGpuMemory>& arena() const { return arena_memory_; }

  // A program, with what all its launches in one run take by themselves.
  struct ProgramTime {
    std::string name;
    int launches = 0;
    double ms = 0;
  };
  // For measuring: the mean of `times` runs of each program's launches alone. Results are lost.
  std::vector<ProgramTime> time_programs(const std::string& section,
                                         const std::vector<std::int64_t>& values, int times);

 private:
  // A node made ready: what changes from step to step are its extents and where `moving` begins.
  struct ReadyNode {
    struct Moving {
      std::size_t tensor = 0;
      std::vector<CUdeviceptr> begin;
      std::size_t row_bytes = 0;
      Size from;
    };
    Executable* program = nullptr;
    bool of_group = false;  // runs in the group's world, which is not that of all ranks
    Args args;
    std::vector<Moving> moving;
    std::shared_ptr<Launch> late, early;  // by Args::starts_early; null before the first
  };
  using Graphs = std::vector<cuda::GraphExec>;  // by local rank

  void run_section(const Section& section, const std::vector<std::int64_t>& values) override;
  void load_programs(const GpuRunnerOptions& options);
  void place_inputs(const std::set<std::string>& copied);
  void allocate(const GpuBuffers& given);
  SymmetricGpuMemory allocate_zeros(std::size_t bytes) const;  // on every rank
  // The addresses of ranks in the world that a node runs in.
  std::vector<CUdeviceptr> addresses_for(const ReadyNode& node,
                                         const std::vector<CUdeviceptr>& of_all) const;
  ReadyNode prepare(const Node& node) const;
  void move(ReadyNode& node, const std::vector<std::int64_t>& values) const;
  static Launch& prepared(ReadyNode& node, bool early);
  void launch(ReadyNode& node, bool early, std::span<const std::int64_t> extents, int rank);
  void launch(ReadyNode& node, std::span<const std::int64_t> extents);  // on all local ranks
  void enqueue_inputs(const Section& section, int rank);
  void throw_if_aborted() const;
  // Captures a section's launches, or those of one program alone.
  Graphs capture_graphs(const Section& section, const std::vector<std::int64_t>& values,
                        std::optional<int> program = {});
  std::size_t index_of_section(const Section& section) const {
    return static_cast<std::size_t>(&section - plan().sections.data());
  }

  GpuWorld& world_;
  GpuWorld& group_;
  const bool early_starts_, poisons_;
  std::vector<std::unique_ptr<Executable>> executables_;  // by program
  std::vector<SymmetricGpuMemory> memory_;
  std::vector<std::vector<CUdeviceptr>> buffers_;  // by buffer, then by rank
  std::shared_ptr<const SymmetricGpuMemory> arena_memory_;
  std::vector<CUdeviceptr> arena_;  // by rank
  // What the host writes, one after the other: those of a section together.
  SymmetricGpuMemory inputs_;
  std::unique_ptr<cuda::HostMappedMemory> host_inputs_;
  std::map<int, std::size_t> input_at_;  // offset in them, by buffer
  std::vector<Range> inputs_of_;         // by section: what its run brings
  std::size_t input_bytes_ = 0;          // in all
  std::map<int, std::unique_ptr<cuda::HostMappedMemory>> host_outputs_;  // by buffer
  std::vector<ReadyNode> nodes_;
  std::vector<std::map<std::vector<std::int64_t>, Graphs>> graphs_;  // by section, then by values
  // By local rank: it has the inputs that were enqueued last.
  std::vector<cuda::Event> uploaded_;
  bool uploads_ = false;  // since the host last waited for these
};

}  // namespace stretto::step
