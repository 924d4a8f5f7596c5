// A program with memory of its own on every GPU of a world, ready to be measured: inputs and state
// hold random values, tables what their contracts allow, and there are several sets of all of it so
// that no launch finds its data in the cache.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/launch/executable.h"
#include "stretto/ops/measure/random_fill.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto {

// What the caller's tensors of one launch take on one rank.
std::size_t bytes_of_tensors(const Program& program);
// How many sets of a program to rotate through: enough that they take more than twice the L2 cache,
// but no more than nine, which is enough to find out.
int num_launch_sets(const Program& program, const GpuWorld& world);

struct GpuProgramOptions {
  bool record = false;      // executable().set_recording may be called
  std::string waiver = {};  // ProveOptions::waiver, as the user says it
};

class GpuProgram {
 public:
  // Proves for launches at the bounds, compiles, allocates, fills. Errors of prove_for_gpu() and
  // load().
  GpuProgram(GpuWorld& world, const Program& program, int num_sets, RandomFill& random,
             const GpuProgramOptions& options = {});
  GpuProgram(GpuProgram&&) = default;

  // From now on tensor `name` of set `set` lies in `memory`, which must outlive the program; what
  // was allocated for it is given back. Names no tensor: nothing. InternalError where it is smaller
  // than the tensor.
  void bind(const std::string& name, int set, const SymmetricGpuMemory& memory);

  RanksCall call() const;  // valid as long as this lives and nothing is bound
  Executable& executable() const { return *executable_; }
  int num_sets() const { return static_cast<int>(args_.size()); }

 private:
  SymmetricGpuMemory fill(const GpuWorld& world, int tensor, RandomFill& random) const;

  Program program_;
  std::vector<std::int64_t> extents_;  // at the bounds
  std::unique_ptr<Executable> executable_;
  std::vector<std::vector<SymmetricGpuMemory>> memory_;  // [set][tensor]
  std::vector<Args> args_;                               // [set]
};

struct ProgramTiming {
  int samples = 20;
  double warmup_ms = 20;
  int calls_per_graph = 0;  // as in RanksTimeOptions
};

// Milliseconds of each sample, [program][sample], slowest rank: launches of all in turn, each on
// memory of its own. Fault when a launch was aborted; the world is then as after clear_fault.
std::vector<std::vector<double>> time_programs(GpuWorld& world,
                                               const std::vector<Program>& programs,
                                               RandomFill& random, const ProgramTiming& timing);
// Of one by itself.
std::vector<double> time_program(GpuWorld& world, const Program& program, RandomFill& random,
                                 const ProgramTiming& timing);

}  // namespace stretto
