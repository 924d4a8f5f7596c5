#include "bench/gpu/worlds/startup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gpu_harness/gpu_time.h"
#include "stretto/ops/gpu_harness/random_fill.h"

namespace stretto::bench {
namespace {

namespace fs = std::filesystem;

constexpr DType kDType = DType::kBF16;
constexpr std::int64_t kMaxRows = 8192, kHidden = 4096, kWide = 14336;

// STRETTO_CACHE_DIR is an empty directory while this lives.
class EmptyCache {
 public:
  EmptyCache() {
    std::string name = (fs::temp_directory_path() / "stretto-startup-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw UserError("startup: no temporary directory");
    directory_ = name;
    if (const char* before = std::getenv(kVariable)) before_ = before;
    setenv(kVariable, name.c_str(), 1);
  }
  ~EmptyCache() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
    before_.empty() ? unsetenv(kVariable) : setenv(kVariable, before_.c_str(), 1);
  }
  EmptyCache(const EmptyCache&) = delete;
  EmptyCache& operator=(const EmptyCache&) = delete;

  int num_kernels() const {
    int count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      count += entry.path().extension() == ".cubin" ? 1 : 0;
    }
    return count;
  }

 private:
  static constexpr const char* kVariable = "STRETTO_CACHE_DIR";
  fs::path directory_;
  std::string before_;
};

class Stopwatch {
 public:
  // Since it was made or last asked.
  double ms() {
    auto now = Clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(begin_, now)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

struct Operator {
  std::string text;
  Program program;
};

std::vector<Operator> operators(int ranks) {
  std::vector<Operator> out;
  auto add = [&](std::string op, Program program) {
    out.push_back({std::move(op), std::move(program)});
  };
  GemmDesc product{.world_size = ranks,
                   .m = kMaxRows,
                   .n = kHidden,
                   .k = kWide / ranks,
                   .a_dtype = kDType,
                   .b_dtype = kDType,
                   .c_dtype = kDType};
  add("gemm", gemm(product, default_config(product, Target::kCuda)));
  if (ranks == 1) return out;
  auto shape = [&](OverlapKind kind, std::int64_t n, std::int64_t k) {
    return OverlapShape{.kind = kind, .rank = {.m = kMaxRows, .n = n, .k = k}, .world_size = ranks};
  };
  AgGemmDesc gathered = ag_gemm_desc(shape(OverlapKind::kAgGemm, 2 * kWide / ranks, kHidden));
  for (Gather gather : {Gather::kPull, Gather::kSend, Gather::kPush}) {
    add(fmt::format("ag_gemm {}", name(gather)),
        ag_gemm(gathered, default_config(gathered, Target::kCuda, gather)));
  }
  GemmRsDesc scattered = gemm_rs_desc(shape(OverlapKind::kGemmRs, kHidden, kWide / ranks));
  add("gemm_rs", gemm_rs(scattered, default_config(scattered, Target::kCuda)));
  GemmArDesc reduced = gemm_ar_desc(shape(OverlapKind::kGemmAr, kHidden, kWide / ranks));
  add("gemm_ar two-shot",
      gemm_ar(reduced, default_config(reduced, ReduceShots::kTwo, Target::kCuda)));
  CollectiveDesc sum{.dtype = kDType, .m = kMaxRows, .n = kHidden, .world_size = ranks};
  add("all_reduce two-shot", all_reduce(sum, default_two_shot_config(sum, Target::kCuda)));
  return out;
}

// A start; its parts go to `r`.
std::unique_ptr<GpuInstance> start(GpuWorld& world, const Program& program, StartupResult& r) {
  Stopwatch watch;
  CompiledForGpu made = compile_for_gpu(program);
  if (!made.code.image.from_cache) {
    ++r.compiled;
    r.nvrtc_s = made.code.image.compile_seconds;
  }
  r.code_ms.push_back(watch.ms());
  auto instance = std::make_unique<GpuInstance>(world, made.program, std::move(made.code));
  r.load_ms.push_back(watch.ms());
  r.warm_ms.push_back(r.code_ms.back() + r.load_ms.back());
  return instance;
}

void measure(GpuWorld& world, const Operator& op, const StartupOptions& options, StartupResult& r) {
  EmptyCache cache;
  std::unique_ptr<GpuInstance> instance = start(world, op.program, r);
  r.cold_s = r.warm_ms.front() / 1e3;
  for (auto* part : {&r.warm_ms, &r.code_ms, &r.load_ms}) part->clear();
  r.compiled = 0;
  for (int i = 0; i < options.starts; ++i) {
    instance.reset();
    instance = start(world, op.program, r);
  }
  RandomFill random(world, options.seed);
  std::vector<SymmetricGpuMemory> memory;
  GpuLaunchArgs args;
  args.tensors.resize(op.program.tensors.size());
  for (std::size_t t = 0; t < op.program.tensors.size(); ++t) {
    if (op.program.tensors[t].kind == TensorKind::kBuffer) continue;
    memory.push_back(random.allocate(storage_bytes(op.program, static_cast<int>(t))));
    args.tensors[t] = memory.back().addresses();
  }
  world.synchronize();
  std::vector<std::int64_t> rows(kMaxRows);
  std::iota(rows.begin(), rows.end(), 1);
  std::shuffle(rows.begin(), rows.end(), std::mt19937_64(options.seed));
  rows.resize(static_cast<std::size_t>(std::min<std::int64_t>(options.num_m, kMaxRows)));
  int kernels = cache.num_kernels();
  for (std::int64_t m : rows) {
    args.extents = {m};
    Stopwatch watch;
    instance->launch(args);
    r.new_m_ms.push_back(watch.ms());
    instance->wait();
  }
  r.compiled += cache.num_kernels() - kernels;
}

double most(const std::vector<double>& samples) {
  return samples.empty() ? 0 : *std::max_element(samples.begin(), samples.end());
}

double median(const std::vector<double>& samples) {
  return samples.empty() ? 0 : median_interval(samples).median;
}

}  // namespace

std::string StartupResult::to_string() const {
  if (!error.empty()) return fmt::format("{:20} FAILED: {}", op, error);
  return fmt::format(
      "{:20} cold {:.2f} s (NVRTC {:.2f}) | warm {:.1f} ms, at most {:.1f} (passes, proof and code "
      "{:.1f}, loading {:.1f}) | {} new m: {:.3f} ms, at most {:.3f} | {} compiled",
      op, cold_s, nvrtc_s, median(warm_ms), most(warm_ms), median(code_ms), median(load_ms),
      new_m_ms.size(), median(new_m_ms), most(new_m_ms), compiled);
}

Json StartupResult::to_json() const {
  Json out = {
      {"op", op},           {"cold_s", cold_s},   {"nvrtc_s", nvrtc_s},   {"warm_ms", warm_ms},
      {"code_ms", code_ms}, {"load_ms", load_ms}, {"new_m_ms", new_m_ms}, {"compiled", compiled}};
  if (!error.empty()) out["error"] = error;
  return out;
}

void measure_startup(GpuWorld& world, const StartupOptions& options,
                     const std::function<void(const StartupResult&)>& done) {
  for (const Operator& op : operators(world.size())) {
    if (op.text.find(options.only) == std::string::npos) continue;
    StartupResult result{.op = op.text};
    try {
      measure(world, op, options, result);
    } catch (const Error& e) {
      result.error = e.what();
      world.synchronize();
      world.clear_fault();
    }
    done(result);
  }
}

}  // namespace stretto::bench
