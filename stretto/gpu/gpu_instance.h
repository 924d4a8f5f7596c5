// A program made ready to run on the GPUs of a world: one kernel, generated and compiled once,
// loaded on every rank, with its own signals, buffers and epochs.
//
// Before: compiler.h made and proved the schedule. The CPU's counterpart is executor/executor.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto {

// What a launch works on. Every rank's address of every tensor that is the caller's: inputs,
// outputs, state; entries of buffers are ignored. Addresses are aligned to 16 bytes.
struct GpuLaunchArgs {
  std::vector<std::vector<CUdeviceptr>> tensors;  // [tensor][rank]
  std::vector<std::int64_t> extents;  // kExtent and kScalar variables in declaration order
};

class GpuInstance {
 public:
  // UserError for a program that has no GPU lowering or another world size; InternalError where the
  // generated kernel does not compile cleanly.
  GpuInstance(GpuWorld& world, const CompiledProgram& program);
  ~GpuInstance();
  GpuInstance(const GpuInstance&) = delete;
  GpuInstance& operator=(const GpuInstance&) = delete;

  // Enqueues one launch on every rank's stream of the world. Fault when an earlier launch aborted
  // the world. May be captured, stream by stream, between begin_capture and end_capture.
  void launch(const GpuLaunchArgs& args);
  void launch(const GpuLaunchArgs& args, int rank, const cuda::Stream& stream);
  // Waits for all ranks. Fault when a wait of this or another instance gave up.
  void wait();
  // With all ranks idle, after World::clear_fault: signals, epochs and packets start anew.
  void recover();

  const std::string& source() const;  // of the kernel
  double compile_seconds() const;
  bool from_cache() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
