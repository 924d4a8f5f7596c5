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

#include "bench/gpu/experts/moe_shapes.h"
#include "bench/gpu/operand_type.h"
#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/random_fill.h"

namespace stretto::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRows = 8192, kModelWidth = 4096, kModelInner = 14336;

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

// Memory of every rank for the launches of a program.
struct FirstMemory {
  std::vector<SymmetricGpuMemory> tensors;  // empty for buffers
  Args args;
};

struct FirstOperator {
  std::string text;
  Program program;
  // Before a launch with m rows: what the tables hold then. Not timed.
  std::function<void(const GpuWorld&, const FirstMemory&, std::int64_t m)> set_tables = {};
};

template <typename Element>
void upload(const GpuWorld& world, int rank, const Program& program, const FirstMemory& memory,
            const char* name, const std::vector<Element>& values) {
  const auto t = static_cast<std::size_t>(program.find_tensor(name));
  world.stream(rank).upload(memory.tensors[t].on[static_cast<std::size_t>(rank)].address(),
                            values.data(), values.size() * sizeof(Element));
}

// The first layer of Mixtral 8x7B's experts, each split over the ranks. Tokens go to other experts
// with every m.
FirstOperator expert_layer(int ranks) {
  MoeShape shape{.model = "mixtral-8x7b",
                 .hidden = kModelWidth,
                 .ffn = kModelInner,
                 .num_experts = 8,
                 .top_k = 2,
                 .m = kMaxRows,
                 .world_size = ranks};
  AgGroupedDesc layer = first_layer(shape);
  AgGroupedConfig config = default_config(layer, Target::kCuda);
  Program program = ag_grouped_gemm(layer, config);
  ExpertTiles tiles = tiles_of(layer, config);
  ExpertTileOrder order =
      default_order(tiles, Target::kCuda, {.ffn = shape.ffn / ranks, .hidden = shape.hidden});
  auto set_tables = [=](const GpuWorld& world, const FirstMemory& memory, std::int64_t m) {
    MoeShape launched = shape;
    launched.m = m;
    std::vector<std::int32_t> chosen = random_experts(launched, static_cast<std::uint64_t>(m));
    for (int r : world.local_ranks()) {
      TileTables t = tile_tables(tiles, r, m, chosen, order);
      upload(world, r, program, memory, "tiles_used", std::vector{t.used});
      upload(world, r, program, memory, "tile_experts", t.experts);
      upload(world, r, program, memory, "tile_needs", t.needs);
      upload(world, r, program, memory, "row_tokens", t.tokens);
      world.stream(r).synchronize();
    }
  };
  return {"ag_grouped_gemm", program, set_tables};
}

std::vector<FirstOperator> first_operators(int ranks) {
  std::vector<FirstOperator> out;
  auto add = [&](std::string op, Program program) {
    out.push_back({std::move(op), std::move(program)});
  };
  GemmDesc product{.world_size = ranks,
                   .m = kMaxRows,
                   .n = kModelWidth,
                   .k = kModelInner / ranks,
                   .a_dtype = kDType,
                   .b_dtype = kDType,
                   .c_dtype = kDType};
  add("gemm", gemm(product, default_config(product, Target::kCuda)));
  GemmDesc scaled = product;
  scaled.a_dtype = scaled.b_dtype = DType::kF8E4M3;
  scaled.scaling = Scaling::kBlock;
  add("gemm e4m3 block", gemm(scaled, default_config(scaled, Target::kCuda)));
  AttentionDesc causal{.dtype = kDType,
                       .weight_dtype = kDType,
                       .m = kMaxRows,
                       .max_tokens = kMaxRows,
                       .num_heads = 32,
                       .num_kv_heads = 8,
                       .head_dim = 128,
                       .world_size = ranks};
  add("attention causal", attention(causal, default_config(causal, Target::kCuda)));
  if (ranks == 1) return out;
  auto shape = [&](OverlapKind kind, std::int64_t n, std::int64_t k) {
    return OverlapShape{.kind = kind, .rank = {.m = kMaxRows, .n = n, .k = k}, .world_size = ranks};
  };
  AgGemmDesc gathered =
      ag_gemm_desc(shape(OverlapKind::kAgGemm, 2 * kModelInner / ranks, kModelWidth));
  for (Gather gather : {Gather::kPull, Gather::kSend, Gather::kPush}) {
    add(fmt::format("ag_gemm {}", name(gather)),
        ag_gemm(gathered, default_config(gathered, Target::kCuda, gather)));
  }
  GemmRsDesc scattered =
      gemm_rs_desc(shape(OverlapKind::kGemmRs, kModelWidth, kModelInner / ranks));
  add("gemm_rs", gemm_rs(scattered, default_config(scattered, Target::kCuda)));
  GemmArDesc reduced = gemm_ar_desc(shape(OverlapKind::kGemmAr, kModelWidth, kModelInner / ranks));
  add("gemm_ar two-shot",
      gemm_ar(reduced, default_config(reduced, ReduceShots::kTwo, Target::kCuda)));
  CollectiveDesc sum{.dtype = kDType, .m = kMaxRows, .n = kModelWidth, .world_size = ranks};
  add("all_reduce two-shot", all_reduce(sum, default_two_shot_config(sum, Target::kCuda)));
  out.push_back(expert_layer(ranks));
  return out;
}

// Random values but in tables, which hold nothing yet.
FirstMemory random_memory(const GpuWorld& world, const Program& program, std::uint64_t seed) {
  RandomFill random(world, seed);
  FirstMemory memory;
  memory.tensors.resize(program.tensors.size());
  memory.args.tensors.resize(program.tensors.size());
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    if (program.tensors[t].kind == TensorKind::kBuffer) continue;
    memory.tensors[t] = random.allocate(storage_bytes(program, static_cast<int>(t)));
    memory.args.tensors[t].on = memory.tensors[t].addresses();
  }
  world.synchronize();
  return memory;
}

// m rows, and nothing before them.
std::vector<std::int64_t> extents_of(const Program& program, std::int64_t m) {
  std::vector<std::int64_t> out;
  for (const Var& v : program.vars) {
    if (v.kind == VarKind::kExtent) out.push_back(m);
    if (v.kind == VarKind::kScalar) out.push_back(0);
  }
  return out;
}

// A start; its parts go to `r`.
std::unique_ptr<Executable> start(GpuWorld& world, const Program& program, StartupResult& r) {
  Stopwatch watch;
  const GpuTarget gpu = world.target();
  ProvedForGpu made = prove_for_gpu(lower(program), {.gpu = gpu}, {.target = gpu});
  if (!made.code.image.from_cache) {
    ++r.compiled;
    r.nvrtc_s = made.code.image.compile_seconds;
  }
  r.code_ms.push_back(watch.ms());
  std::unique_ptr<Executable> executable = load(made.program, world, std::move(made.code));
  r.load_ms.push_back(watch.ms());
  r.warm_ms.push_back(r.code_ms.back() + r.load_ms.back());
  return executable;
}

void measure(GpuWorld& world, const FirstOperator& op, const StartupOptions& options,
             StartupResult& r) {
  EmptyCache cache;
  std::unique_ptr<Executable> executable = start(world, op.program, r);
  r.cold_s = r.warm_ms.front() / 1e3;
  for (auto* part : {&r.warm_ms, &r.code_ms, &r.load_ms}) part->clear();
  r.compiled = 0;
  for (int i = 0; i < options.starts; ++i) {
    executable.reset();
    executable = start(world, op.program, r);
  }
  FirstMemory memory = random_memory(world, op.program, options.seed);
  std::vector<std::int64_t> rows(kMaxRows);
  std::iota(rows.begin(), rows.end(), 1);
  std::shuffle(rows.begin(), rows.end(), std::mt19937_64(options.seed));
  rows.resize(static_cast<std::size_t>(std::min<std::int64_t>(options.num_m, kMaxRows)));
  int kernels = cache.num_kernels();
  for (std::int64_t m : rows) {
    if (op.set_tables) op.set_tables(world, memory, m);
    const std::vector<std::int64_t> extents = extents_of(op.program, m);
    Stopwatch watch;
    executable->prepare(memory.args)->run(extents);
    r.new_m_ms.push_back(watch.ms());
    executable->wait();
  }
  r.compiled += cache.num_kernels() - kernels;
}

double most(const std::vector<double>& samples) {
  return samples.empty() ? 0 : *std::max_element(samples.begin(), samples.end());
}

double median_of_some(const std::vector<double>& samples) {
  return samples.empty() ? 0 : median(samples);
}

}  // namespace

std::string StartupResult::to_string() const {
  if (!error.empty()) return fmt::format("{:20} FAILED: {}", op, error);
  return fmt::format(
      "{:20} cold {:.2f} s (NVRTC {:.2f}) | warm {:.1f} ms, at most {:.1f} (passes, proof and code "
      "{:.1f}, loading {:.1f}) | {} new m: {:.3f} ms, at most {:.3f} | {} compiled",
      op, cold_s, nvrtc_s, median_of_some(warm_ms), most(warm_ms), median_of_some(code_ms),
      median_of_some(load_ms), new_m_ms.size(), median_of_some(new_m_ms), most(new_m_ms), compiled);
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
  for (const FirstOperator& op : first_operators(world.size())) {
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
