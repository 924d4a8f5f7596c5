#include "bench/gpu/lot/lot.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/gpu/harness/each_shape.h"
#include "bench/gpu/lot/lot_shapes.h"
#include "bench/gpu/operand_type.h"
#include "bench/gpu/overlap/overlap_sequence.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {
namespace {

constexpr int kMostSets = 31, kLeastGraphCalls = 6, kLibraryRounds = 2, kLeastSamples = 12;
constexpr double kWarmupMs = 20, kMsOfSamples = 200;

LotChoice choice_of(const OverlapShape& shape, const predict::Machine& machine) {
  LotChoice out{.shape = shape};
  try {
    const std::string op = bench::name(shape.kind);
    const OpShape of_all = shape_of_all_ranks(shape);
    OpCandidates offered = candidates(op, of_all, {.sms = machine.num_sms});
    ConfigChoice choice = choose(op, of_all, offered,
                                 {.machine = machine, .eager = !shape.decode, .use_cache = false});
    out.config = choice.config;
    out.sequence = choice.is_sequence;
    if (!out.sequence) out.program = find_candidate(offered, choice.config)->program();
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

std::size_t bytes_of_call(const OverlapShape& s) {
  const GemmShape& g = s.rank;
  return static_cast<std::size_t>(g.m * g.k + g.n * g.k + g.m * g.n) * size_bytes(kDType);
}

class Measurement {
 public:
  Measurement(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
              const LotChoice& choice, const LotOptions& options)
      : world_(world), choice_(choice), options_(options) {
    auto l2 = static_cast<std::size_t>(world.device(0).properties().l2_bytes);
    result_.shape = choice.shape;
    result_.chosen = choice.config;
    result_.sequence = choice.sequence;
    result_.num_sets = std::min(num_buffer_sets(bytes_of_call(choice.shape), l2), kMostSets);
    unfused_ = std::make_unique<OverlapSequence>(world, nccl, random, choice.shape,
                                                 result_.num_sets, kLibraryRounds);
  }

  LotResult run() {
    if (!choice_.error.empty()) throw UserError(choice_.error);
    unfused_->load_own_collective();
    unfused_->run_with_own(0);
    unfused_->own_collective()->wait();
    unfused_->run(0);
    world_.synchronize();
    std::vector<RanksCall> calls;
    if (!choice_.sequence) calls.push_back(load());
    calls.push_back([this](int set) { unfused_->run(set); });
    calls.push_back([this](int set) { unfused_->run_with_own(set); });
    const double first = median(timed(calls, 3)[0]);
    auto ms = timed(calls, std::clamp(static_cast<int>(kMsOfSamples / first), kLeastSamples,
                                      std::max(options_.samples, kLeastSamples)));
    result_.own_ms = std::move(ms.back());
    result_.nccl_ms = std::move(*(ms.end() - 2));
    if (!choice_.sequence) {
      result_.fused_ms = std::move(ms.front());
      fused_->wait();
      unfused_->run(result_.num_sets - 1);
      world_.synchronize();
      check(result_.num_sets - 1);  // what all launches in a row have left
    }
    return std::move(result_);
  }

 private:
  RanksCall load() {
    Lowered lowered = lower(choice_.program);
    const std::vector<std::int64_t> extents = unfused_->extents();
    const GpuTarget gpu = world_.target();
    fused_ = stretto::load(prove(lowered, for_launches_of(lowered, extents, gpu)), world_,
                           generate(lowered, {.target = gpu}));
    std::vector<std::shared_ptr<Launch>> launches;
    for (int i = 0; i < result_.num_sets; ++i) {
      launches.push_back(fused_->prepare(unfused_->arguments(choice_.program, i)));
    }
    RanksCall call = [launches = std::move(launches), extents](int set) {
      launches[static_cast<std::size_t>(set)]->run(extents);
    };
    unfused_->poison_ours(0);
    call(0);
    fused_->wait();
    check(0);
    return call;
  }

  void check(int set) const {
    std::string wrong = unfused_->compare(set);
    if (!wrong.empty()) throw InternalError(choice_.config + ": " + wrong);
  }

  std::vector<std::vector<double>> timed(const std::vector<RanksCall>& calls, int samples) const {
    const int in_graph = std::max(kLeastGraphCalls, result_.num_sets);
    return time_ranks(world_, calls,
                      {.num_sets = result_.num_sets,
                       .warmup_ms = kWarmupMs,
                       .samples = samples,
                       .calls_per_graph = choice_.shape.decode ? in_graph : 0});
  }

  GpuWorld& world_;
  const LotChoice& choice_;
  const LotOptions& options_;
  std::unique_ptr<OverlapSequence> unfused_;
  std::unique_ptr<Executable> fused_;
  LotResult result_;
};

const char* name(LotResult::Verdict verdict) {
  constexpr const char* kNames[] = {"won", "lost", "neither", "sequence"};
  return kNames[static_cast<std::size_t>(verdict)];
}

}  // namespace

MedianInterval LotResult::over_sequence() const {
  return paired_ratio(sequence ? own_ms : fused_ms,
                      median(nccl_ms) <= median(own_ms) ? nccl_ms : own_ms);
}

LotResult::Verdict LotResult::verdict() const {
  if (sequence) return Verdict::kSequence;
  const MedianInterval r = over_sequence();
  return r.high < 1 ? Verdict::kWon : r.low > 1 ? Verdict::kLost : Verdict::kNeither;
}

std::string LotResult::to_string() const {
  std::string out = fmt::format("{:44} {} ", shape.to_string(), shape.decode ? "graph" : "eager");
  if (!own_ms.empty()) {
    const MedianInterval r = over_sequence();
    out += fmt::format(
        "chosen {:.4f} NCCL {:.4f} own {:.4f} ms | {:.3f} [{:.3f}, {:.3f}] {} | {} | {}",
        median(sequence ? own_ms : fused_ms), median(nccl_ms), median(own_ms), r.median, r.low,
        r.high, name(verdict()), chosen, shape.rank.label);
  }
  if (!error.empty()) out += "FAILED: " + error + " | " + chosen;
  return out;
}

Json LotResult::to_json() const {
  Json out = {{"op", bench::name(shape.kind)},
              {"ranks", shape.world_size},
              {"layer", shape.rank.label},
              {"m", shape.rank.m},
              {"n", shape.rank.n},
              {"k", shape.rank.k},
              {"mode", shape.decode ? "graph" : "eager"},
              {"chosen", chosen},
              {"is_sequence", sequence},
              {"num_sets", num_sets},
              {"fused_ms", fused_ms},
              {"nccl_ms", nccl_ms},
              {"own_ms", own_ms}};
  if (!error.empty()) out["error"] = error;
  return out;
}

std::vector<LotChoice> lot_choices(int world_size, const LotOptions& options) {
  const predict::Machine machine = predict::find_machine(
      options.machine.empty() ? builtin_machine_of(world_size) : options.machine);
  std::vector<LotChoice> out;
  for (const OverlapShape& shape : drawn_shapes(world_size, options.seed, options.count)) {
    out.push_back(choice_of(shape, machine));
  }
  return out;
}

std::vector<LabelledProgram> lot_programs(const std::vector<LotChoice>& choices) {
  std::vector<LabelledProgram> programs;
  for (const LotChoice& c : choices) {
    const GemmShape& g = c.shape.rank;
    const bool gathers = c.shape.kind == OverlapKind::kAgGemm;
    CollectiveDesc message{
        .dtype = kDType, .m = g.m, .n = gathers ? g.k : g.n, .world_size = c.shape.world_size};
    programs.push_back(
        {c.shape.to_string() + " | collective", collective_program(c.shape.kind, message)});
    if (!c.program.roles.empty()) {
      programs.push_back({c.shape.to_string() + " | " + c.config, c.program});
    }
  }
  return programs;
}

void measure_lot(GpuWorld& world, const std::vector<LotChoice>& choices, const LotOptions& options,
                 const std::function<void(const LotResult&)>& done) {
  std::vector<OverlapShape> shapes;
  for (const LotChoice& c : choices) shapes.push_back(c.shape);
  std::size_t next = 0;
  auto compare = [&](const cuda::NcclRanks& nccl, RandomFill& random, const OverlapShape&) {
    return Measurement(world, nccl, random, choices[next], options).run();
  };
  for_each_shape<LotResult>(world, shapes, options.seed, compare, [&](const LotResult& measured) {
    LotResult result = measured;  // one that failed knows its shape alone
    result.chosen = choices[next].config;
    result.sequence = choices[next].sequence;
    ++next;
    done(result);
  });
}

}  // namespace stretto::bench
