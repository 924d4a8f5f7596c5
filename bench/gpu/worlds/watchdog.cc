#include "bench/gpu/worlds/watchdog.h"

#include <fmt/format.h>

#include <memory>
#include <set>

#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/measure/random_fill.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {
namespace {

constexpr int kNumSets = 3;
constexpr int kCallsPerGraph = 24;

struct Case {
  std::string label;
  Program program;
  std::int64_t m = 0;  // its only extent
  int calls_per_graph = 0;
};

// The config of each family that comes first among the candidates.
void add_overlap(std::vector<Case>& cases, OverlapKind kind, GemmShape rank, int ranks, int sms) {
  rank.label = name(kind);
  OverlapShape shape{.kind = kind, .rank = rank, .world_size = ranks};
  std::set<std::string> families;
  for (OverlapCandidate& c : overlap_candidates(shape, sms, false)) {
    if (!c.error.empty() || !families.insert(c.family).second) continue;
    cases.push_back({shape.to_string() + " | " + c.config, std::move(c.program), rank.m});
  }
}

std::vector<Case> all_cases(int ranks, int sms) {
  std::vector<Case> cases;
  add_overlap(cases, OverlapKind::kAgGemm, {.m = 8192, .n = 22016 / ranks, .k = 4096}, ranks, sms);
  add_overlap(cases, OverlapKind::kGemmRs, {.m = 8192, .n = 4096, .k = 11008 / ranks}, ranks, sms);
  CollectiveDesc desc{.dtype = DType::kBF16, .m = 8, .n = 1024, .world_size = ranks};  // 16 KB
  CollectiveConfig config = gpu_candidates(desc, 1, false).front();
  config.all_reduce = AllReduceKind::kPacket;
  cases.push_back({fmt::format("all_reduce 16 KB in a graph | {}", to_string(config)),
                   all_reduce(desc, config), desc.m, kCallsPerGraph});
  return cases;
}

WatchdogResult measure(GpuWorld& world, RandomFill& random, const Case& c, int samples) {
  std::vector<Args> sets;
  std::vector<SymmetricGpuMemory> memory;
  for (int i = 0; i < kNumSets; ++i) {
    Args& args = sets.emplace_back();
    args.tensors.resize(c.program.tensors.size());
    for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
      if (c.program.tensors[t].kind == TensorKind::kBuffer) continue;
      memory.push_back(random.allocate(storage_bytes(c.program, static_cast<int>(t))));
      args.tensors[t].on = memory.back().addresses();
    }
  }
  Lowered lowered = lower(c.program);
  const GpuTarget gpu = world.target();
  Proved proved = prove(lowered, for_launches_of(lowered, {c.m}, gpu));
  std::vector<std::unique_ptr<Executable>> executables;
  std::vector<RanksCall> calls;
  for (bool watchdog : {true, false}) {
    executables.push_back(
        load(proved, world, generate(lowered, {.target = gpu, .watchdog = watchdog})));
    std::vector<std::shared_ptr<Launch>> launches;
    for (const Args& args : sets) launches.push_back(executables.back()->prepare(args));
    calls.push_back([launches, m = c.m](int set) {
      launches[static_cast<std::size_t>(set)]->run({&m, 1});
    });
  }
  auto ms = time_ranks(world, calls,
                       {.num_sets = kNumSets,
                        .warmup_ms = 200,
                        .samples = samples,
                        .calls_per_graph = c.calls_per_graph});
  executables.front()->wait();
  return {.label = c.label, .with_ms = std::move(ms[0]), .without_ms = std::move(ms[1])};
}

}  // namespace

std::string WatchdogResult::to_string() const {
  MedianInterval r = ratio();
  return fmt::format("with {:.4f} without {:.4f} ms | with/without {:.4f} [{:.4f}, {:.4f}] | {}",
                     median(with_ms), median(without_ms), r.median, r.low, r.high, label);
}

Json WatchdogResult::to_json() const {
  MedianInterval r = ratio();
  return {{"case", label},
          {"with_ms", with_ms},
          {"without_ms", without_ms},
          {"with_over_without", {{"median", r.median}, {"low", r.low}, {"high", r.high}}}};
}

void measure_watchdog(GpuWorld& world, const WatchdogOptions& options,
                      const std::function<void(const WatchdogResult&)>& done) {
  RandomFill random(world, options.seed);
  for (const Case& c : all_cases(world.size(), world.device(0).properties().num_sms)) {
    if (c.label.find(options.only) == std::string::npos) continue;
    done(measure(world, random, c, options.samples));
  }
}

}  // namespace stretto::bench
