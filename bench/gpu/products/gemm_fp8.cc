#include "bench/gpu/products/gemm_fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "bench/gpu/harness/search_times.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/measure/random_fill.h"
#include "stretto/runtime/cuda/cublaslt.h"

namespace stretto::bench {
namespace {

constexpr int kCheckedElements = 512;

std::vector<std::byte> download(const GpuWorld& world, const SymmetricGpuMemory& memory) {
  std::vector<std::byte> host(memory.on[0].bytes());
  world.stream(0).download(host.data(), memory.on[0].address(), host.size());
  world.stream(0).synchronize();
  return host;
}

// The factors, scales and results of one product, in as many sets as pass the L2 cache twice.
class Fp8Buffers {
 public:
  Fp8Buffers(const GpuWorld& world, const Fp8Shape& shape, std::uint64_t seed)
      : world_(world), shape_(shape), bits_(seed) {
    const GemmShape& s = shape.shape;
    auto bytes = [](std::int64_t rows, std::int64_t cols, DType dtype) {
      return static_cast<std::size_t>(rows * cols) * size_bytes(dtype);
    };
    bool block = shape.scaling == Scaling::kBlock;
    std::int64_t steps = ceil_div(s.k, kScaleBlock);
    std::size_t a = bytes(s.m, s.k, DType::kF8E4M3), b = bytes(s.n, s.k, DType::kF8E4M3),
                c = bytes(s.m, s.n, DType::kBF16);
    std::size_t scale_a = bytes(s.m, block ? steps : 1, DType::kF32),
                scale_b =
                    bytes(block ? ceil_div(s.n, kScaleBlock) : s.n, block ? steps : 1, DType::kF32);
    RandomFill factors(world, seed, DType::kF8E4M3), scales(world, seed + 1, DType::kF32);
    auto l2 = static_cast<std::size_t>(world.device(0).properties().l2_bytes);
    for (int i = 0; i < num_buffer_sets(a + b + c, l2); ++i) {
      sets_.push_back({factors.allocate(a), factors.allocate(b), scales.allocate(scale_a),
                       scales.allocate(scale_b), allocate_poisoned(world, c),
                       allocate_poisoned(world, c)});
    }
    world.synchronize();
  }

  int num_sets() const { return static_cast<int>(sets_.size()); }

  std::vector<std::int64_t> extents() const { return {shape_.shape.m}; }
  Args ours(int set, const Program& program) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    Args args{.tensors = std::vector<TensorArg>(program.tensors.size())};
    auto bind = [&](const char* name, const SymmetricGpuMemory& memory) {
      args.tensors[static_cast<std::size_t>(program.find_tensor(name))].on = {
          memory.on[0].address()};
    };
    bind("a", s.a);
    bind("b", s.b);
    bind("scale_a", s.scale_a);
    bind("scale_b", s.scale_b);
    bind("c", s.ours);
    return args;
  }

  // With scales of blocks the library takes scale_a transposed: the same values mean other scales
  // to it, and its result is not looked at.
  std::vector<cuda::CublasLtOperands> theirs() const {
    std::vector<cuda::CublasLtOperands> out;
    for (const Set& s : sets_) {
      out.push_back({s.a.on[0].address(), s.b.on[0].address(), s.theirs.on[0].address(),
                     s.scale_a.on[0].address(), s.scale_b.on[0].address()});
    }
    return out;
  }

  void poison_ours(int set) const { poison(world_, sets_[static_cast<std::size_t>(set)].ours); }

  // "" or the first of a few hundred elements that is further from its sum in double than the
  // tensor core's sums of 32 at a time and one rounding to bfloat16 explain.
  std::string check(int set) {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    std::vector<std::byte> a = download(world_, s.a), b = download(world_, s.b),
                           scale_a = download(world_, s.scale_a),
                           scale_b = download(world_, s.scale_b), c = download(world_, s.ours);
    const GemmShape& g = shape_.shape;
    bool block = shape_.scaling == Scaling::kBlock;
    std::int64_t steps = ceil_div(g.k, kScaleBlock);
    auto scale = [](const std::vector<std::byte>& from, std::int64_t at) {
      return load_element(DType::kF32, from.data() + at * 4);
    };
    for (int n = 0; n < kCheckedElements; ++n) {
      // The corner first, then anywhere.
      auto pick = [&](std::int64_t count) {
        return n == 0 ? count - 1
                      : static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(count));
      };
      std::int64_t i = pick(g.m), j = pick(g.n);
      double sum = 0, squares = 0;
      for (std::int64_t l = 0; l < g.k; ++l) {
        std::int64_t step = l / kScaleBlock;
        double term = load_element(DType::kF8E4M3, a.data() + i * g.k + l) *
                      load_element(DType::kF8E4M3, b.data() + j * g.k + l) *
                      scale(scale_a, block ? i * steps + step : i) *
                      scale(scale_b, block ? j / kScaleBlock * steps + step : j);
        sum += term;
        squares += term * term;
      }
      double got = load_element(DType::kBF16, c.data() + (i * g.n + j) * 2);
      double rounds =
          static_cast<double>(block ? kScaleBlock / 32 : ceil_div(g.k, std::int64_t{32}));
      double allowed = 0x1p-8 * std::fabs(sum) + rounds * 0x1p-13 * 2 * std::sqrt(squares);
      if (!(std::fabs(got - sum) <= allowed)) {
        return fmt::format("c[{}, {}] is {}, the sum in double {} (allowed difference {:.3g})", i,
                           j, got, sum, allowed);
      }
    }
    return "";
  }

 private:
  struct Set {
    SymmetricGpuMemory a, b, scale_a, scale_b, ours, theirs;
  };
  const GpuWorld& world_;
  Fp8Shape shape_;
  std::mt19937_64 bits_;
  std::vector<Set> sets_;
};

class Fp8Comparison {
 public:
  Fp8Comparison(GpuWorld& world, const Fp8Shape& shape, const Fp8Options& options)
      : world_(world), options_(options), buffers_(world, shape, options.seed) {
    result_.shape = shape;
    std::vector<GemmConfig> configs = options.configs.empty()
                                          ? gpu_configs(fp8_desc(shape), {.sms = options.num_sms})
                                          : options.configs;
    for (const GemmConfig& config : configs) {
      result_.configs.push_back({.config = config});
      Candidate& c = candidates_.emplace_back();
      try {
        c.program = gemm(fp8_desc(shape), config);
        Lowered lowered = lower(c.program);
        const GpuTarget gpu = world.target();
        c.executable = load(prove(lowered, for_launches_of(lowered, {shape.shape.m}, gpu)), world,
                            generate(lowered, {.target = gpu}));
      } catch (const Error& e) {
        result_.configs.back().error = e.what();
      }
    }
  }

  Fp8Result run() {
    open_library();
    if (!options_.profile) time_candidates();
    for (std::size_t i : by_time()) {
      buffers_.poison_ours(0);
      call_of(i)(0);
      ConfigTime& config = result_.configs[i];
      config.error = buffers_.check(0);
      if (!config.error.empty()) continue;
      result_.chosen = config.config;
      measure(i);
      result_.error = buffers_.check(options_.profile ? 0 : buffers_.num_sets() - 1);
      return std::move(result_);
    }
    result_.error = "no config of ours gives the product";
    return std::move(result_);
  }

 private:
  struct Candidate {
    Program program;
    std::unique_ptr<Executable> executable;  // null where it does not compile
  };

  GpuCall call_of(std::size_t candidate) const {
    const Candidate& c = candidates_[candidate];
    std::vector<std::shared_ptr<Launch>> launches;
    for (int set = 0; set < buffers_.num_sets(); ++set) {
      launches.push_back(c.executable->prepare(buffers_.ours(set, c.program)));
    }
    const cuda::Stream* stream = &world_.stream(0);
    return [launches, stream, extents = buffers_.extents()](int set) {
      launches[static_cast<std::size_t>(set)]->run(extents, 0, *stream);
    };
  }

  void open_library() {
    const Fp8Shape& s = result_.shape;
    bool rows = s.scaling == Scaling::kRowWise;
    try {
      library_.emplace(world_.device(0),
                       cuda::CublasLtGemmDesc{
                           s.shape.m, s.shape.n, s.shape.k, DType::kF8E4M3,
                           rows ? cuda::CublasLtScales::kRowWise : cuda::CublasLtScales::kBlock});
      library_->choose(world_.device(0), world_.stream(0), buffers_.theirs());
    } catch (const Error& e) {
      library_.reset();
      result_.library_error = e.what();
    }
  }

  void time_candidates() {
    std::vector<GpuCall> calls;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      calls.push_back(candidates_[i].executable == nullptr ? GpuCall() : call_of(i));
    }
    std::vector<double> ms = search_times(world_, calls, buffers_.num_sets());
    for (std::size_t i = 0; i < ms.size(); ++i) result_.configs[i].ms = ms[i];
  }

  std::vector<std::size_t> by_time() const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (result_.configs[i].ms > 0 || (options_.profile && candidates_[i].executable)) {
        order.push_back(i);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return result_.configs[a].ms < result_.configs[b].ms;
    });
    return order;
  }

  void measure(std::size_t candidate) {
    std::vector<GpuCall> calls = {call_of(candidate)};
    std::vector<cuda::CublasLtOperands> theirs = buffers_.theirs();
    if (library_) {
      calls.push_back(
          [&](int set) { library_->run(world_.stream(0), theirs[static_cast<std::size_t>(set)]); });
    }
    auto ms = time_gpu(world_.device(0), world_.stream(0), calls,
                       {.num_sets = buffers_.num_sets(),
                        .samples = options_.samples,
                        .profile = options_.profile});
    result_.samples.ours_ms = std::move(ms[0]);
    if (library_) result_.samples.theirs_ms = std::move(ms[1]);
  }

  GpuWorld& world_;
  const Fp8Options& options_;
  Fp8Buffers buffers_;
  std::vector<Candidate> candidates_;
  std::optional<cuda::CublasLtGemm> library_;
  Fp8Result result_;
};

}  // namespace

std::vector<Fp8Shape> fp8_shapes() {
  return {{{"cube", 8192, 8192, 8192}, Scaling::kRowWise},
          {{"up", 4096, 16384, 7168}, Scaling::kRowWise},
          {{"down", 4096, 7168, 16384}, Scaling::kBlock}};
}

GemmDesc fp8_desc(const Fp8Shape& s) {
  GemmDesc d = gemm_desc(s.shape, DType::kF8E4M3);
  d.c_dtype = DType::kBF16;
  d.scaling = s.scaling;
  return d;
}

double Fp8Result::tflops(double ms) const {
  const GemmShape& s = shape.shape;
  return 2e-9 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / ms;
}

std::string Fp8Result::to_string() const {
  const GemmShape& s = shape.shape;
  std::string out =
      fmt::format("{:8} {:6} {:6} {:6} {:9} ", s.label, s.m, s.n, s.k, name(shape.scaling));
  if (!samples.ours_ms.empty()) {
    MedianInterval ours = median_interval(samples.ours_ms);
    out += fmt::format("ours {:.4f} ms {:6.1f} TF/s", ours.median, tflops(ours.median));
  }
  if (!samples.theirs_ms.empty() && !samples.ours_ms.empty()) {
    MedianInterval theirs = median_interval(samples.theirs_ms);
    MedianInterval ratio = paired_ratio(samples.theirs_ms, samples.ours_ms);
    out += fmt::format("  theirs {:.4f} ms {:6.1f} TF/s  ratio {:.3f} [{:.3f}, {:.3f}]",
                       theirs.median, tflops(theirs.median), ratio.median, ratio.low, ratio.high);
  }
  out += "  " + stretto::to_string(chosen);
  if (!library_error.empty()) out += "\n  library: " + library_error;
  if (!error.empty()) out += "\n  FAILED: " + error;
  for (const ConfigTime& c : configs) {
    out += fmt::format("\n  {:.4f} ms {:6.1f} TF/s  {}{}{}", c.ms, c.ms > 0 ? tflops(c.ms) : 0.0,
                       stretto::to_string(c.config), c.error.empty() ? "" : ": ", c.error);
  }
  return out;
}

Json Fp8Result::to_json() const {
  const GemmShape& s = shape.shape;
  Json out = {{"label", s.label}, {"m", s.m}, {"n", s.n}, {"k", s.k}};
  out["scaling"] = name(shape.scaling);
  for (const ConfigTime& c : configs) {
    Json row = {{"config", stretto::to_string(c.config)}};
    if (c.ms > 0) row["ms"] = c.ms;
    if (!c.error.empty()) row["error"] = c.error;
    out["configs"].push_back(row);
  }
  if (!error.empty()) out["error"] = error;
  if (!library_error.empty()) out["library_error"] = library_error;
  out["chosen"] = stretto::to_string(chosen);
  out["ours_ms"] = samples.ours_ms;
  out["theirs_ms"] = samples.theirs_ms;
  return out;
}

namespace {

bool wanted(const Fp8Shape& s, const Fp8Options& options) {
  return fmt::format("{} {}", s.shape.label, name(s.scaling)).find(options.only) !=
         std::string::npos;
}

}  // namespace

std::vector<LabelledProgram> fp8_programs(const Fp8Options& options) {
  std::vector<LabelledProgram> programs;
  for (const Fp8Shape& s : fp8_shapes()) {
    if (!wanted(s, options)) continue;
    for (const GemmConfig& c : options.configs.empty()
                                   ? gpu_configs(fp8_desc(s), {.sms = options.num_sms})
                                   : options.configs) {
      try {
        programs.push_back(
            {fmt::format("fp8 {} {} | {}", s.shape.label, name(s.scaling), stretto::to_string(c)),
             gemm(fp8_desc(s), c)});
      } catch (const UserError&) {
        continue;  // compare_fp8 says what is wrong with it
      }
    }
  }
  return programs;
}

void compare_fp8(GpuWorld& world, const Fp8Options& options,
                 const std::function<void(const Fp8Result&)>& done) {
  for (const Fp8Shape& shape : fp8_shapes()) {
    if (!wanted(shape, options)) continue;
    Fp8Result result;
    try {
      result = Fp8Comparison(world, shape, options).run();
    } catch (const Error& e) {
      result = {.shape = shape, .error = e.what()};
    }
    done(result);
  }
}

}  // namespace stretto::bench
