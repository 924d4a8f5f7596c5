// A program on memory of a comparison of layers of experts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {

inline constexpr DType kMoeDType = DType::kBF16;

inline std::size_t bf16_bytes(std::int64_t rows, std::int64_t cols) { return at(rows * cols * 2); }

using Tensors = std::map<std::string, const SymmetricGpuMemory*>;

// A program on every rank, bound to memory of the comparison.
class Loaded {
 public:
  Loaded(GpuWorld& world, const Program& program, const Tensors& tensors, bool records = false) {
    const GpuTarget gpu = world.target();
    ProvedForGpu made = prove_for_gpu(lower(program), {.bounds_only = true, .gpu = gpu},
                                      {.target = gpu, .record = records});
    executable_ = load(made.program, world, std::move(made.code));
    extents_ = extent_bounds(program);
    Args args;
    for (const Tensor& t : program.tensors) {
      auto it = tensors.find(t.name);
      args.tensors.push_back(it == tensors.end() || t.kind == TensorKind::kBuffer
                                 ? TensorArg{}
                                 : TensorArg{.on = it->second->addresses()});
    }
    launches_ = executable_->prepare(args);
  }
  // Launched after this one.
  void then(std::unique_ptr<Loaded> next) { next_ = std::move(next); }
  void launch() const {
    launches_->run(extents_);
    if (next_) next_->launch();
  }
  void wait() const {
    executable_->wait();
    if (next_) next_->wait();
  }
  // Of what was loaded to record: Executable::set_recording and collect.
  void set_recording(bool on) {
    executable_->set_recording(on);
    if (next_) next_->set_recording(on);
  }
  void collect(Recorder& recorder) {
    executable_->collect(recorder);
    if (next_) next_->collect(recorder);
  }

 private:
  std::unique_ptr<Executable> executable_;
  std::shared_ptr<Launch> launches_;
  std::vector<std::int64_t> extents_;
  std::unique_ptr<Loaded> next_;
};

// Of what can launch() and wait(), against the fastest so far, if there is one.
template <typename Launched>
Contest contest(const GpuWorld& world, const Launched& made, const Launched* fastest) {
  RanksCall before;
  if (fastest) before = [&](int) { fastest->launch(); };
  Contest out = time_against(world, [&](int) { made.launch(); }, before, {.samples = 9});
  made.wait();
  return out;
}

}  // namespace stretto::bench
