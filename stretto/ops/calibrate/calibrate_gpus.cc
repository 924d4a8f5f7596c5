#include "stretto/ops/calibrate/calibrate_gpus.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "stretto/base/errors.h"
#include "stretto/base/threads.h"
#include "stretto/compiler.h"
#include "stretto/ops/calibrate/micro_programs.h"
#include "stretto/ops/choose/candidates.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/predict/calibrate.h"

namespace stretto {
namespace {

constexpr double kGiga = 1e9;
constexpr std::int64_t kHops = 64;
constexpr std::int64_t kMoveRows = 16384;  // 256 MiB, far more than the L2 cache
constexpr int kCallsPerGraph = 6, kSmallCallsPerGraph = 24;
constexpr int kCurve[] = {1, 2, 4, 8, 16, 32, 64};

double move_bytes(std::int64_t rows) { return static_cast<double>(rows * kMoveCols) * 2; }

// Compiled on all processors at once, so that each is found in the cache afterwards.
void compile_all(const std::vector<Program>& programs) {
  side_by_side(programs.size(), num_processors(), [&](std::size_t i) {
    try {
      generate(lower(programs[i]));
    } catch (const Error&) {  // told where it is needed
    }
  });
}

class Calibration {
 public:
  Calibration(GpuWorld& world, const CalibrateGpusOptions& options)
      : world_(world), options_(options), random_(world, options.seed), ranks_(world.size()) {}

  GpuCalibration run() {
    std::vector<TrainingRun> runs = training_runs(ranks_);
    compile_programs(runs);
    Json figures = measure_figures();
    predict::Machine start = predict::with_figures(options_.start, figures, "calibration");
    start.name = options_.name;
    for (TrainingRun& run : runs) {
      run.measured_ms = time(run.program, kCallsPerGraph, run.label);
    }
    std::erase_if(runs, [](const TrainingRun& run) { return !(run.measured_ms > 0); });
    GpuCalibration result = fit_runs(start, runs, options_.rounds);
    result.figures = std::move(figures);
    say(fmt::format("{} runs fitted, mean error {:.3f}", runs.size(), result.error));
    return result;
  }

 private:
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  int num_sms() const { return world_.device(0).properties().num_sms; }

  void compile_programs(const std::vector<TrainingRun>& runs) const {
    std::vector<Program> programs = {smallest(ranks_), ping_pong(ranks_, kHops),
                                     move_rows(ranks_, Route::kLocal, kMoveRows, num_sms())};
    for (int sms : kCurve) {
      programs.push_back(move_rows(ranks_, Route::kLocal, kMoveRows / 8, sms));
      if (ranks_ == 1) continue;
      programs.push_back(move_rows(ranks_, Route::kPull, rows_of(sms), sms));
      programs.push_back(move_rows(ranks_, Route::kPush, rows_of(sms), sms));
    }
    for (const TrainingRun& run : runs) programs.push_back(run.program);
    compile_all(programs);
  }

  // Few SMs move less, so that every figure takes about as long.
  static std::int64_t rows_of(int sms) { return sms >= 16 ? kMoveRows : kMoveRows / 8; }

  // Median milliseconds of a launch; 0 where it does not run.
  double time(const Program& program, int calls_per_graph, const std::string& label) {
    try {
      double ms =
          median(time_program(world_, program, random_, {.calls_per_graph = calls_per_graph}));
      say(fmt::format("{:10.5f} ms {}", ms, label));
      return ms;
    } catch (const Error& e) {
      say(fmt::format("left out: {}: {}", label, e.what()));
      return 0;
    }
  }

  Json measure_figures() {
    Json figures;
    double graph = time(smallest(ranks_), kSmallCallsPerGraph, "smallest launch, from a graph");
    double eager = time(smallest(ranks_), 0, "smallest launch, one by one");
    double hops = time(ping_pong(ranks_, kHops), kSmallCallsPerGraph, "signals there and back");
    double own = std::max(graph * 1e3 - options_.start.load_latency * 1e6, 0.1);
    if (graph > 0) figures["launch_us"]["graph"] = own;
    if (eager > 0) figures["launch_us"]["eager"] = std::max(own + (eager - graph) * 1e3, own);
    if (hops > graph) {
      double hop = (hops - graph) * 1e3 / static_cast<double>(kHops);
      double notify = options_.start.notify_cost * 1e6;
      const char* section = ranks_ > 1 ? "link" : "overhead_us";
      const char* field = ranks_ > 1 ? "latency_us" : "local_signal";
      figures[section][field] = std::max(hop - notify, 0.05);
    }
    measure_memory(figures, graph);
    if (ranks_ > 1) {
      measure_links(figures, graph);
      measure_copies(figures);
    }
    return figures;
  }

  void measure_memory(Json& figures, double launch) {
    Program all = move_rows(ranks_, Route::kLocal, kMoveRows, num_sms());
    double ms = time(all, kCallsPerGraph, "copy in own memory, all SMs");
    if (ms > launch) {
      figures["memory"]["hbm_gbs"] = 2 * move_bytes(kMoveRows) / ((ms - launch) * 1e-3) / kGiga;
    }
    constexpr int kFew = 4;
    ms = time(move_rows(ranks_, Route::kLocal, kMoveRows / 8, kFew), kCallsPerGraph,
              "copy in own memory, 4 SMs");
    if (ms > launch) {
      figures["memory"]["sm_copy_gbs"] =
          move_bytes(kMoveRows / 8) / ((ms - launch) * 1e-3) / kGiga / kFew;
    }
  }

  Json curve(Route route, double launch, double& best) {
    Json points = Json::array();
    for (int sms : kCurve) {
      double ms = time(move_rows(ranks_, route, rows_of(sms), sms), kCallsPerGraph,
                       fmt::format("{} by {} SMs", route == Route::kPull ? "pull" : "push", sms));
      if (!(ms > launch)) continue;
      double rate = move_bytes(rows_of(sms)) / ((ms - launch) * 1e-3) / kGiga;
      points.push_back({sms, rate});
      best = std::max(best, rate);
    }
    return points;
  }

  void measure_links(Json& figures, double launch) {
    double best = 0;
    Json pull = curve(Route::kPull, launch, best), push = curve(Route::kPush, launch, best);
    if (!pull.empty()) figures["link"]["sm_pull_gbs"] = pull;
    if (!push.empty()) figures["link"]["sm_push_gbs"] = push;
    if (best > 0) figures["link"]["gbs"] = best;
  }

  // Every rank fetches from the next one, by the driver's copies.
  void measure_copies(Json& figures) {
    constexpr std::size_t kLarge = std::size_t{256} << 20, kSmall = 16;
    SymmetricGpuMemory from = random_.allocate(kLarge), to = allocate_poisoned(world_, kLarge);
    auto copy = [&](std::size_t bytes) {
      RanksCall call = [&, bytes](int) {
        for (int r = 0; r < ranks_; ++r) {
          auto next = static_cast<std::size_t>((r + 1) % ranks_);
          world_.stream(r).copy(to.on[static_cast<std::size_t>(r)].address(),
                                from.on[next].address(), bytes);
        }
      };
      return median(time_ranks(world_, {call}, {.warmup_ms = 20, .samples = 20}).front());
    };
    double large = copy(kLarge), small = copy(kSmall);
    say(fmt::format("{:10.5f} ms copy of 256 MiB, {:.5f} ms of 16 bytes, by the copy engines",
                    large, small));
    figures["copy_engine"]["latency_us"] = small * 1e3;
    if (large > small) {
      figures["copy_engine"]["gbs"] =
          static_cast<double>(kLarge) / ((large - small) * 1e-3) / kGiga;
    }
  }

  GpuWorld& world_;
  const CalibrateGpusOptions& options_;
  RandomFill random_;
  int ranks_;
};

}  // namespace

std::vector<TrainingRun> training_runs(int world_size) {
  struct Family {
    const char* op;
    std::int64_t n, k;
    std::vector<std::int64_t> rows;
  };
  const std::vector<Family> kOne = {
      {"gemm", 6144, 5120, {96, 384, 1536, 6144, 12288}},
      {"gemm", 18944, 3584, {40, 768, 3072}},
      {"gemm", 3584, 18944, {192, 1536, 6144}},
  };
  const std::vector<Family> kSeveral = {
      {"gemm", 18944, 3584, {40, 1536, 6144}},
      {"ag_gemm", 37888, 3584, {384, 1536, 6144, 12288}},
      {"gemm_rs", 3584, 18944, {384, 1536, 6144, 12288}},
      {"gemm_ar", 3584, 18944, {40, 192, 768}},
      {"all_gather", 3584, 0, {96, 1536, 12288}},
      {"reduce_scatter", 3584, 0, {96, 1536, 12288}},
      {"all_reduce_two_shot", 3584, 0, {96, 1536, 12288}},
      {"all_reduce_one_shot", 3584, 0, {96, 768}},
      {"all_reduce_packet", 3584, 0, {40, 96}},
  };
  std::vector<TrainingRun> runs;
  for (const Family& f : world_size == 1 ? kOne : kSeveral) {
    for (std::int64_t m : f.rows) {
      OpShape shape{.world_size = world_size, .m = m, .n = f.n, .k = f.k, .dtype = DType::kBF16};
      OpCandidates offered = candidates(f.op, shape);
      std::size_t count = offered.fused.size();
      std::vector<std::size_t> taken = {0};
      for (std::size_t i : {count / 3, 2 * count / 3}) {
        if (i != taken.back()) taken.push_back(i);
      }
      for (std::size_t i : taken) {
        const Candidate& c = offered.fused[i];
        runs.push_back(
            {fmt::format("{} m={} n={} k={} | {}", f.op, m, f.n, f.k, c.config), c.program()});
      }
    }
  }
  return runs;
}

GpuCalibration fit_runs(const predict::Machine& start, const std::vector<TrainingRun>& runs,
                        int rounds) {
  std::vector<predict::MeasuredProgram> measured;
  for (const TrainingRun& run : runs) {
    measured.push_back(
        {.program = lower(run.program), .options = {}, .milliseconds = run.measured_ms});
  }
  predict::Fit fit = predict::fit(start, measured, predict::fitted_parameters(), rounds);
  GpuCalibration result{.machine = fit.machine, .error = fit.error};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto predicted = [&](const predict::Machine& machine) {
      return predict::run_timetable(predict::build_timetable(measured[i].program, machine))
                 .seconds *
             1e3;
    };
    result.training.push_back({{"run", runs[i].label},
                               {"measured_ms", runs[i].measured_ms},
                               {"before_ms", predicted(start)},
                               {"after_ms", predicted(fit.machine)}});
  }
  return result;
}

Json GpuCalibration::to_json() const {
  Json json = predict::to_json(machine);
  auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  json["source"] = fmt::format("measured {:%F}", fmt::gmtime(now));
  json["measured"] = figures;
  json["training"] = training;
  json["training_error"] = error;
  return json;
}

GpuCalibration calibrate_gpus(GpuWorld& world, const CalibrateGpusOptions& options) {
  return Calibration(world, options).run();
}

}  // namespace stretto
