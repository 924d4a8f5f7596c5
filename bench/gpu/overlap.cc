#include "bench/gpu/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/gpu/each_shape.h"
#include "bench/gpu/overlap_buffers.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/ops/gpu_harness/ranks_time.h"
#include "stretto/runtime/cuda/cublaslt.h"

namespace stretto::bench {
namespace {

constexpr DType kDType = DType::kBF16;
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

// A tensor of a shape: what one rank holds.
struct Extent {
  std::int64_t rows = 0, cols = 0;
  std::size_t bytes() const { return static_cast<std::size_t>(rows * cols) * size_bytes(kDType); }
};

struct Extents {
  Extent a, b, out;  // the operator's
  Extent between;    // of the sequence: the gathered rows, or the product to be summed
};

Extents extents_of(const OverlapShape& s) {
  const GemmShape& g = s.rank;
  Extent b{g.n, g.k}, product{g.m, g.n};
  switch (s.kind) {
    case OverlapKind::kAgGemm:
      return {{g.m / s.world_size, g.k}, b, product, {g.m, g.k}};
    case OverlapKind::kGemmRs:
      return {{g.m, g.k}, b, {g.m / s.world_size, g.n}, product};
    case OverlapKind::kGemmAr:
      return {{g.m, g.k}, b, product, product};
  }
  throw InternalError("overlap: unknown kind");
}

struct Set {
  SymmetricGpuMemory a, b, ours, theirs, between;
};

// A config of ours, compiled and loaded on every rank.
struct Candidate {
  OverlapTime time;
  Program program;
  std::unique_ptr<GpuInstance> instance;  // null after an error
};

class Comparison {
 public:
  Comparison(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
             const OverlapShape& shape, const OverlapOptions& options)
      : world_(world), nccl_(nccl), shape_(shape), options_(options), sizes_(extents_of(shape)) {
    result_.shape = shape;
    for (int i = 0; i < kNumSets; ++i) {
      sets_.push_back({random.allocate(sizes_.a.bytes()), random.allocate(sizes_.b.bytes()),
                       allocate_poisoned(world, sizes_.out.bytes()),
                       allocate_poisoned(world, sizes_.out.bytes()),
                       allocate_poisoned(world, sizes_.between.bytes())});
    }
    world.synchronize();
  }

  OverlapResult run() {
    choose_library();
    sequence(0);
    world_.synchronize();
    make_candidates();
    time_candidates();
    for (Candidate* c : by_time()) {
      if (!is_right(*c)) continue;
      result_.chosen = c->time.config;
      measure(*c);
      break;
    }
    if (!result_.eager) result_.error = "no config of ours gives the result";
    for (const Candidate& c : candidates_) result_.configs.push_back(c.time);
    return std::move(result_);
  }

 private:
  cuda::CublasLtOperands operands(int set, int rank) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    auto r = static_cast<std::size_t>(rank);
    bool gathers = shape_.kind == OverlapKind::kAgGemm;
    return {.a = (gathers ? s.between : s.a).on[r].address(),
            .b = s.b.on[r].address(),
            .c = (gathers ? s.theirs : s.between).on[r].address()};
  }

  void choose_library() {
    const GemmShape& g = shape_.rank;
    if (shape_.kind == OverlapKind::kAgGemm) {  // the product's factor
      for (int set = 0; set < kNumSets; ++set) collective(set);
      world_.synchronize();
    }
    for (int r = 0; r < world_.size(); ++r) {
      cuda::CublasLtGemm& library =
          library_.emplace_back(world_.device(r), cuda::CublasLtGemmDesc{g.m, g.n, g.k, kDType});
      std::vector<cuda::CublasLtOperands> all;
      for (int set = 0; set < kNumSets; ++set) all.push_back(operands(set, r));
      library.choose(world_.device(r), world_.stream(r), all, kLibraryRounds);
    }
  }

  void product(int set) const {
    for (int r = 0; r < world_.size(); ++r) {
      library_[static_cast<std::size_t>(r)].run(world_.stream(r), operands(set, r));
    }
  }

  void collective(int set) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    bool gathers = shape_.kind == OverlapKind::kAgGemm;
    const SymmetricGpuMemory& from = gathers ? s.a : s.between;
    const SymmetricGpuMemory& to = gathers ? s.between : s.theirs;
    std::vector<cuda::NcclPart> parts;
    for (int r = 0; r < world_.size(); ++r) {
      auto at = static_cast<std::size_t>(r);
      parts.push_back({&world_.stream(r), from.on[at].address(), to.on[at].address()});
    }
    auto elements = [](const Extent& e) { return static_cast<std::size_t>(e.rows * e.cols); };
    if (gathers) return nccl_.all_gather(parts, elements(sizes_.a), kDType);
    if (shape_.kind == OverlapKind::kGemmRs) {
      return nccl_.reduce_scatter(parts, elements(sizes_.out), kDType);
    }
    nccl_.all_reduce(parts, elements(sizes_.out), kDType);
  }

  void sequence(int set) const {
    bool gathers = shape_.kind == OverlapKind::kAgGemm;
    if (gathers) collective(set);
    product(set);
    if (!gathers) collective(set);
  }

  GpuLaunchArgs arguments(const Program& p, int set) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    GpuLaunchArgs args{.tensors = std::vector<std::vector<CUdeviceptr>>(p.tensors.size()),
                       .extents = {shape_.rank.m}};
    auto bind = [&](const char* tensor, const SymmetricGpuMemory& memory) {
      args.tensors[static_cast<std::size_t>(p.find_tensor(tensor))] = memory.addresses();
    };
    bind("a", s.a);
    bind("b", s.b);
    bind(shape_.kind == OverlapKind::kAgGemm ? "c" : "out", s.ours);
    return args;
  }

  RanksCall call_of(const Candidate& c) const {
    std::vector<GpuLaunchArgs> args;
    for (int set = 0; set < kNumSets; ++set) args.push_back(arguments(c.program, set));
    GpuInstance* instance = c.instance.get();
    return [=](int set) { instance->launch(args[static_cast<std::size_t>(set)]); };
  }

  // After a fault, which leaves nothing running.
  void start_anew() {
    world_.synchronize();
    world_.clear_fault();
    for (Candidate& c : candidates_) {
      if (c.instance) c.instance->recover();
    }
  }

  void make_candidates() {
    int sms = world_.device(0).properties().num_sms;
    for (OverlapCandidate& made : overlap_candidates(shape_, sms, options_.quick)) {
      Candidate& c = candidates_.emplace_back();
      c.time = {.family = made.family, .config = made.config, .ms = 0, .error = made.error};
      if (!made.error.empty()) continue;
      try {
        c.program = std::move(made.program);
        CompiledProgram compiled = compile(c.program, {.require_proof = false});
        c.instance = std::make_unique<GpuInstance>(world_, compiled);
        call_of(c)(0);
        c.instance->wait();
      } catch (const Fault& e) {
        drop(c, e.what());
        start_anew();
      } catch (const Error& e) {
        drop(c, e.what());
      }
    }
  }

  static void drop(Candidate& c, const std::string& why) {
    c.time.error = why;
    c.instance.reset();
  }

  void time_candidates() {
    std::vector<RanksCall> calls;
    std::vector<Candidate*> which;
    for (Candidate& c : candidates_) {
      if (!c.instance) continue;
      calls.push_back(call_of(c));
      which.push_back(&c);
    }
    if (calls.empty()) return;
    auto ms = time_ranks(world_, calls,
                         {.num_sets = kNumSets, .warmup_ms = 50, .samples = kCandidateSamples});
    for (std::size_t i = 0; i < which.size(); ++i) {
      which[i]->time.ms = median_interval(ms[i]).median;
    }
  }

  std::vector<Candidate*> by_time() {
    std::vector<Candidate*> sorted;
    for (Candidate& c : candidates_) {
      if (c.time.ms > 0) sorted.push_back(&c);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const Candidate* x, const Candidate* y) { return x->time.ms < y->time.ms; });
    return sorted;
  }

  // Terms are of magnitude 1, sums of k of them of sqrt(k). Both round the result once; where
  // ranks' parts are summed, each of them may round to a neighbour, at some sqrt(k) times 4.
  std::string compare(int set) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    double magnitude = std::sqrt(static_cast<double>(shape_.rank.k));
    bool sums = shape_.kind != OverlapKind::kAgGemm;
    Tolerance allowed{
        .relative = 0x1p-7,
        .absolute = sums ? 0x1p-7 * 4 * magnitude * world_.size() : 0x1p-12 * magnitude};
    return compare_bf16(world_, s.ours, s.theirs, sizes_.out.cols, allowed);
  }

  bool is_right(Candidate& c) {
    poison(world_, sets_[0].ours);
    world_.synchronize();
    call_of(c)(0);
    c.instance->wait();
    std::string found = compare(0);
    c.time.error = found;
    return found.empty();
  }

  OverlapSamples timed(Candidate& c, int calls_per_graph) const {
    std::vector<RanksCall> calls = {call_of(c), [&](int set) { product(set); },
                                    [&](int set) { collective(set); },
                                    [&](int set) { sequence(set); }};
    auto ms = time_ranks(world_, calls,
                         {.num_sets = kNumSets,
                          .warmup_ms = 200,
                          .samples = options_.samples,
                          .calls_per_graph = calls_per_graph});
    c.instance->wait();
    return {std::move(ms[0]), std::move(ms[1]), std::move(ms[2]), std::move(ms[3])};
  }

  void measure(Candidate& c) {
    result_.eager = timed(c, 0);
    sequence(kNumSets - 1);
    world_.synchronize();
    // What hundreds of launches in a row have left.
    result_.error = compare(kNumSets - 1);
    if (!result_.error.empty() || !options_.graph || !shape_.decode) return;
    try {
      result_.graph = timed(c, kGraphCalls);
      result_.error = compare(kNumSets - 1);
    } catch (const DeviceError& e) {
      result_.error = fmt::format("in a graph: {}", e.what());
    }
  }

  GpuWorld& world_;
  const cuda::NcclRanks& nccl_;
  OverlapShape shape_;
  const OverlapOptions& options_;
  Extents sizes_;
  std::vector<Set> sets_;
  std::vector<cuda::CublasLtGemm> library_;  // [rank]
  std::vector<Candidate> candidates_;
  OverlapResult result_;
};

Json to_json(const MedianInterval& m) {
  return {{"median", m.median}, {"low", m.low}, {"high", m.high}};
}

}  // namespace

MedianInterval OverlapSamples::hidden() const {
  std::vector<double> parts;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    parts.push_back(1 - (ours[i] - gemm[i]) / (sequence[i] - gemm[i]));
  }
  return median_interval(std::move(parts));
}

std::string OverlapSamples::to_string() const {
  auto median = [](const std::vector<double>& ms) { return median_interval(ms).median; };
  MedianInterval ratio = speedup(), e = hidden();
  return fmt::format(
      "ours {:.4f} gemm {:.4f} nccl {:.4f} sequence {:.4f} ms | sequence/ours {:.3f} [{:.3f}, "
      "{:.3f}] | E_overlap {:.2f} [{:.2f}, {:.2f}]",
      median(ours), median(gemm), median(collective), median(sequence), ratio.median, ratio.low,
      ratio.high, e.median, e.low, e.high);
}

Json OverlapSamples::to_json() const {
  return {{"ours_ms", ours},
          {"gemm_ms", gemm},
          {"nccl_ms", collective},
          {"sequence_ms", sequence},
          {"sequence_over_ours", bench::to_json(speedup())},
          {"e_overlap", bench::to_json(hidden())}};
}

std::string OverlapResult::to_string() const {
  std::string out = shape.to_string();
  if (eager) out += "\n  eager: " + eager->to_string();
  if (graph) out += "\n  graph: " + graph->to_string();
  if (!chosen.empty()) out += "\n  chosen: " + chosen;
  for (const OverlapTime& t : configs) {
    if (t.ms > 0) out += fmt::format("\n    {:9.4f} {:8} {}", t.ms, t.family, t.config);
    if (!t.error.empty()) out += fmt::format("\n    {} {}: {}", t.family, t.config, t.error);
  }
  if (!error.empty()) out += "\n  FAILED: " + error;
  return out;
}

Json OverlapResult::to_json() const {
  Json out = {{"op", name(shape.kind)},
              {"ranks", shape.world_size},
              {"m", shape.rank.m},
              {"n", shape.rank.n},
              {"k", shape.rank.k}};
  for (const OverlapTime& t : configs) {
    Json row = {{"family", t.family}, {"config", t.config}};
    if (t.ms > 0) row["ms"] = t.ms;
    if (!t.error.empty()) row["error"] = t.error;
    out["configs"].push_back(row);
  }
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
    for (OverlapCandidate& c : overlap_candidates(shape, num_sms, options.quick)) {
      if (!c.error.empty()) continue;
      programs.push_back({shape.to_string() + " | " + c.config, std::move(c.program)});
    }
  }
  return programs;
}

void compare_overlap(GpuWorld& world, const OverlapOptions& options,
                     const std::function<void(const OverlapResult&)>& done) {
  auto compare = [&](const cuda::NcclRanks& nccl, RandomFill& random, const OverlapShape& shape) {
    return Comparison(world, nccl, random, shape, options).run();
  };
  for_each_shape<OverlapResult>(world, selected(world.size(), options), options.seed, compare,
                                done);
}

}  // namespace stretto::bench
