// A program on memory of a comparison of layers of experts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "stretto/compiler.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {

inline constexpr DType kMoeDType = DType::kBF16;

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
inline std::size_t bf16_bytes(std::int64_t rows, std::int64_t cols) { return at(rows * cols * 2); }

using Tensors = std::map<std::string, const SymmetricGpuMemory*>;

// A program on every rank, bound to memory of the comparison.
class Loaded {
 public:
  Loaded(GpuWorld& world, const Program& program, const Tensors& tensors, bool records = false) {
    ProvedForGpu made = prove_for_gpu(lower(program), {.bounds_only = true}, {.record = records});
    instance_ = std::make_unique<GpuInstance>(world, made.program, std::move(made.code));
    args_.extents = extent_bounds(program);
    for (const Tensor& t : program.tensors) {
      auto it = tensors.find(t.name);
      args_.tensors.push_back(it == tensors.end() || t.kind == TensorKind::kBuffer
                                  ? std::vector<CUdeviceptr>{}
                                  : it->second->addresses());
    }
  }
  // Launched after this one.
  void then(std::unique_ptr<Loaded> next) { next_ = std::move(next); }
  void launch() const {
    instance_->launch(args_);
    if (next_) next_->launch();
  }
  void wait() const {
    instance_->wait();
    if (next_) next_->wait();
  }
  // Of what was loaded to record: GpuInstance::set_recording and collect.
  void set_recording(bool on) {
    instance_->set_recording(on);
    if (next_) next_->set_recording(on);
  }
  void collect(Recorder& recorder) {
    instance_->collect(recorder);
    if (next_) next_->collect(recorder);
  }

 private:
  std::unique_ptr<GpuInstance> instance_;
  GpuLaunchArgs args_;
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
