#include "bench/gpu/overlap/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/gpu/harness/each_shape.h"
#include "bench/gpu/operand_type.h"
#include "bench/gpu/overlap/overlap_sequence.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {
namespace {

constexpr int kSweepSets = 3, kSweepLibraryRounds = 2, kSweepSamples = 5, kSweepGraphCalls = 6;
constexpr double kWarmupMs = 20, kMsOfSamples = 150;
constexpr int kLeastSamples = 7;
constexpr std::size_t kMostCandidates = 5;
// Up to so many rows come from decoding, which runs in graphs.
constexpr std::int64_t kGraphRows = 256;

std::vector<OverlapShape> selected(int world_size, const SweepOptions& options) {
  struct Model {
    std::int64_t hidden, wide;  // wide: the feed-forward layer, of all ranks
  };
  constexpr Model kModels[] = {{4096, 14336}, {8192, 28672}};
  std::vector<OverlapShape> shapes;
  for (const Model& model : kModels) {
    for (OverlapKind kind : {OverlapKind::kAgGemm, OverlapKind::kGemmRs, OverlapKind::kGemmAr}) {
      for (std::int64_t m : {1, 16, 64, 256, 1024, 4096, 16384, 32768}) {
        bool gathers = kind == OverlapKind::kAgGemm;
        // NCCL's parts are of the same size.
        if (kind != OverlapKind::kGemmAr) m = std::max<std::int64_t>(m, world_size);
        shapes.push_back({.kind = kind,
                          .rank = {.label = name(kind),
                                   .m = m,
                                   .n = gathers ? 2 * model.wide / world_size : model.hidden,
                                   .k = gathers ? model.hidden : model.wide / world_size},
                          .world_size = world_size,
                          .decode = m <= kGraphRows});
      }
    }
  }
  std::erase_if(shapes, [&](const OverlapShape& s) {
    return s.to_string().find(options.only) == std::string::npos;
  });
  return shapes;
}

template <typename Desc, typename Config>
void add(std::vector<OverlapCandidate>& out, const char* family, const Desc& desc,
         std::vector<Config> configs, Program (*make)(const Desc&, const Config&)) {
  constexpr std::size_t kOfFamily = 2;
  configs.resize(std::min(configs.size(), kOfFamily));
  for (const Config& config : configs) {
    OverlapCandidate& c = out.emplace_back();
    c.family = family;
    c.config = to_string(config);
    try {
      c.program = make(desc, config);
    } catch (const Error& e) {
      c.error = e.what();
    }
  }
}

// The first configs of every way that the chooser knows. Engines that fetch are no way in graphs.
std::vector<OverlapCandidate> few_rows(const OverlapShape& s, int sms) {
  std::vector<OverlapCandidate> out;
  switch (s.kind) {
    case OverlapKind::kAgGemm: {
      AgGemmDesc desc = ag_gemm_desc(s);
      for (Gather gather : {Gather::kPush, Gather::kSend}) {
        add(out, name(gather), desc, gpu_configs(desc, gather, {.sms = sms}), ag_gemm);
      }
      break;
    }
    case OverlapKind::kGemmRs: {
      GemmRsDesc desc = gemm_rs_desc(s);
      add(out, "epilogue", desc, gpu_configs(desc, Scatter::kEpilogue, {.sms = sms}), gemm_rs);
      add(out, "copy", desc, gpu_configs(desc, Scatter::kCopyEngine, {.sms = sms}), gemm_rs);
      break;
    }
    case OverlapKind::kGemmAr: {
      GemmArDesc desc = gemm_ar_desc(s);
      add(out, "one", desc, gpu_configs(desc, ReduceShots::kOne, {.sms = sms}), gemm_ar);
      add(out, "shared", desc, gpu_configs(desc, ReduceShots::kShared, {.sms = sms}), gemm_ar);
      add(out, "two", desc, gpu_configs(desc, ReduceShots::kTwo, {.sms = sms}), gemm_ar);
      break;
    }
  }
  return out;
}

std::vector<OverlapCandidate> candidates_of(const OverlapShape& s, int sms) {
  std::vector<OverlapCandidate> out =
      s.decode ? few_rows(s, sms) : overlap_candidates(s, sms, false);
  if (out.size() > kMostCandidates) out.resize(kMostCandidates);
  return out;
}

class Sweep {
 public:
  Sweep(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random, const OverlapShape& shape,
        const SweepOptions& options)
      : world_(world),
        options_(options),
        unfused_(world, nccl, random, shape, kSweepSets, kSweepLibraryRounds) {
    result_.shape = shape;
    result_.graph = shape.decode;
  }

  SweepResult run() {
    unfused_.load_own_collective();
    unfused_.run_with_own(0);
    unfused_.own_collective()->wait();
    unfused_.run(0);
    world_.synchronize();
    make_candidates();
    if (which_.empty()) {
      result_.error = "no config of ours runs";
      return std::move(result_);
    }
    pick();
    return std::move(result_);
  }

 private:
  struct Candidate {
    std::string config;
    std::unique_ptr<Executable> executable;
    RanksCall call;
  };

  void make_candidates() {
    int sms = world_.device(0).properties().num_sms;
    std::vector<OverlapCandidate> tried = candidates_of(result_.shape, sms);
    for (const OverlapCandidate& made : tried) {
      std::string why = made.error.empty() ? load(made) : made.error;
      if (why.empty()) continue;
      result_.dropped.push_back(made.config + ": " + why);
    }
  }

  // "" or why it does not run, or gives something else.
  std::string load(const OverlapCandidate& made) {
    try {
      Lowered lowered = lower(made.program);
      const std::vector<std::int64_t> extents = unfused_.extents();
      const GpuTarget gpu = world_.target();
      std::unique_ptr<Executable> executable =
          stretto::load(prove(lowered, for_launches_of(lowered, extents, gpu)), world_,
                        generate(lowered, {.target = gpu}));
      std::vector<std::shared_ptr<Launch>> launches;
      for (int i = 0; i < kSweepSets; ++i) {
        launches.push_back(executable->prepare(unfused_.arguments(made.program, i)));
      }
      RanksCall call = [=](int set) { launches[static_cast<std::size_t>(set)]->run(extents); };
      unfused_.poison_ours(0);
      call(0);
      executable->wait();
      std::string wrong = unfused_.compare(0);
      if (!wrong.empty()) return wrong;
      which_.push_back({made.config, std::move(executable), std::move(call)});
    } catch (const Fault& e) {
      world_.synchronize();
      world_.clear_fault();
      for (Candidate& c : which_) c.executable->recover();
      unfused_.own_collective()->recover();
      return e.what();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  std::vector<std::vector<double>> timed(std::vector<RanksCall> calls, int samples) const {
    calls.push_back([this](int set) { unfused_.run(set); });
    calls.push_back([this](int set) { unfused_.run_with_own(set); });
    return time_ranks(world_, calls,
                      {.num_sets = kSweepSets,
                       .warmup_ms = kWarmupMs,
                       .samples = samples,
                       .calls_per_graph = result_.graph ? kSweepGraphCalls : 0});
  }

  void pick() {
    std::vector<RanksCall> calls;
    for (const Candidate& c : which_) calls.push_back(c.call);
    std::vector<double> medians;
    for (auto& ms : timed(calls, kSweepSamples)) {
      medians.push_back(median(std::move(ms)));
    }
    auto fused_end = medians.begin() + static_cast<std::ptrdiff_t>(which_.size());
    auto best = std::min_element(medians.begin(), fused_end);
    if (*fused_end < *best) result_.winner = SweepResult::Winner::kNccl;
    if (medians.back() < std::min(*best, *fused_end)) result_.winner = SweepResult::Winner::kOwn;
    Candidate& fused = which_[static_cast<std::size_t>(best - medians.begin())];
    result_.config = fused.config;
    int samples =
        std::clamp(static_cast<int>(kMsOfSamples / *best), kLeastSamples, options_.samples);
    auto ms = timed({fused.call}, samples);
    fused.executable->wait();
    result_.fused_ms = std::move(ms[0]);
    result_.nccl_ms = std::move(*(ms.end() - 2));
    result_.own_ms = std::move(ms.back());
    unfused_.run(kSweepSets - 1);
    world_.synchronize();
    if (result_.error.empty()) {
      result_.error = unfused_.compare(kSweepSets - 1);  // what all launches in a row have left
    }
  }

  GpuWorld& world_;
  const SweepOptions& options_;
  OverlapSequence unfused_;
  std::vector<Candidate> which_;
  SweepResult result_;
};

const char* name(SweepResult::Winner winner) {
  constexpr const char* kNames[] = {"fused", "NCCL", "own collective"};
  return kNames[static_cast<std::size_t>(winner)];
}

}  // namespace

MedianInterval SweepResult::fused_over_sequence() const {
  return paired_ratio(fused_ms, median(nccl_ms) <= median(own_ms) ? nccl_ms : own_ms);
}

std::string SweepResult::to_string() const {
  std::string out = fmt::format("{:44} {} ", shape.to_string(), graph ? "graph" : "eager");
  if (!fused_ms.empty()) {
    MedianInterval r = fused_over_sequence();
    out += fmt::format(
        "fused {:.4f} NCCL {:.4f} own {:.4f} ms | fused/sequence {:.3f} [{:.3f}, {:.3f}] | {} | {}",
        median(fused_ms), median(nccl_ms), median(own_ms), r.median, r.low, r.high, name(winner),
        config);
  }
  for (const std::string& why : dropped) out += "\n  " + why;
  if (!error.empty()) out += "\n  FAILED: " + error;
  return out;
}

Json SweepResult::to_json() const {
  Json out = {{"op", bench::name(shape.kind)},
              {"ranks", shape.world_size},
              {"m", shape.rank.m},
              {"n", shape.rank.n},
              {"k", shape.rank.k},
              {"mode", graph ? "graph" : "eager"},
              {"config", config},
              {"winner", name(winner)},
              {"fused_ms", fused_ms},
              {"nccl_ms", nccl_ms},
              {"own_ms", own_ms},
              {"dropped", dropped}};
  if (!error.empty()) out["error"] = error;
  return out;
}

std::vector<LabelledProgram> sweep_programs(int world_size, int num_sms,
                                            const SweepOptions& options) {
  std::vector<LabelledProgram> programs;
  for (const OverlapShape& shape : selected(world_size, options)) {
    const GemmShape& g = shape.rank;
    bool gathers = shape.kind == OverlapKind::kAgGemm;
    CollectiveDesc message{
        .dtype = kDType, .m = g.m, .n = gathers ? g.k : g.n, .world_size = world_size};
    programs.push_back(
        {shape.to_string() + " | collective", collective_program(shape.kind, message)});
    for (OverlapCandidate& c : candidates_of(shape, num_sms)) {
      if (!c.error.empty()) continue;
      programs.push_back({shape.to_string() + " | " + c.config, std::move(c.program)});
    }
  }
  return programs;
}

void sweep_rows(GpuWorld& world, const SweepOptions& options,
                const std::function<void(const SweepResult&)>& done) {
  auto sweep = [&](const cuda::NcclRanks& nccl, RandomFill& random, const OverlapShape& shape) {
    return Sweep(world, nccl, random, shape, options).run();
  };
  for_each_shape<SweepResult>(world, selected(world.size(), options), options.seed, sweep, done);
}

}  // namespace stretto::bench
