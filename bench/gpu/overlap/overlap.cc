#include "bench/gpu/overlap/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "bench/gpu/harness/each_shape.h"
#include "bench/gpu/overlap/overlap_config.h"
#include "bench/gpu/overlap/overlap_sequence.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {
namespace {

// Enough that the factors and results of one are out of the L2 cache when its turn comes again:
// a set is larger than the cache.
constexpr int kNumSets = 3;
constexpr int kGraphCalls = 6;
constexpr int kLibraryRounds = 4;
constexpr int kCandidateSamples = 9;

std::vector<OverlapShape> selected(int world_size, const OverlapOptions& options) {
  std::vector<OverlapShape> shapes = overlap_shapes(world_size, options.quick);
  std::erase_if(shapes, [&](const OverlapShape& s) {
    return s.to_string().find(options.only) == std::string::npos;
  });
  return shapes;
}

// Few rows are what a decode step has, whose launches start early and load weights meanwhile.
std::set<std::string> constants_of(const OverlapShape& shape) {
  return shape.decode && shape.rank.m <= kFewRows ? std::set<std::string>{"b"}
                                                  : std::set<std::string>{};
}

std::vector<OverlapCandidate> candidates_of(const OverlapShape& shape, int num_sms,
                                            const OverlapOptions& options) {
  std::vector<OverlapCandidate> out;
  for (const std::string& text : options.configs) {
    out.push_back(parse_overlap_config(shape, num_sms, text));
  }
  return out.empty() ? overlap_candidates(shape, num_sms, options.quick) : std::move(out);
}

// A config of ours, compiled and loaded on every rank.
struct TimedOverlap {
  OverlapTime time;
  Program program;
  std::unique_ptr<Executable> executable;  // null after an error
  // The first, which is the operator's default, or faster than it by the whole interval. At the
  // power limit the fastest of a dozen that are one per cent apart is a matter of luck.
  bool stands_out = false;
};

class OverlapComparison {
 public:
  OverlapComparison(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                    const OverlapShape& shape, const OverlapOptions& options)
      : world_(world),
        shape_(shape),
        options_(options),
        unfused_(world, nccl, random, shape, kNumSets, kLibraryRounds) {
    result_.shape = shape;
  }

  OverlapResult run() {
    unfused_.run(0);
    world_.synchronize();
    make_candidates();
    time_candidates();
    for (TimedOverlap* c : by_time()) {
      if (!is_right(*c)) continue;
      result_.chosen = c->time.config;
      measure(*c);
      break;
    }
    if (!result_.eager) result_.error = "no config of ours gives the result";
    for (const TimedOverlap& c : candidates_) result_.configs.push_back(c.time);
    return std::move(result_);
  }

 private:
  RanksCall call_of(const TimedOverlap& c, bool early = false) const {
    std::vector<std::shared_ptr<Launch>> launches;
    for (int set = 0; set < kNumSets; ++set) {
      Args args = unfused_.arguments(c.program, set);
      args.starts_early = early;
      launches.push_back(c.executable->prepare(args));
    }
    return [launches, extents = unfused_.extents()](int set) {
      launches[static_cast<std::size_t>(set)]->run(extents);
    };
  }

  // After a fault, which leaves nothing running.
  void start_anew() {
    world_.synchronize();
    world_.clear_fault();
    for (TimedOverlap& c : candidates_) {
      if (c.executable) c.executable->recover();
    }
  }

  void make_candidates() {
    int sms = world_.device(0).properties().num_sms;
    for (OverlapCandidate& made : candidates_of(shape_, sms, options_)) {
      TimedOverlap& c = candidates_.emplace_back();
      c.time = {.family = made.family, .config = made.config, .ms = 0, .error = made.error};
      if (!made.error.empty()) continue;
      try {
        c.program = std::move(made.program);
        Lowered lowered = lower(c.program);
        const GpuTarget gpu = world_.target();
        Proved proved = prove(lowered, for_launches_of(lowered, {shape_.rank.m}, gpu));
        GpuCode code = generate(lowered, {.target = gpu, .constants = constants_of(shape_)});
        c.executable = load(proved, world_, std::move(code));
        call_of(c)(0);
        c.executable->wait();
      } catch (const Fault& e) {
        drop(c, e.what());
        start_anew();
      } catch (const Error& e) {
        drop(c, e.what());
      }
    }
  }

  static void drop(TimedOverlap& c, const std::string& why) {
    c.time.error = why;
    c.executable.reset();
  }

  void time_candidates() {
    std::vector<RanksCall> calls;
    std::vector<TimedOverlap*> which;
    for (TimedOverlap& c : candidates_) {
      if (!c.executable) continue;
      calls.push_back(call_of(c));
      which.push_back(&c);
    }
    if (calls.empty()) return;
    auto ms = time_ranks(world_, calls,
                         {.num_sets = kNumSets, .warmup_ms = 50, .samples = kCandidateSamples});
    for (std::size_t i = 0; i < which.size(); ++i) {
      which[i]->time.ms = median(ms[i]);
      which[i]->stands_out = i == 0 || paired_ratio(ms[0], ms[i]).low > 1;
    }
  }

  std::vector<TimedOverlap*> by_time() {
    std::vector<TimedOverlap*> sorted;
    for (TimedOverlap& c : candidates_) {
      if (c.time.ms > 0) sorted.push_back(&c);
    }
    std::sort(sorted.begin(), sorted.end(), [](const TimedOverlap* x, const TimedOverlap* y) {
      if (x->stands_out != y->stands_out) return x->stands_out;
      return x->time.ms < y->time.ms;
    });
    return sorted;
  }

  bool is_right(TimedOverlap& c) {
    unfused_.poison_ours(0);
    call_of(c)(0);
    c.executable->wait();
    std::string found = unfused_.compare(0);
    c.time.error = found;
    return found.empty();
  }

  OverlapSamples timed(TimedOverlap& c, int calls_per_graph) const {
    // Launches of a graph start early, as those of a captured step do (decision 0006).
    std::vector<RanksCall> calls = {
        call_of(c, calls_per_graph > 0), [&](int set) { unfused_.product(set); },
        [&](int set) { unfused_.collective(set); }, [&](int set) { unfused_.run(set); },
        [&](int set) { unfused_.product_beside_traffic(set); }};
    auto ms = time_ranks(world_, calls,
                         {.num_sets = kNumSets,
                          .warmup_ms = 200,
                          .samples = options_.samples,
                          .calls_per_graph = calls_per_graph});
    c.executable->wait();
    return {std::move(ms[0]), std::move(ms[1]), std::move(ms[2]), std::move(ms[3]),
            std::move(ms[4])};
  }

  void measure(TimedOverlap& c) {
    result_.eager = timed(c, 0);
    unfused_.run(kNumSets - 1);
    world_.synchronize();
    // What hundreds of launches in a row have left.
    result_.error = unfused_.compare(kNumSets - 1);
    if (!result_.error.empty() || !(options_.graphs || shape_.decode)) return;
    try {
      result_.graph = timed(c, kGraphCalls);
      result_.error = unfused_.compare(kNumSets - 1);
    } catch (const DeviceError& e) {
      result_.error = fmt::format("in a graph: {}", e.what());
    }
  }

  GpuWorld& world_;
  OverlapShape shape_;
  const OverlapOptions& options_;
  OverlapSequence unfused_;
  std::vector<TimedOverlap> candidates_;
  OverlapResult result_;
};

Json to_json(const MedianInterval& m) {
  return {{"median", m.median}, {"low", m.low}, {"high", m.high}};
}

}  // namespace

MedianInterval OverlapSamples::hidden(const std::vector<double>& together) const {
  std::vector<double> parts;
  for (std::size_t i = 0; i < together.size(); ++i) {
    parts.push_back(1 - (together[i] - gemm[i]) / (sequence[i] - gemm[i]));
  }
  return median_interval(std::move(parts));
}

std::string OverlapSamples::to_string() const {
  MedianInterval ratio = speedup(), e = hidden();
  std::string out = fmt::format(
      "ours {:.4f} gemm {:.4f} nccl {:.4f} sequence {:.4f} ms | sequence/ours {:.3f} [{:.3f}, "
      "{:.3f}] | E_overlap {:.2f} [{:.2f}, {:.2f}]",
      median(ours), median(gemm), median(collective), median(sequence), ratio.median, ratio.low,
      ratio.high, e.median, e.low, e.high);
  if (!busy.empty()) {
    out += fmt::format(" | gemm beside traffic {:.4f} ms, E at most {:.2f}", median(busy),
                       hidden_at_most().median);
  }
  return out;
}

Json OverlapSamples::to_json() const {
  Json out = {{"ours_ms", ours},
              {"gemm_ms", gemm},
              {"nccl_ms", collective},
              {"sequence_ms", sequence},
              {"sequence_over_ours", bench::to_json(speedup())},
              {"e_overlap", bench::to_json(hidden())}};
  if (!busy.empty()) out["gemm_beside_traffic_ms"] = busy;
  return out;
}

std::string OverlapTime::to_string() const {
  std::string out;
  if (ms > 0) out += fmt::format("\n    {:9.4f} {:8} {}", ms, family, config);
  if (!error.empty()) out += fmt::format("\n    {} {}: {}", family, config, error);
  return out;
}

Json OverlapTime::to_json() const {
  Json out = {{"family", family}, {"config", config}};
  if (ms > 0) out["ms"] = ms;
  if (!error.empty()) out["error"] = error;
  return out;
}

std::string OverlapResult::to_string() const {
  std::string out = shape.to_string();
  if (eager) out += "\n  eager: " + eager->to_string();
  if (graph) out += "\n  graph: " + graph->to_string();
  if (!chosen.empty()) out += "\n  chosen: " + chosen;
  for (const OverlapTime& t : configs) out += t.to_string();
  if (!error.empty()) out += "\n  FAILED: " + error;
  return out;
}

Json OverlapResult::to_json() const {
  Json out = {{"op", name(shape.kind)},
              {"ranks", shape.world_size},
              {"m", shape.rank.m},
              {"n", shape.rank.n},
              {"k", shape.rank.k}};
  for (const OverlapTime& t : configs) out["configs"].push_back(t.to_json());
  if (!error.empty()) out["error"] = error;
  if (!chosen.empty()) out["chosen"] = chosen;
  if (eager) out["eager"] = eager->to_json();
  if (graph) out["graph"] = graph->to_json();
  return out;
}

std::vector<LabelledProgram> overlap_programs(int world_size, int num_sms,
                                              const OverlapOptions& options) {
  std::vector<LabelledProgram> programs;
  for (const OverlapShape& shape : selected(world_size, options)) {
    for (OverlapCandidate& c : candidates_of(shape, num_sms, options)) {
      if (!c.error.empty()) {
        fmt::print(stderr, "refused: {}\n", c.error);
        continue;
      }
      programs.push_back({.label = shape.to_string() + " | " + c.config,
                          .program = std::move(c.program),
                          .options = {.constants = constants_of(shape)}});
    }
  }
  return programs;
}

void compare_overlap(GpuWorld& world, const OverlapOptions& options,
                     const std::function<void(const OverlapResult&)>& done) {
  auto compare = [&](const cuda::NcclRanks& nccl, RandomFill& random, const OverlapShape& shape) {
    return OverlapComparison(world, nccl, random, shape, options).run();
  };
  for_each_shape<OverlapResult>(world, selected(world.size(), options), options.seed, compare,
                                done);
}

}  // namespace stretto::bench
