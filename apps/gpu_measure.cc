#include "apps/gpu_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "apps/like_operator.h"
#include "stretto/base/errors.h"
#include "stretto/base/say.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/unfused.h"
#include "stretto/ops/measure/gpu_program.h"

namespace stretto {
namespace {

constexpr double kWarmupMs = 200;
constexpr int kCandidateSamples = 9;
constexpr int kCallsPerGraph = 6;
constexpr std::uint64_t kSeed = 1;

class Measurement {
 public:
  Measurement(GpuWorld& world, const ProgramSource& source, const GpuMeasureOptions& options)
      : world_(world),
        source_(source),
        options_(options),
        random_(world, kSeed, options.shape.dtype) {
    options_.shape.target = world.target();
  }

  GpuMeasurement run() {
    std::optional<Program> program;
    if (source_.op() == nullptr) {
      program = source_.program(options_.shape);
      result_.config = fmt::format("{} P={}", program->name, world_.size());
      sets_of(*program);
      if (options_.like != nullptr) compare_with(*options_.like, *program);
    } else {
      program = chosen();
    }
    std::optional<GpuProgram> fused;
    if (program) fused.emplace(world_, *program, sets_of(*program), random_);
    if (unfused_ == nullptr && has_sequence_) take_unfused();
    std::vector<RanksCall> calls;
    if (fused) calls.push_back(fused->call());
    if (unfused_) calls.push_back(unfused_->call());
    auto ms = time_ranks(world_, calls,
                         {.num_sets = num_sets_,
                          .warmup_ms = kWarmupMs,
                          .samples = options_.samples,
                          .calls_per_graph = options_.graph ? kCallsPerGraph : 0});
    if (fused) fused->executable().wait();
    result_.samples_ms = ms.front();
    if (unfused_) {
      result_.sequence = unfused_->description();
      result_.sequence_ms = ms.back();
    }
    if (fused && unfused_) result_.ratio = paired_ratio(result_.sequence_ms, result_.samples_ms);
    return std::move(result_);
  }

 private:
  int sets_of(const Program& program) {
    num_sets_ = num_launch_sets(program, world_);
    return num_sets_;
  }

  void take_unfused() {
    bool vendor = options_.vendor && vendor_has(steps_);
    unfused_ = std::make_unique<UnfusedOperator>(world_, steps_, num_sets_, random_,
                                                 vendor ? nullptr : &machine_);
  }

  MeasuredCandidate measure(const Candidate* candidate) {
    try {
      Contestant made;
      if (candidate != nullptr) {
        Program program = candidate->program();
        made.program = std::make_unique<GpuProgram>(world_, program,
                                                    num_launch_sets(program, world_), random_);
        made.call = made.program->call();
        made.num_sets = made.program->num_sets();
      } else {
        take_unfused();
        made.call = unfused_->call();
        made.num_sets = num_sets_;
      }
      return against_fastest(std::move(made));
    } catch (const Error& e) {
      bool fault = dynamic_cast<const Fault*>(&e) != nullptr;
      // A fault of processes is that of all ranks, one of which may have died.
      if (options_.host != nullptr && fault) throw;
      if (fault) {
        world_.synchronize();
        world_.clear_fault();
        if (fastest_.program) fastest_.program->executable().recover();
      }
      if (is_first()) {
        say("{}: {}\n", candidate == nullptr ? "sequence" : candidate->config, e.what());
      }
      return {};
    }
  }

  struct Contestant {
    std::unique_ptr<GpuProgram> program;  // none of the sequence
    RanksCall call;
    int num_sets = 1;
  };

  MeasuredCandidate against_fastest(Contestant made) {
    int num_sets = fastest_.call ? std::min(made.num_sets, fastest_.num_sets) : made.num_sets;
    Contest found = time_against(world_, made.call, fastest_.call,
                                 {.num_sets = num_sets,
                                  .samples = kCandidateSamples,
                                  .calls_per_graph = options_.graph ? kCallsPerGraph : 0});
    if (made.program) made.program->executable().wait();
    if (found.won) fastest_ = std::move(made);
    return {.ms = found.ms, .fastest = found.won};
  }

  // What the operator may run as; from now on its unfused path is known.
  OpCandidates offered_by(const std::string& op) {
    machine_ = options_.machine.empty() ? calibrated_machine(world_.size(), world_.target())
                                        : predict::find_machine(options_.machine);
    OpCandidates offered = candidates(op, options_.shape, {.sms = machine_.num_sms});
    steps_ = unfused_steps(op, offered.shape, offered);
    // One step of ours has nothing to be compared with but the libraries.
    has_sequence_ = !offered.sequence.empty() || (options_.vendor && vendor_has(steps_));
    return offered;
  }

  void compare_with(const OperatorInfo& op, const Program& program) {
    check_like(op, options_.shape, program);
    offered_by(op.name);
    result_.checked = checked_on_gpus(op, options_.shape, program, world_);
  }

  bool is_first() const { return world_.local_ranks().front() == 0; }

  // Nothing where the sequence is the best.
  std::optional<Program> chosen() {
    const std::string op = source_.op()->name;
    OpCandidates offered = offered_by(op);
    bool vendor = options_.vendor && vendor_has(steps_);
    sets_of(offered.fused.front().program());
    ChooseOptions choosing{.machine = machine_, .eager = !options_.graph};
    if (options_.measure) {
      choosing.measure = [this](const Candidate* c) { return measure(c); };
      // Nothing in which the ranks' processes differ: they keep one choice.
      choosing.measured_on = fmt::format(
          "{} vendor={} graph={} {}", world_.device(world_.local_ranks().front()).properties().name,
          vendor, options_.graph, options_.host == nullptr ? "threads" : "processes");
    }
    ConfigChoice choice = choose(op, options_.shape, offered, choosing);
    fastest_ = {};
    result_.predicted_ms = choice.predicted_ms;
    result_.chose_sequence = choice.is_sequence;
    result_.config =
        fmt::format("{}{} | {}", offered.desc,
                    rows_note(options_.shape, offered.fused.front().program()), choice.config);
    if (choice.is_sequence) return std::nullopt;
    const Candidate* found = find_candidate(offered, choice.config);
    STRETTO_CHECK(found != nullptr, "a choice is a candidate");
    Program program = found->program();
    // Programs of some configs are for more rows than were asked for: their operator's case does
    // not fit them.
    if (difference_from(*source_.op(), offered.shape, program).empty()) {
      result_.checked = checked_on_gpus(*source_.op(), offered.shape, program, world_);
    }
    return program;
  }

  GpuWorld& world_;
  const ProgramSource& source_;
  GpuMeasureOptions options_;
  RandomFill random_;
  predict::Machine machine_;
  std::vector<OpCandidates::Step> steps_;
  std::unique_ptr<UnfusedOperator> unfused_;
  bool has_sequence_ = false;
  int num_sets_ = 1;
  Contestant fastest_;  // of those that the chooser has had measured
  GpuMeasurement result_;
};

}  // namespace

GpuMeasurement measure_on_gpus(const ProgramSource& source, const GpuMeasureOptions& options) {
  if (options.host == nullptr) {
    GpuWorld world({.size = options.shape.world_size});
    return Measurement(world, source, options).run();
  }
  GpuWorld world(options.host->local_rank(), {.timeout = env_timeout()});
  return Measurement(world, source, options).run();
}

}  // namespace stretto
