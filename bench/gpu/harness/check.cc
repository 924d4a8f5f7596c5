#include "bench/gpu/harness/check.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <set>

#include "bench/gpu/products/gemm_fp8.h"
#include "bench/gpu/products/gemm_shapes.h"
#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/cases/grouped_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/gpu_harness/late_inputs.h"

namespace stretto::bench {
namespace {

// Few, so that every worker has several tiles and the pipes wrap around.
constexpr int kWorkers = 3;

struct SmallGemm {
  GemmShape shape;
  std::int64_t rows;  // of the launch; at most shape.m
};

// Even; ragged in every dimension; fewer rows than a tile; one row.
const SmallGemm kSmall[] = {
    {{"even", 256, 512, 256}, 256},   {{"ragged", 344, 520, 328}, 339},
    {{"few rows", 24, 264, 136}, 17}, {{"one row", 8, 136, 72}, 1},
    {{"wide", 136, 1160, 520}, 131},
};

void add_gemm(std::vector<CheckCase>& cases, const SmallGemm& small, const GemmDesc& desc,
              const GemmConfig& config) {
  cases.push_back({.label = fmt::format("{} {} m={} | {}", small.shape.label, to_string(desc),
                                        small.rows, to_string(config)),
                   .program = [=] { return gemm(desc, config); },
                   .make =
                       [=](std::uint64_t seed) {
                         return std::vector{gemm_case(desc, config, small.rows, seed)};
                       }});
}

void add_gemm(std::vector<CheckCase>& cases, const SmallGemm& small, DType dtype,
              const GemmConfig& config) {
  add_gemm(cases, small, gemm_desc(small.shape, dtype), config);
}

// As the chooser has them, on few workers.
void add_fp8(std::vector<CheckCase>& cases, const SmallGemm& small,
             std::initializer_list<Scaling> scalings = {Scaling::kRowWise, Scaling::kBlock}) {
  for (Scaling scaling : scalings) {
    GemmDesc desc = fp8_desc({small.shape, scaling});
    std::set<std::string> added;
    for (GemmConfig config : gpu_configs(desc, {.sms = kWorkers})) {
      config.loop.num_compute_sms = kWorkers;
      config.loop.raster = 2;
      if (added.insert(to_string(config)).second) add_gemm(cases, small, desc, config);
    }
  }
}

void add_grouped(std::vector<CheckCase>& cases, GroupedDesc desc, int workers) {
  desc.num_experts = 6;  // a launch of one seed in four gives all rows to one of them
  GroupedConfig config = default_config(desc, Target::kCuda);
  config.loop.num_compute_sms = workers;
  cases.push_back({.label = fmt::format("grouped {} | workers {}", to_string(desc), workers),
                   .program = [=] { return grouped_gemm(desc, config); },
                   .make =
                       [=](std::uint64_t seed) {
                         std::vector<OpCase> made;
                         for (std::uint64_t s = seed; s < seed + 4; ++s) {
                           made.push_back(grouped_case(desc, config, s));
                         }
                         return made;
                       }});
}

// Tiles by ticket, on few workers and on more than there are tiles. What is loaded ahead comes by
// TMA, by threads beside it (scales, gathered rows) or by threads alone (rows of an odd size).
void add_grouped(std::vector<CheckCase>& cases) {
  GroupedDesc halves{.m = 200, .n = 200, .k = 264};
  halves.a_dtype = halves.b_dtype = halves.c_dtype = DType::kBF16;
  GroupedDesc bytes{.m = 200, .n = 200, .k = 400, .scaling = Scaling::kBlock};
  bytes.a_dtype = bytes.b_dtype = DType::kF8E4M3, bytes.c_dtype = DType::kBF16;
  GroupedDesc odd{.m = 100, .n = 70, .k = 51};
  for (int workers : {kWorkers, 40}) {
    for (const GroupedDesc& plain : {halves, bytes, odd}) {
      GroupedDesc gathered = plain, masked = plain;
      gathered.gathered = gathered.swiglu = true, gathered.rows_per_token = 2;
      masked.layout = RowLayout::kMasked;
      for (const GroupedDesc& desc : {plain, gathered, masked}) add_grouped(cases, desc, workers);
    }
  }
}

}  // namespace

std::vector<CheckCase> check_cases() {
  std::vector<CheckCase> cases;
  add_grouped(cases);
  // Rows of 16 bytes, for TMA. The longer one has a round of eight steps and three more.
  add_fp8(cases, {{"ragged bytes", 344, 520, 336}, 339});
  add_fp8(cases, {{"rounds of bytes", 344, 264, 1360}, 339});
  add_fp8(cases, {{"joined steps of bytes", 344, 264, 1520}, 339}, {Scaling::kBlock});
  for (const SmallGemm& small : kSmall) {
    for (GemmConfig config : gpu_gemm_configs(0, /*quick=*/true)) {
      config.loop.num_compute_sms = kWorkers;
      config.loop.raster = 2;
      add_gemm(cases, small, DType::kBF16, config);
    }
    GemmConfig plain{.loop = {.tile = {64, 64, 32}, .num_compute_sms = kWorkers}};
    GemmConfig pipelined{
        .loop = {
            .tile = {128, 128, 64}, .num_compute_sms = kWorkers, .raster = 2, .num_stages = 3}};
    for (std::int64_t cols : {64, 128}) {
      GemmConfig split{
          .loop = {.tile = {cols == 64 ? 64 : 128, cols, 64}, .num_compute_sms = kWorkers}};
      split.loop.num_stages = 3;
      split.split_k = 2;
      add_gemm(cases, small, DType::kBF16, split);
    }
    add_gemm(cases, small, DType::kBF16, plain);
    add_gemm(cases, small, DType::kF16, pipelined);
    add_fp8(cases, small);
    add_gemm(cases, small, DType::kF32,
             {.loop = {.tile = {32, 32, 16}, .num_compute_sms = kWorkers}});
  }
  return cases;
}

std::vector<CheckCase> catalog_cases(int world_size) {
  std::vector<CheckCase> cases;
  for (const OperatorInfo& info : catalog()) {
    for (OpShape shape : info.shapes(world_size)) {
      shape.target = Target::kCuda;
      cases.push_back(
          {.label = fmt::format("{} P={} m={} n={} k={} {}", info.name, world_size, shape.m,
                                shape.n, shape.k, short_name(shape.dtype)),
           .program = [=] { return info.program(shape); },
           .make = [=](std::uint64_t seed) { return cases_of_rows(info, shape, seed); }});
    }
  }
  return cases;
}

namespace {

// But for the constants of early launches, which follow from the program.
KernelOptions kernel_options(const CheckOptions& options) {
  KernelOptions kernel;
  if (options.delays) kernel.delays = KernelDelays{.seed = options.seed};
  return kernel;
}

// Of a rank that does not come; launches that go well take far less.
constexpr std::chrono::milliseconds kStallTimeout{300};

// The worlds in which cases run, made anew after one that went wrong.
class Checker {
 public:
  explicit Checker(const CheckOptions& options) : options_(options) { make_worlds(); }

  // "" or what is wrong.
  std::string run(const CheckCase& c) {
    std::string found;
    try {
      found = run_in_worlds(c);
    } catch (const Error& e) {
      found = e.what();
    }
    if (!found.empty()) make_worlds();
    return found;
  }

  int num_op_cases() const { return num_op_cases_; }
  int num_early() const { return num_early_; }
  const std::set<std::string>& not_captured() const { return not_captured_; }

 private:
  std::string run_in_worlds(const CheckCase& c) {
    std::vector<OpCase> cases = c.make(options_.seed);
    num_op_cases_ += static_cast<int>(cases.size());
    GpuRunResult result = run_gpu_cases(*world_, cases, run_);
    if (!result.not_captured.empty()) not_captured_.insert(c.label);
    num_early_ += result.starts_early ? 1 : 0;
    if (!result.found.empty() || !stalls_) return result.found;
    return stall_gpu_cases(*stalls_, cases, run_);
  }

  void make_worlds() {
    const int size = options_.world_size;
    world_ = std::make_unique<GpuWorld>(GpuWorldOptions{.size = size});
    if (!options_.stalls || size == 1) return;
    stalls_ = std::make_unique<GpuWorld>(GpuWorldOptions{.size = size, .timeout = kStallTimeout});
  }

  const CheckOptions& options_;
  GpuRunOptions run_{.launches = options_.launches,
                     .back_to_back = options_.back_to_back,
                     .seed = options_.seed,
                     .waiver = {},
                     .graphs = options_.graphs,
                     .streams = options_.streams,
                     .early = options_.early,
                     .kernel = kernel_options(options_)};
  std::unique_ptr<GpuWorld> world_, stalls_;
  int num_op_cases_ = 0, num_early_ = 0;
  std::set<std::string> not_captured_;
};

}  // namespace

std::vector<LabelledProgram> check_programs(std::vector<CheckCase>& cases,
                                            const CheckOptions& options) {
  std::erase_if(cases, [&](const CheckCase& c) {
    return c.label.find(options.only) == std::string::npos ||
           !is_drawn(c.label, static_cast<std::uint64_t>(options.one_of));
  });
  std::vector<LabelledProgram> programs;
  for (const CheckCase& c : cases) {
    LabelledProgram& made =
        programs.emplace_back(LabelledProgram{c.label, c.program(), kernel_options(options)});
    if (!options.early) continue;
    std::set<std::string> constants = weight_inputs(made.program);
    made.options.constants = constants;
    programs.push_back({c.label + ", before it", late_inputs(made.program, constants), {}});
  }
  return programs;
}

int run_checks(std::vector<CheckCase> cases, const CheckOptions& options) {
  Checker checker(options);
  try {
    compile_ahead(check_programs(cases, options));
  } catch (const Error&) {  // one of them is not a program: its own turn says so
  }
  if (cases.empty() && options.one_of > 1) return fmt::print("check: no case is drawn\n"), 0;
  if (cases.empty()) throw UserError(fmt::format("no case's label contains '{}'", options.only));
  fmt::print("seed {}\n", options.seed);  // now, since a kernel may not end
  std::fflush(stdout);
  int failed = 0;
  auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < options.rounds; ++round) {
    for (const CheckCase& c : cases) {
      std::string found = checker.run(c);
      if (found.empty() && round > 0) continue;
      failed += found.empty() ? 0 : 1;
      fmt::print("{:6} {}{}{}\n", found.empty() ? "ok" : "FAILED", c.label,
                 found.empty() ? "" : ": ", found);
      std::fflush(stdout);
    }
  }
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("check: P={}, {} cases, {} with all rows, {} failed (seed {}), {:.0f} s\n",
             options.world_size, cases.size(), checker.num_op_cases(), failed, options.seed,
             took.count());
  if (options.early) fmt::print("  kernels that start early: {}\n", checker.num_early());
  for (const std::string& label : checker.not_captured()) {
    fmt::print("  copies within a rank, not captured: {}\n", label);
  }
  return failed;
}

}  // namespace stretto::bench
