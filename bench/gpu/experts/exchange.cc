#include "bench/gpu/experts/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <random>

#include "bench/gpu/experts/exchange_candidates.h"
#include "bench/gpu/experts/exchange_routing.h"
#include "bench/gpu/harness/each_shape.h"
#include "bench/gpu/harness/traces.h"
#include "bench/gpu/operand_type.h"
#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::bench {
namespace {

constexpr int kCandidateSamples = 9;

const char* payload(const ExchangeShape& s) { return s.fp8 ? "e4m3" : short_name(s.desc.dtype); }

std::vector<ExchangeShape> selected(int world_size, const ExchangeOptions& options) {
  std::vector<ExchangeShape> shapes;
  for (std::int64_t tokens : {ExchangeShape::kShortStep, std::int64_t{4096}}) {
    for (ExchangeKind kind : {ExchangeKind::kDispatch, ExchangeKind::kCombine}) {
      shapes.push_back({.kind = kind,
                        .desc = {.shape = {.world_size = world_size,
                                           .m = tokens * world_size,
                                           .top_k = 8,
                                           .num_experts = 256},
                                 .dtype = kDType,
                                 .hidden = 7168,
                                 .expert_groups = world_size}});
      if (kind != ExchangeKind::kDispatch) continue;
      shapes.push_back(shapes.back());
      shapes.back().fp8 = true;
    }
  }
  std::erase_if(shapes, [&](const ExchangeShape& s) {
    return s.to_string().find(options.only) == std::string::npos;
  });
  return shapes;
}

// What one launch works on; by tensor, as the operators name them.
using Set = std::map<std::string, SymmetricGpuMemory>;

// A candidate on sets that all share: memory of its own would be gigabytes for each.
class Bound {
 public:
  Bound(GpuWorld& world, const Program& program, const std::vector<Set>& sets, bool records) {
    const GpuTarget gpu = world.target();
    ProvedForGpu made = prove_for_gpu(lower(program), {.bounds_only = true, .gpu = gpu},
                                      {.target = gpu, .record = records});
    executable_ = load(made.program, world, std::move(made.code));
    extents_ = extent_bounds(program);
    for (const Set& set : sets) {
      Args args;
      for (const Tensor& t : program.tensors) {
        bool is_callers = t.kind != TensorKind::kBuffer;
        args.tensors.push_back(is_callers ? TensorArg{.on = set.at(t.name).addresses()}
                                          : TensorArg{});
      }
      launches_.push_back(executable_->prepare(args));
    }
    world.meet();
  }

  RanksCall call() const {  // valid as long as this lives
    return [this](int set) { launches_[at(set)]->run(extents_); };
  }
  void wait() const { executable_->wait(); }
  Executable* executable() const { return executable_.get(); }

 private:
  std::unique_ptr<Executable> executable_;
  std::vector<std::shared_ptr<Launch>> launches_;  // [set]
  std::vector<std::int64_t> extents_;
};

class ExchangeComparison {
 public:
  ExchangeComparison(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                     const ExchangeShape& shape, const ExchangeOptions& options)
      : world_(world),
        nccl_(nccl),
        random_(random),
        shape_(shape),
        options_(options),
        routing_(shape.desc, options.seed),
        row_bytes_(at(shape.desc.hidden) * size_bytes(shape.desc.dtype)) {
    result_.shape = shape;
    auto token_bytes = static_cast<double>(shape.token_bytes());
    result_.bytes = static_cast<double>(routing_.most_received()) * token_bytes;
    auto block = at(std::llround(routing_.mean_block() * token_bytes));
    nccl_count_ = block / size_bytes(kDType);
    for (int i = 0; i < num_sets(); ++i) sets_.push_back(make_set());
    world.synchronize();
  }

  ExchangeResult run() {
    std::vector<ExchangeCandidate> candidates = exchange_candidates(shape_, options_.quick);
    std::unique_ptr<Bound> best;
    const Program* best_program = nullptr;
    for (ExchangeCandidate& c : candidates) {
      std::unique_ptr<Bound> made = checked(c);
      if (!made) continue;
      c.time.ms = median(timed(*made, calls_per_graph(), kCandidateSamples).ours_ms);
      if (best && c.time.ms >= best_ms_) continue;
      best = std::move(made);
      best_ms_ = c.time.ms;
      best_program = &c.program;
      result_.chosen = c.time.config;
    }
    for (const ExchangeCandidate& c : candidates) result_.configs.push_back(c.time);
    if (!best) {
      result_.error = "no config of ours gives the result";
      return std::move(result_);
    }
    result_.graph = timed(*best, calls_per_graph(), options_.samples);
    result_.eager = timed(*best, 0, options_.samples);
    result_.error = difference(num_sets() - 1);  // what all launches in a row have left
    if (!options_.traces.empty()) trace(*best_program);
    return std::move(result_);
  }

 private:
  // A decode step's tokens stay in the L2 cache, large ones do not.
  int num_sets() const { return shape_.is_short() ? 3 : 1; }
  // Enough that the launch of the graph does not count.
  int calls_per_graph() const { return shape_.is_short() ? 24 : 4; }

  template <typename T>
  SymmetricGpuMemory upload(const std::vector<std::vector<T>>& of_rank) const {
    std::size_t bytes = of_rank[0].size() * sizeof(T);
    SymmetricGpuMemory memory = world_.allocate(bytes);
    for (int r = 0; r < world_.size(); ++r) {
      world_.stream(r).upload(memory.on[at(r)].address(), of_rank[at(r)].data(), bytes);
    }
    world_.synchronize();
    return memory;
  }

  Set make_set() {
    const EpDesc& d = shape_.desc;
    std::size_t own = at(d.shape.rows_per_rank()), all = at(d.received_rows()),
                top_k = at(d.shape.top_k);
    std::size_t word = sizeof(std::int32_t);
    Set s;
    if (shape_.kind == ExchangeKind::kDispatch) {
      s["x"] = random_.allocate(own * row_bytes_);
      s["experts"] = upload(routing_.experts);
      s["weights"] = upload(routing_.weights);
      s["recv"] = allocate_poisoned(world_, all * (shape_.fp8 ? at(d.hidden) : row_bytes_));
      s["recv_scales"] = allocate_poisoned(world_, all * at(d.hidden / kScaleBlock) * word);
      s["recv_experts"] = allocate_poisoned(world_, all * top_k * word);
      s["recv_weights"] = allocate_poisoned(world_, all * top_k * word);
      s["positions"] = allocate_poisoned(world_, own * at(d.shape.world_size) * word);
    } else {
      s["y"] = random_.allocate(all * top_k * row_bytes_);
      s["slots"] = upload(routing_.slots);
      s["recv_weights"] = upload(routing_.recv_weights);
      s["positions"] = upload(routing_.positions);
      s["residual"] = random_.allocate(own * row_bytes_);
      s["parts"] = allocate_poisoned(world_, all * row_bytes_);
      s["out"] = allocate_poisoned(world_, own * row_bytes_);
    }
    s["nccl in"] = random_.allocate(at(world_.size()) * nccl_count_ * size_bytes(kDType));
    s["nccl out"] = random_.allocate(at(world_.size()) * nccl_count_ * size_bytes(kDType));
    return s;
  }

  void all_to_all(int set) const {
    const Set& s = sets_[at(set)];
    std::vector<cuda::NcclPart> parts;
    for (int r = 0; r < world_.size(); ++r) {
      parts.push_back({&world_.stream(r), s.at("nccl in").on[at(r)].address(),
                       s.at("nccl out").on[at(r)].address()});
    }
    nccl_.all_to_all(parts, nccl_count_, kDType);
  }

  // Null where the program does not give the result; why is in the candidate.
  std::unique_ptr<Bound> checked(ExchangeCandidate& c) {
    try {
      auto made = std::make_unique<Bound>(world_, c.program, sets_, /*records=*/false);
      const char* result = shape_.kind == ExchangeKind::kDispatch ? "recv" : "out";
      for (const Set& s : sets_) poison(world_, s.at(result));
      world_.synchronize();
      made->call()(0);
      made->wait();
      c.time.error = difference(0);
      if (c.time.error.empty()) return made;
    } catch (const Fault& e) {
      c.time.error = e.what();
      world_.synchronize();
      world_.clear_fault();
    } catch (const Error& e) {
      c.time.error = e.what();
    }
    return nullptr;
  }

  NcclSamples timed(const Bound& program, int calls, int samples) const {
    auto ms = time_ranks(
        world_, {program.call(), [&](int set) { all_to_all(set); }},
        {.num_sets = num_sets(), .warmup_ms = 50, .samples = samples, .calls_per_graph = calls});
    program.wait();
    return {std::move(ms[0]), std::move(ms[1])};
  }

  // Once more with the recorder, in turn with NCCL as it was timed.
  void trace(const Program& program) {
    const Bound recorded(world_, program, sets_, /*records=*/true);
    auto in_turn = [&, launch = recorded.call()] {
      launch(0);
      all_to_all(0);
    };
    write_traces(world_, {traced("exchange", result_.chosen, in_turn, recorded.executable())},
                 options_.traces, shape_.to_string());
  }

  template <typename T>
  std::vector<T> download(int set, const std::string& name, int rank, std::size_t first,
                          std::size_t count) const {
    std::vector<T> host(count);
    const cuda::Stream& stream = world_.stream(rank);
    CUdeviceptr from = sets_[at(set)].at(name).on[at(rank)].address() + first * sizeof(T);
    stream.download(host.data(), from, count * sizeof(T));
    stream.synchronize();
    return host;
  }

  // The ranks side by side: on one thread long steps took most of a run.
  std::string difference(int set) {
    bool came = shape_.kind == ExchangeKind::kDispatch;
    if (came) keep_sent(set);
    std::vector<std::future<std::string>> of_ranks;
    for (int r = 0; r < world_.size(); ++r) {
      of_ranks.push_back(std::async(std::launch::async, [this, came, set, r] {
        return came ? received_difference(set, r) : sums_difference(set, r);
      }));
    }
    std::string found;
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      std::string of_rank = of_ranks[r].get();
      if (found.empty() && !of_rank.empty()) found = fmt::format("rank {}: {}", r, of_rank);
    }
    return found;
  }

  // The tokens of a set, which nothing writes, and where what came from a rank is looked at.
  void keep_sent(int set) {
    std::size_t own = at(shape_.desc.shape.rows_per_rank()), hidden = at(shape_.desc.hidden);
    if (sent_set_ != set) {
      sent_.clear();
      for (int r = 0; r < world_.size(); ++r) {
        sent_.push_back(download<std::uint16_t>(set, "x", r, 0, own * hidden));
      }
      sent_set_ = set;
    }
    while (came_.size() < at(world_.size())) {
      came_.emplace_back(world_.device(static_cast<int>(came_.size())), own * row_bytes_);
    }
  }

  // Every token that a rank was sent, bit by bit, and where the own ones are said to be.
  std::string received_difference(int set, int rank) const {
    const EpDesc& d = shape_.desc;
    std::size_t own = at(d.shape.rows_per_rank()), top_k = at(d.shape.top_k);
    auto positions =
        download<std::int32_t>(set, "positions", rank, 0, own * at(d.shape.world_size));
    if (positions != routing_.positions[at(rank)]) return "positions are not those of the routing";
    auto experts =
        download<std::int32_t>(set, "recv_experts", rank, 0, at(d.received_rows()) * top_k);
    auto weights = download<float>(set, "recv_weights", rank, 0, at(d.received_rows()) * top_k);
    for (int from = 0; from < d.shape.world_size; ++from) {
      std::string found = rows_difference(set, rank, from);
      if (!found.empty()) return found;
      for (std::int32_t sent : routing_.sent(from, rank)) {
        std::size_t token = at(sent), row = at(routing_.row(from, sent));
        auto same = [&](const auto& got, const auto& want, std::size_t n) {
          return std::memcmp(&got[row * n], &want[token * n], n * sizeof(got[0])) == 0;
        };
        if (same(experts, routing_.experts[at(from)], top_k) &&
            same(weights, routing_.weights[at(from)], top_k)) {
          continue;
        }
        return fmt::format("row {} has not the experts of token {} of rank {}", row, token, from);
      }
    }
    return "";
  }

  // What came from one rank: bit by bit, or, of e4m3, within half a step.
  std::string rows_difference(int set, int rank, int from) const {
    std::size_t own = at(shape_.desc.shape.rows_per_rank()), hidden = at(shape_.desc.hidden);
    std::size_t blocks = hidden / kScaleBlock, first = at(from) * own;
    std::size_t row_bytes = shape_.fp8 ? hidden : row_bytes_;
    const auto* came = static_cast<const std::uint8_t*>(came_[at(rank)].host());
    CUdeviceptr recv = sets_[at(set)].at("recv").on[at(rank)].address();
    const cuda::Stream& stream = world_.stream(rank);
    stream.download(came_[at(rank)].host(), recv + first * row_bytes, own * row_bytes);
    stream.synchronize();
    std::vector<float> scales;
    if (shape_.fp8) {
      scales = download<float>(set, "recv_scales", rank, first * blocks, own * blocks);
    }
    for (std::int32_t sent : routing_.sent(from, rank)) {
      std::size_t token = at(sent);
      const std::uint16_t* want = &sent_[at(from)][token * hidden];
      const std::uint8_t* got = came + token * row_bytes;
      bool same = shape_.fp8 ? is_rounded(want, got, &scales[token * blocks], blocks)
                             : std::memcmp(got, want, row_bytes) == 0;
      if (!same) return fmt::format("the row of token {} of rank {} is not its own", token, from);
    }
    return "";
  }

  static bool is_rounded(const std::uint16_t* x, const std::uint8_t* steps, const float* scales,
                         std::size_t blocks) {
    static const std::array<float, 256> values = [] {
      std::array<float, 256> of_codes{};
      for (std::size_t code = 0; code < of_codes.size(); ++code) {
        of_codes[code] = f8e4m3_to_f32(static_cast<std::uint8_t>(code));
      }
      return of_codes;
    }();
    for (std::size_t i = 0; i < blocks * kScaleBlock; ++i) {
      float scale = scales[i / kScaleBlock];
      if (!is_rounded(bf16_to_f32(x[i]), values[steps[i]], scale)) return false;
    }
    return true;
  }
  static bool is_rounded(float x, float value, float scale) {
    float got = value * scale, most = std::max(std::abs(x) * 0x1p-4F, scale * 0x1p-10F);
    return std::abs(got - x) <= most * 1.001F && std::abs(x) <= scale * 448.001F;
  }

  // Tokens drawn by lot against sums in fp64.
  std::string sums_difference(int set, int rank) const {
    constexpr int kTokens = 48;
    std::mt19937_64 random(options_.seed);
    std::size_t hidden = at(shape_.desc.hidden);
    for (int i = 0; i < kTokens; ++i) {
      std::size_t token = random() % at(shape_.desc.shape.rows_per_rank());
      std::vector<double> want = sum_of(set, rank, token);
      auto got = download<std::uint16_t>(set, "out", rank, token * hidden, hidden);
      for (std::size_t c = 0; c < hidden; ++c) {
        // Rounded once at each rank, and once here.
        double allowed = 0x1p-8 * (std::abs(want[c]) + 4 * world_.size());
        double value = bf16_to_f32(got[c]);
        if (std::abs(value - want[c]) <= allowed) continue;
        return fmt::format("token {} column {} is {}, must be {}", token, c, value, want[c]);
      }
    }
    return "";
  }

  std::vector<double> sum_of(int set, int rank, std::size_t token) const {
    const EpDesc& d = shape_.desc;
    std::size_t hidden = at(d.hidden), top_k = at(d.shape.top_k);
    std::vector<double> sum(hidden);
    auto add = [&](double weight, int from, const char* tensor, std::size_t row) {
      auto values = download<std::uint16_t>(set, tensor, from, row * hidden, hidden);
      for (std::size_t c = 0; c < hidden; ++c) sum[c] += weight * bf16_to_f32(values[c]);
    };
    add(1, rank, "residual", token);
    for (int by = 0; by < d.shape.world_size; ++by) {
      auto position = routing_.positions[at(rank)][token * at(d.shape.world_size) + at(by)];
      if (position < 0) continue;
      std::size_t row = at(rank * d.shape.rows_per_rank() + position);
      for (std::size_t j = 0; j < top_k; ++j) {
        std::int32_t slot = routing_.slots[at(by)][row * top_k + j];
        if (slot >= 0) add(routing_.recv_weights[at(by)][row * top_k + j], by, "y", at(slot));
      }
    }
    return sum;
  }

  GpuWorld& world_;
  const cuda::NcclRanks& nccl_;
  RandomFill& random_;
  ExchangeShape shape_;
  const ExchangeOptions& options_;
  ExchangeRouting routing_;
  std::size_t row_bytes_, nccl_count_ = 0;  // count: elements of a block
  std::vector<Set> sets_;
  std::vector<std::vector<std::uint16_t>> sent_;  // x of each rank, of set sent_set_
  int sent_set_ = -1;
  std::vector<cuda::HostMappedMemory> came_;  // of each rank: page-locked, so that copies are fast
  double best_ms_ = 0;
  ExchangeResult result_;
};

}  // namespace

std::int64_t ExchangeShape::token_bytes() const {
  if (!fp8) return desc.hidden * static_cast<std::int64_t>(size_bytes(desc.dtype));
  return desc.hidden + desc.hidden / kScaleBlock * static_cast<std::int64_t>(sizeof(float));
}

std::string ExchangeShape::to_string() const {
  return fmt::format("{} one-hop {} P={} tokens={}",
                     kind == ExchangeKind::kDispatch ? "dispatch" : "combine", payload(*this),
                     desc.shape.world_size, desc.shape.rows_per_rank());
}

std::string ExchangeResult::to_string() const {
  std::string out = shape.to_string();
  if (graph) out += "\n  graph: " + graph->to_string(bytes);
  if (eager) out += "\n  eager: " + eager->to_string(bytes);
  if (!chosen.empty()) out += "\n  chosen: " + chosen;
  for (const TriedConfig& t : configs) {
    if (t.ms > 0) out += fmt::format("\n    {:9.4f} {}", t.ms, t.config);
    if (!t.error.empty()) out += fmt::format("\n    {}: {}", t.config, t.error);
  }
  if (!error.empty()) out += "\n  FAILED: " + error;
  return out;
}

Json ExchangeResult::to_json() const {
  Json out = {{"op", shape.kind == ExchangeKind::kDispatch ? "dispatch" : "combine"},
              {"way", "one-hop"},  // rows of another way are in older results
              {"dtype", payload(shape)},
              {"ranks", shape.desc.shape.world_size},
              {"tokens", shape.desc.shape.rows_per_rank()},
              {"hidden", shape.desc.hidden},
              {"top_k", shape.desc.shape.top_k},
              {"experts", shape.desc.shape.num_experts},
              {"bytes", bytes}};
  add_configs(configs, out);
  if (!error.empty()) out["error"] = error;
  if (!chosen.empty()) out["chosen"] = chosen;
  if (eager) out["eager"] = eager->to_json();
  if (graph) out["graph"] = graph->to_json();
  return out;
}

std::vector<LabelledProgram> exchange_programs(int world_size, const ExchangeOptions& options) {
  std::vector<LabelledProgram> programs;
  for (const ExchangeShape& s : selected(world_size, options)) {
    for (ExchangeCandidate& c : exchange_candidates(s, options.quick)) {
      programs.push_back(
          {fmt::format("{} | {}", s.to_string(), c.time.config), std::move(c.program)});
    }
  }
  return programs;
}

void compare_exchange(GpuWorld& world, const ExchangeOptions& options,
                      const std::function<void(const ExchangeResult&)>& done) {
  auto compare = [&](const cuda::NcclRanks& nccl, RandomFill& random, const ExchangeShape& shape) {
    return ExchangeComparison(world, nccl, random, shape, options).run();
  };
  for_each_shape<ExchangeResult>(world, selected(world.size(), options), options.seed, compare,
                                 done);
}

}  // namespace stretto::bench
