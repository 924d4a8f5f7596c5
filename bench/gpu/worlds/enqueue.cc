#include "bench/gpu/worlds/enqueue.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/statistics.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/runtime/cuda/driver_calls_testing.h"

namespace stretto::bench {
namespace {

constexpr std::int64_t kRows = 2048, kHidden = 4096, kWide = 14336;

struct EnqueuedOperator {
  std::string text;
  Program program;
};

std::vector<EnqueuedOperator> enqueued_operators(int ranks) {
  std::vector<EnqueuedOperator> out;
  GemmDesc product{.world_size = ranks,
                   .m = kRows,
                   .n = kHidden,
                   .k = kWide / ranks,
                   .a_dtype = DType::kBF16,
                   .b_dtype = DType::kBF16,
                   .c_dtype = DType::kBF16};
  out.push_back({"gemm", gemm(product, default_config(product, Target::kCuda))});
  if (ranks == 1) return out;
  auto shape = [&](OverlapKind kind, std::int64_t n, std::int64_t k) {
    return OverlapShape{.kind = kind, .rank = {.m = kRows, .n = n, .k = k}, .world_size = ranks};
  };
  AgGemmDesc gathered = ag_gemm_desc(shape(OverlapKind::kAgGemm, 2 * kWide / ranks, kHidden));
  out.push_back({"ag_gemm", ag_gemm(gathered, default_config(gathered, Target::kCuda))});
  GemmRsDesc scattered = gemm_rs_desc(shape(OverlapKind::kGemmRs, kHidden, kWide / ranks));
  out.push_back({"gemm_rs", gemm_rs(scattered, default_config(scattered, Target::kCuda))});
  GemmArDesc reduced = gemm_ar_desc(shape(OverlapKind::kGemmAr, kHidden, kWide / ranks));
  out.push_back({"gemm_ar", gemm_ar(reduced, default_config(reduced, Target::kCuda))});
  CollectiveDesc sum{.dtype = DType::kBF16, .m = 8, .n = 1024, .world_size = ranks};
  out.push_back({"all_reduce", all_reduce(sum, default_all_reduce_config(sum, Target::kCuda))});
  return out;
}

// Memory for launches at two places, by turns.
struct EnqueuedMemory {
  std::vector<SymmetricGpuMemory> tensors;
  Args args[2];
  std::vector<std::int64_t> extents;
};

EnqueuedMemory memory_for(const GpuWorld& world, const Program& program) {
  constexpr std::size_t kApart = 256;  // bytes
  EnqueuedMemory memory;
  for (Args& args : memory.args) args.tensors.resize(program.tensors.size());
  for (const Var& v : program.vars) {
    if (v.kind == VarKind::kExtent) memory.extents.push_back(v.bound);
    if (v.kind == VarKind::kScalar) memory.extents.push_back(0);
  }
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    if (program.tensors[t].kind == TensorKind::kBuffer) continue;
    const SymmetricGpuMemory& made = memory.tensors.emplace_back(
        world.allocate(storage_bytes(program, static_cast<int>(t)) + kApart));
    for (int r : world.local_ranks()) {
      const cuda::DeviceMemory& on = made.on[static_cast<std::size_t>(r)];
      world.stream(r).fill_bytes(on.address(), 0, on.bytes());
    }
    for (std::size_t i = 0; i < 2; ++i) {
      memory.args[i].tensors[t].on = made.addresses();
      for (CUdeviceptr& address : memory.args[i].tensors[t].on) address += i * kApart;
    }
  }
  world.synchronize();
  return memory;
}

class Measurement {
 public:
  Measurement(GpuWorld& world, const EnqueuedOperator& op, const EnqueueOptions& options)
      : world_(world), options_(options), executable_(loaded(world, lower(op.program))) {
    memory_ = memory_for(world, executable_->program());
    result_.op = op.text;
  }

  EnqueueResult run() {
    std::optional<cuda::DriverCalls> swallowed;
    if (options_.swallow) swallowed.emplace(cuda::DriverCalls::Mode::kSwallow);
    for (const Args& args : memory_.args) result_.new_us.push_back(us_of(args, 1));
    result_.one_by_one = measure();
    executable_->replay_copies(true);
    us_of(memory_.args[0], 1);  // makes the graph
    result_.replayed = measure();
    return std::move(result_);
  }

 private:
  static std::unique_ptr<Executable> loaded(GpuWorld& world, const Lowered& program) {
    const GpuTarget gpu = world.target();
    return load(prove(program, {.bounds_only = true, .gpu = gpu}), world,
                generate(program, {.target = gpu}));
  }

  // As of a caller who finds out each time what it has prepared.
  void launch(const Args& args) { executable_->prepare(args)->run(memory_.extents); }

  // Of one, while the GPUs are busy with those before.
  double us_of(const Args& args, int launches) {
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) launch(args);
    std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    executable_->wait();
    return us.count() / launches / num_ranks();
  }

  EnqueueWay measure() {
    EnqueueWay way;
    for (int i = 0; i < options_.samples; ++i) {
      way.us.push_back(us_of(memory_.args[0], EnqueueOptions::kLaunches));
    }
    if (!options_.swallow) return count(std::move(way), cuda::DriverCalls());
    return count(std::move(way), cuda::DriverCalls(cuda::DriverCalls::Mode::kSwallow));
  }

  EnqueueWay count(EnqueueWay way, const cuda::DriverCalls& calls) {
    launch(memory_.args[0]);
    for (const auto& [name, n] : calls.counts()) {
      if (name == "cuCtxSetCurrent") continue;
      way.by_name[name] = static_cast<double>(n) / num_ranks();
      way.calls += way.by_name[name];
    }
    executable_->wait();
    return way;
  }

  double num_ranks() const { return static_cast<double>(world_.local_ranks().size()); }

  GpuWorld& world_;
  const EnqueueOptions& options_;
  std::unique_ptr<Executable> executable_;
  EnqueuedMemory memory_;
  EnqueueResult result_;
};

std::string text_of(const EnqueueWay& way) {
  return fmt::format("{:.1f} us in {:g} calls", median(way.us), way.calls);
}

Json json_of(const EnqueueWay& way) {
  return {{"calls", way.calls}, {"by_name", way.by_name}, {"us", way.us}};
}

}  // namespace

std::string EnqueueResult::to_string() const {
  return fmt::format("{:12} {} | replayed {} | new memory {:.1f} us", op, text_of(one_by_one),
                     text_of(replayed), median(new_us));
}

Json EnqueueResult::to_json() const {
  return {{"op", op},
          {"one_by_one", json_of(one_by_one)},
          {"replayed", json_of(replayed)},
          {"new_us", new_us}};
}

void measure_enqueueing(GpuWorld& world, const EnqueueOptions& options,
                        const std::function<void(const EnqueueResult&)>& done) {
  for (const EnqueuedOperator& op : enqueued_operators(world.size())) {
    if (op.text.find(options.only) == std::string::npos) continue;
    done(Measurement(world, op, options).run());
  }
}

}  // namespace stretto::bench
