#include "bench/gpu/collectives/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "bench/gpu/harness/each_shape.h"
#include "bench/gpu/operand_type.h"
#include "bench/gpu/overlap/overlap_buffers.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {
namespace {

constexpr int kNumSets = 3;
constexpr int kCandidateSamples = 7;

// Calls of one graph: enough that the launch of the graph does not count.
int calls_per_graph(std::size_t bytes) { return bytes <= std::size_t{1} << 20 ? 24 : 6; }

std::vector<CollectiveShape> selected(int world_size, const CollectivesOptions& options) {
  std::vector<CollectiveShape> shapes = collective_shapes(world_size, options.quick);
  std::erase_if(shapes, [&](const CollectiveShape& s) {
    return s.to_string().find(options.only) == std::string::npos;
  });
  return shapes;
}

struct TimedCollective {
  TriedConfig time;
  Program program;
  std::unique_ptr<Executable> executable;  // null after an error
};

struct Set {
  SymmetricGpuMemory in, ours, theirs;
  std::map<std::string, SymmetricGpuMemory> others = {};  // by tensor
};

class CollectiveComparison {
 public:
  CollectiveComparison(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                       const CollectiveShape& shape, const CollectivesOptions& options)
      : world_(world), nccl_(nccl), shape_(shape), options_(options) {
    result_.shape = shape;
    std::size_t part = shape.bytes / static_cast<std::size_t>(world.size());
    std::size_t in = shape.kind == CollectiveKind::kAllGather ? part : shape.bytes;
    std::size_t out = shape.kind == CollectiveKind::kReduceScatter ? part : shape.bytes;
    for (int i = 0; i < kNumSets; ++i) {
      sets_.push_back(
          {random.allocate(in), allocate_poisoned(world, out), allocate_poisoned(world, out)});
      add_others(sets_.back(), random);
    }
    if (shape.kind == CollectiveKind::kAllReduceNorm) make_norm(random);
    world.synchronize();
  }

  CollectiveResult run() {
    for (int set = 0; set < kNumSets; ++set) theirs(set);
    world_.synchronize();
    make_candidates();
    if (TimedCollective* best = fastest()) {
      result_.chosen = best->time.config;
      result_.eager = timed(*best, 0);
      result_.error = compare(kNumSets - 1);  // what all launches in a row have left
      if (result_.error.empty()) time_in_graph(*best);
    } else {
      result_.error = "no config of ours gives the result";
    }
    for (const TimedCollective& c : candidates_) result_.configs.push_back(c.time);
    return std::move(result_);
  }

 private:
  void theirs(int set) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    std::vector<cuda::NcclPart> parts;
    for (int r = 0; r < world_.size(); ++r) {
      auto at = static_cast<std::size_t>(r);
      parts.push_back({&world_.stream(r), s.in.on[at].address(), s.theirs.on[at].address()});
    }
    std::size_t all = shape_.bytes / size_bytes(kDType);
    std::size_t part = all / static_cast<std::size_t>(world_.size());
    switch (shape_.kind) {
      case CollectiveKind::kAllGather:
        return nccl_.all_gather(parts, part, kDType);
      case CollectiveKind::kReduceScatter:
        return nccl_.reduce_scatter(parts, part, kDType);
      case CollectiveKind::kAllReduce:
        return nccl_.all_reduce(parts, all, kDType);
      case CollectiveKind::kAllToAll:
        return nccl_.all_to_all(parts, part, kDType);
      case CollectiveKind::kAllReduceNorm:
        for (std::size_t r = 0; r < parts.size(); ++r) {
          parts[r].to = s.others.at("reduced").on[r].address();
        }
        nccl_.all_reduce(parts, all, kDType);
        return norm_->call()(set);
    }
  }

  // What a kind has beside in and out.
  void add_others(Set& s, RandomFill& random) const {
    auto ranks = static_cast<std::size_t>(world_.size());
    if (shape_.kind == CollectiveKind::kAllToAll) {  // all rows count
      std::vector<std::int32_t> counts(ranks, static_cast<std::int32_t>(shape_.desc.m));
      std::size_t bytes = counts.size() * sizeof(counts[0]);
      SymmetricGpuMemory& memory = s.others["recv_counts"] = world_.allocate(bytes);
      for (int r = 0; r < world_.size(); ++r) {
        world_.stream(r).upload(memory.on[static_cast<std::size_t>(r)].address(), counts.data(),
                                bytes);
        world_.stream(r).synchronize();
      }
    } else if (shape_.kind == CollectiveKind::kAllReduceNorm) {
      s.others["residual"] = random.allocate(shape_.bytes);
      s.others["weight"] = random.allocate(shape_.bytes / static_cast<std::size_t>(shape_.desc.m));
      s.others["sum"] = allocate_poisoned(world_, shape_.bytes);
      s.others["reduced"] = allocate_poisoned(world_, shape_.bytes);
    }
  }

  // The step after NCCL's.
  void make_norm(RandomFill& random) {
    NormDesc desc = norm_desc(shape_);
    desc.add_residual = true;
    norm_.emplace(world_, rms_norm(desc, default_config(desc, Target::kCuda)), kNumSets, random);
    for (int i = 0; i < kNumSets; ++i) {
      const Set& s = sets_[static_cast<std::size_t>(i)];
      norm_->bind("x", i, s.others.at("reduced"));
      norm_->bind("residual", i, s.others.at("residual"));
      norm_->bind("weight", i, s.others.at("weight"));
      norm_->bind("out", i, s.theirs);
    }
  }

  // Launches of a graph start early where their kernel may (decision 0006).
  RanksCall call_of(const TimedCollective& c, bool in_graph = false) const {
    const Program& p = c.program;
    std::vector<std::shared_ptr<Launch>> launches;
    for (const Set& s : sets_) {
      Args of_set;
      of_set.tensors.resize(p.tensors.size());
      of_set.starts_early = in_graph;
      auto bind = [&](const std::string& name, const SymmetricGpuMemory& memory) {
        int tensor = p.find_tensor(name);
        if (tensor >= 0) of_set.tensors[static_cast<std::size_t>(tensor)].on = memory.addresses();
      };
      bind(shape_.kind == CollectiveKind::kAllReduceNorm ? "x" : "in", s.in);
      bind("out", s.ours);
      for (const auto& [name, memory] : s.others) bind(name, memory);
      launches.push_back(c.executable->prepare(of_set));
    }
    return [launches, extents = extent_bounds(p)](int set) {
      launches[static_cast<std::size_t>(set)]->run(extents);
    };
  }

  void make_candidates() {
    for (CollectiveCandidate& made : collective_candidates(shape_, options_.quick)) {
      TimedCollective& c = candidates_.emplace_back();
      c.time.config = std::move(made.config);
      c.program = std::move(made.program);
      try {
        Lowered lowered = lower(c.program);
        const GpuTarget gpu = world_.target();
        c.executable = load(prove(lowered, {.bounds_only = true, .gpu = gpu}), world_,
                            generate(lowered, {.target = gpu}));
        for (const Set& s : sets_) poison(world_, s.ours);
        world_.synchronize();
        call_of(c)(0);
        c.executable->wait();
        c.time.error = compare(0);
      } catch (const Fault& e) {
        c.time.error = e.what();
        world_.synchronize();
        world_.clear_fault();
        for (TimedCollective& other : candidates_) {
          if (other.executable) other.executable->recover();
        }
      } catch (const Error& e) {
        c.time.error = e.what();
      }
      if (!c.time.error.empty()) c.executable.reset();
    }
  }

  // Null where none gives the result.
  TimedCollective* fastest() {
    std::vector<RanksCall> calls;
    std::vector<TimedCollective*> which;
    for (TimedCollective& c : candidates_) {
      if (!c.executable) continue;
      calls.push_back(call_of(c, true));
      which.push_back(&c);
    }
    if (which.empty()) return nullptr;
    auto ms = time_ranks(world_, calls,
                         {.num_sets = kNumSets,
                          .warmup_ms = 20,
                          .samples = kCandidateSamples,
                          .calls_per_graph = calls_per_graph(shape_.bytes)});
    for (std::size_t i = 0; i < which.size(); ++i) {
      which[i]->time.ms = median(ms[i]);
    }
    return *std::min_element(which.begin(), which.end(),
                             [](const auto* x, const auto* y) { return x->time.ms < y->time.ms; });
  }

  NcclSamples timed(TimedCollective& c, int calls) const {
    auto ms = time_ranks(world_, {call_of(c, calls > 0), [&](int set) { theirs(set); }},
                         {.num_sets = kNumSets,
                          .warmup_ms = 50,
                          .samples = options_.samples,
                          .calls_per_graph = calls});
    c.executable->wait();
    return {std::move(ms[0]), std::move(ms[1])};
  }

  void time_in_graph(TimedCollective& c) {
    try {
      result_.graph = timed(c, calls_per_graph(shape_.bytes));
      result_.error = compare(kNumSets - 1);
    } catch (const DeviceError& e) {
      result_.error = fmt::format("in a graph: {}", e.what());
    }
  }

  // Bits that are copied are the same; sums of P values of magnitude 1 may be rounded at each hop.
  std::string compare(int set) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    Tolerance allowed;
    bool copies =
        shape_.kind == CollectiveKind::kAllGather || shape_.kind == CollectiveKind::kAllToAll;
    if (!copies) allowed = {.relative = 0x1p-6, .absolute = 0x1p-6 * world_.size()};
    return compare_bf16(world_, s.ours, s.theirs, shape_.desc.n, allowed);
  }

  GpuWorld& world_;
  const cuda::NcclRanks& nccl_;
  CollectiveShape shape_;
  const CollectivesOptions& options_;
  std::vector<Set> sets_;
  std::optional<GpuProgram> norm_;  // of kAllReduceNorm
  std::vector<TimedCollective> candidates_;
  CollectiveResult result_;
};

}  // namespace

std::string CollectiveResult::to_string() const {
  std::string out = fmt::format("{:26}", shape.to_string());
  if (graph) out += " graph: " + graph->to_string(shape.bus_bytes());
  if (eager) out += "\n" + std::string(26, ' ') + " eager: " + eager->to_string(shape.bus_bytes());
  if (!chosen.empty()) out += " | " + chosen;
  for (const TriedConfig& t : configs) {
    if (!t.error.empty()) out += fmt::format("\n  {}: {}", t.config, t.error);
  }
  if (!error.empty()) out += "\n  FAILED: " + error;
  return out;
}

Json CollectiveResult::to_json() const {
  Json out = {{"op", shape.to_string()},
              {"ranks", shape.desc.world_size},
              {"bytes", shape.bytes},
              {"m", shape.desc.m},
              {"n", shape.desc.n}};
  add_configs(configs, out);
  if (!error.empty()) out["error"] = error;
  if (!chosen.empty()) out["chosen"] = chosen;
  if (eager) out["eager"] = eager->to_json();
  if (graph) out["graph"] = graph->to_json();
  return out;
}

std::vector<LabelledProgram> collectives_programs(int world_size,
                                                  const CollectivesOptions& options) {
  std::vector<LabelledProgram> programs;
  for (const CollectiveShape& shape : selected(world_size, options)) {
    for (CollectiveCandidate& c : collective_candidates(shape, options.quick)) {
      programs.push_back(
          {fmt::format("{} {} | {}", shape.to_string(), to_string(shape.desc), c.config),
           std::move(c.program)});
    }
  }
  return programs;
}

void compare_collectives(GpuWorld& world, const CollectivesOptions& options,
                         const std::function<void(const CollectiveResult&)>& done) {
  auto compare = [&](const cuda::NcclRanks& nccl, RandomFill& random,
                     const CollectiveShape& shape) {
    return CollectiveComparison(world, nccl, random, shape, options).run();
  };
  for_each_shape<CollectiveResult>(world, selected(world.size(), options), options.seed, compare,
                                   done);
}

}  // namespace stretto::bench
