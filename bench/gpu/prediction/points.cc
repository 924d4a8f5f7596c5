#include "bench/gpu/prediction/points.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <map>
#include <span>
#include <thread>

#include "bench/gpu/collectives/collective_shapes.h"
#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/operand_type.h"
#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/errors.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/statistics.h"
#include "stretto/compiler.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/predict/prediction.h"

namespace stretto::bench {
namespace {

// Of a shape with several configs: the first of the ranking, and others spread over the rest.
constexpr std::size_t kFirst = 3, kSpread = 5;
constexpr double kSlowest = 2;  // times the first: nobody would choose what takes longer
// A graph of short launches holds more of them, so that its own launch does not count.
constexpr double kShortMs = 0.3;
constexpr int kShortCalls = 18, kLongCalls = 3;

struct Family {
  const char* op;
  std::int64_t n, k;
  std::vector<std::int64_t> rows, wide_rows;  // default config; several configs
};

// Shapes and row counts that no machine file was fitted to (bench/predictions holds others,
// measured before).
const std::vector<Family>& families(bool one_rank) {
  static const std::vector<Family> kOne = {
      {"gemm", 9216, 7168, {80, 224, 576, 1152, 2304, 4608, 9216, 24576}, {224, 2304}},
      {"gemm", 22016, 4096, {64, 160, 384, 832, 1664, 3328, 6656, 16384}, {832, 6656}},
      {"gemm", 4608, 11008, {96, 192, 704, 1408, 2816, 5632, 12288}, {352, 5632}},
      {"gemm", 5504, 5120, {128, 448, 896, 3584, 32768}, {1792}},
  };
  static const std::vector<Family> kSeveral = {
      {"ag_gemm", 36864, 7168, {80, 224, 576, 1152, 2304, 4608, 9216, 12288}, {576, 4608}},
      {"ag_gemm", 23552, 6656, {64, 160, 384, 832, 1664, 3328, 6656, 24576}, {1664}},
      {"gemm_rs", 9216, 22016, {80, 224, 576, 1152, 2304, 4608, 9216, 12288}, {576, 4608}},
      {"gemm_rs", 4608, 14336, {64, 160, 384, 832, 1664, 3328, 6656, 32768}, {1664}},
      {"gemm_ar", 7168, 18432, {80, 224, 576, 1152, 2304, 4608, 9216}, {224, 2304}},
      {"gemm_ar", 4608, 22016, {64, 160, 384, 832, 1664, 3328, 6656}, {832}},
      {"all_gather", 9216, 0, {80, 224, 576, 1152, 2304, 4608, 12288, 24576}, {1152}},
      {"reduce_scatter", 9216, 0, {80, 224, 576, 1152, 2304, 4608, 12288, 24576}, {2304}},
      {"all_reduce_two_shot", 7680, 0, {80, 224, 576, 1152, 2304, 4608, 12288, 20480}, {1152}},
      {"all_reduce_one_shot", 7680, 0, {80, 160, 224, 384}, {224}},
      {"all_reduce_packet", 7680, 0, {64, 96, 160}, {}},
  };
  return one_rank ? kOne : kSeveral;
}

// Copy engines that fetch hang in graphs of several launches, which is how points are measured
// (docs/internals/gpus.md).
bool engines_fetch(const std::string& op, const std::string& config) {
  bool gathers = op == "all_gather" || op == "all_reduce_two_shot";
  return config.find("gather=pull") != std::string::npos ||
         (gathers && config.find(" copy_sms=0") != std::string::npos);
}

// On as many threads as there are processors.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(std::thread::hardware_concurrency(), 1U); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    });
  }
}

// Which of the ranked candidates a shape with several configs measures.
std::vector<std::string> spread(OpCandidates offered, const std::string& op,
                                const predict::Machine& machine) {
  std::erase_if(offered.fused, [&](const Candidate& c) { return engines_fetch(op, c.config); });
  std::vector<RankedCandidate> ranked = rank_candidates(offered, machine);
  std::erase_if(ranked, [](const RankedCandidate& r) { return r.is_sequence(); });
  const double slowest = kSlowest * ranked.front().predicted_ms;
  std::erase_if(ranked, [&](const RankedCandidate& r) { return r.predicted_ms > slowest; });
  std::vector<std::string> configs;
  std::size_t rest = ranked.size() - std::min(kFirst, ranked.size());
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    std::size_t behind = i - std::min(i, kFirst);
    bool taken =
        i < kFirst || rest <= kSpread || behind * kSpread / rest != (behind + 1) * kSpread / rest;
    if (taken) configs.push_back(offered.fused[static_cast<std::size_t>(ranked[i].index)].config);
  }
  return configs;
}

const std::string kNotOffered = "this config is not offered any more";

// What comparisons measured beside the chooser's configs.
Program compared_program(const Point& p) {
  const std::int64_t ranks = p.shape.world_size;
  auto found = [&](auto candidates) {
    for (auto& c : candidates) {
      if (c.config == p.config) return std::move(c.program);
    }
    throw UserError(kNotOffered);
  };
  for (OverlapKind kind : {OverlapKind::kAgGemm, OverlapKind::kGemmRs, OverlapKind::kGemmAr}) {
    if (p.op != name(kind)) continue;
    bool gathers = kind == OverlapKind::kAgGemm;
    OverlapShape shape{.kind = kind,
                       .rank = {.label = p.op,
                                .m = p.shape.m,
                                .n = gathers ? p.shape.n / ranks : p.shape.n,
                                .k = gathers ? p.shape.k : p.shape.k / ranks},
                       .world_size = p.shape.world_size};
    return found(overlap_candidates(shape, GpuTarget{}.sms, false));
  }
  CollectiveShape shape{.desc = {.dtype = p.shape.dtype,
                                 .m = p.shape.m,
                                 .n = p.shape.n,
                                 .world_size = p.shape.world_size}};
  if (p.op == "all_gather") {
    shape.kind = CollectiveKind::kAllGather;
  } else if (p.op == "reduce_scatter") {
    shape.kind = CollectiveKind::kReduceScatter;
  } else {
    for (AllReduceKind kind :
         {AllReduceKind::kOneShot, AllReduceKind::kTwoShot, AllReduceKind::kPacket}) {
      if (p.op == all_reduce_info(kind).name) shape.all_reduce = kind;
    }
  }
  return found(collective_candidates(shape, false));
}

}  // namespace

Program point_program(const Point& p) {
  OpCandidates offered = candidates(p.op, p.shape);
  if (const Candidate* found = find_candidate(offered, p.config)) return found->program();
  if (p.op == "gemm") throw UserError(kNotOffered);
  return compared_program(p);
}

namespace {

void predict_one(Point& p, const predict::Machine& machine) {
  try {
    Lowered compiled = lower(point_program(p));
    predict::Prediction got = predict::predict(compiled, machine);
    p.predicted_ms = got.time_ms;
    p.bound_by = got.bound_by;
  } catch (const UserError& e) {
    p.error = e.what();
  }
}

// |predicted / measured - 1| of points, and the mean of predicted / measured - 1.
struct Errors {
  std::vector<double> distances;
  double sum = 0;

  void add(const Point& p) {
    double error = p.predicted_ms / p.measured_ms - 1;
    distances.push_back(std::fabs(error));
    sum += error;
  }
  std::string to_string() {
    auto count = static_cast<double>(distances.size());
    double total = 0;
    for (double d : distances) total += d;
    return fmt::format("{:4} points: mean {:.3f} p90 {:.3f} bias {:+.3f}", distances.size(),
                       total / count, quantile(distances, 0.9), sum / count);
  }
};

// Of configs of one shape, the default first, the one that is chosen without a measurement.
const Point* chosen_of(const std::vector<const Point*>& points) {
  const Point* first = points.front();
  const Point* best = *std::ranges::min_element(points, {}, &Point::predicted_ms);
  double part = part_to_be_chosen(first->shape.m, /*sequence_preferred=*/false);
  return best->predicted_ms < part * first->predicted_ms ? best : first;
}

// Measured time of what is chosen by prediction over the least measured one, less one; and that of
// the first in prediction.
std::string choice_losses(const std::map<std::string, std::vector<const Point*>>& by_shape) {
  double sum = 0, of_first = 0, most = 0;
  int count = 0, right = 0;
  std::string worst;
  for (const auto& [label, all] : by_shape) {
    if (all.size() < 2) continue;
    const Point* chosen = chosen_of(all);
    const Point* first = *std::ranges::min_element(all, {}, &Point::predicted_ms);
    const Point* best = *std::ranges::min_element(all, {}, &Point::measured_ms);
    double loss = chosen->measured_ms / best->measured_ms - 1;
    sum += loss;
    of_first += first->measured_ms / best->measured_ms - 1;
    ++count;
    right += chosen == best ? 1 : 0;
    if (loss < most) continue;
    most = loss;
    worst = label + " | " + chosen->config + " instead of " + best->config;
  }
  if (count == 0) return "";
  return fmt::format(
      "choosing by prediction: {} shapes, right {}, loss mean {:.3f} most {:.3f} ({}), of the "
      "first in prediction {:.3f}\n",
      count, right, sum / count, most, worst, of_first / count);
}

// Configs of one shape, in turn: how fast a GPU is depends on what it has done before.
void measure_together(GpuWorld& world, std::span<Point> points, RandomFill& random, int samples) {
  std::vector<Point*> timed;
  std::vector<Program> programs;
  for (Point& p : points) {
    if (!p.error.empty()) continue;
    timed.push_back(&p);
    programs.push_back(point_program(p));
  }
  if (timed.empty()) return;
  bool is_short = timed.front()->predicted_ms < kShortMs;
  try {
    auto ms =
        time_programs(world, programs, random,
                      {.samples = samples, .calls_per_graph = is_short ? kShortCalls : kLongCalls});
    for (std::size_t i = 0; i < timed.size(); ++i) {
      timed[i]->measured_ms = median(std::move(ms[i]));
    }
  } catch (const Error& e) {
    for (Point* p : timed) p->error = e.what();
  }
}

}  // namespace

std::string Point::label() const {
  return fmt::format("{} P={} m={} n={} k={}", op, shape.world_size, shape.m, shape.n, shape.k);
}

std::string Point::to_string() const {
  if (!error.empty()) return fmt::format("{} | {}: {}", label(), config, error);
  return fmt::format("predicted {:9.4f} measured {:9.4f} ms ratio {:5.2f} {:11} {} | {}",
                     predicted_ms, measured_ms, measured_ms > 0 ? predicted_ms / measured_ms : 0.0,
                     bound_by, label(), config);
}

Json Point::to_json() const {
  Json out = {{"op", op},
              {"ranks", shape.world_size},
              {"m", shape.m},
              {"n", shape.n},
              {"k", shape.k},
              {"dtype", name(shape.dtype)},
              {"config", config},
              {"predicted_ms", predicted_ms},
              {"bound_by", bound_by}};
  if (measured_ms > 0) out["measured_ms"] = measured_ms;
  if (!error.empty()) out["error"] = error;
  return out;
}

std::vector<Point> predict_points(int world_size, const predict::Machine& machine) {
  std::vector<Point> points;
  for (const Family& f : families(world_size == 1)) {
    auto shape = [&](std::int64_t m) {
      return OpShape{.world_size = world_size, .m = m, .n = f.n, .k = f.k, .dtype = kDType};
    };
    auto add = [&](const OpShape& s, const std::string& config) {
      bool known = std::any_of(points.begin(), points.end(), [&](const Point& p) {
        return p.op == f.op && p.shape.m == s.m && p.shape.n == s.n && p.shape.k == s.k &&
               p.config == config;
      });
      if (!known) points.push_back({.op = f.op, .shape = s, .config = config});
    };
    auto add_default = [&](std::int64_t m) {
      for (const Candidate& c : candidates(f.op, shape(m)).fused) {  // the default comes first
        if (engines_fetch(f.op, c.config)) continue;
        return add(shape(m), c.config);
      }
    };
    for (std::int64_t m : f.rows) add_default(m);
    for (std::int64_t m : f.wide_rows) {
      add_default(m);
      for (const std::string& config : spread(candidates(f.op, shape(m)), f.op, machine))
        add(shape(m), config);
    }
  }
  predict_again(points, machine);
  return points;
}

std::vector<Point> predict_shape(const std::string& text, int world_size,
                                 const predict::Machine& machine) {
  OpShape shape{.world_size = world_size, .dtype = kDType};
  std::array<std::int64_t*, 3> sizes{&shape.m, &shape.n, &shape.k};
  std::size_t colon = std::min(text.find(':'), text.size()), count = 0;
  const char* at = text.data() + std::min(colon + 1, text.size());
  const char* end = text.data() + text.size();
  for (bool more = colon < text.size(); more && count < sizes.size(); ++count) {
    auto [rest, error] = std::from_chars(at, end, *sizes[count]);
    if (error != std::errc{} || *sizes[count] < 1) break;
    more = rest != end && *rest == 'x';
    at = more ? rest + 1 : rest;
  }
  if (at != end || count < 2) {
    throw UserError(fmt::format("'{}' is no shape, such as reduce_scatter:1024x5120", text));
  }
  std::vector<Point> points;
  std::string op = text.substr(0, colon);
  for (const Candidate& c : candidates(op, shape).fused) {
    if (engines_fetch(op, c.config)) continue;
    points.push_back({.op = op, .shape = shape, .config = c.config});
  }
  predict_again(points, machine);
  return points;
}

std::vector<Point> read_points(const Json& file, const std::string& where, int world_size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  if (!file.is_object() || !file.contains("points") || !file["points"].is_array()) {
    throw UserError(where + ": need an object with a list 'points'");
  }
  std::vector<Point> points;
  for (const Json& json : file["points"]) {
    JsonFields fields(json, where);
    Point p{.op = fields.text("op"), .config = fields.text("config")};
    p.shape = {.world_size = static_cast<int>(fields.integer("ranks", 1, 64)),
               .m = fields.integer("m", 0, kMost),
               .n = fields.integer("n", 0, kMost),
               .k = fields.integer("k", 0, kMost),
               .dtype = parse_dtype(fields.text("dtype"))};
    p.predicted_ms = fields.number("predicted_ms", 0, 1e9);
    p.bound_by = fields.optional_text("bound_by").value_or("");
    p.measured_ms = fields.optional_number("measured_ms", 0, 1e9).value_or(0);
    if (p.shape.world_size == world_size) points.push_back(std::move(p));
  }
  return points;
}

void predict_again(std::vector<Point>& points, const predict::Machine& machine) {
  in_parallel(points.size(), [&](std::size_t i) { predict_one(points[i], machine); });
}

void measure_points(GpuWorld& world, std::vector<Point>& points, const PointsOptions& options,
                    const std::function<void(const Point&)>& done) {
  std::erase_if(points, [&](const Point& p) {
    return (p.label() + " | " + p.config).find(options.only) == std::string::npos;
  });
  std::ranges::stable_sort(points, {}, &Point::label);
  std::vector<LabelledProgram> programs;
  for (Point& p : points) {
    try {
      programs.push_back({p.label(), point_program(p)});
    } catch (const UserError& e) {
      p.error = e.what();
    }
  }
  compile_ahead(programs);
  RandomFill random(world, options.seed);
  for (auto first = points.begin(); first != points.end();) {
    auto last = std::find_if(first, points.end(),
                             [&](const Point& p) { return p.label() != first->label(); });
    measure_together(world, {first, last}, random, options.samples);
    std::for_each(first, last, done);
    first = last;
  }
}

std::string summary(const std::vector<Point>& points) {
  std::map<std::string, Errors> by_op;
  std::map<std::string, std::vector<const Point*>> by_shape;
  Errors all;
  std::size_t left_out = 0;
  for (const Point& p : points) {
    if (!p.error.empty() || !(p.measured_ms > 0)) {
      ++left_out;
      continue;
    }
    by_op[p.op].add(p);
    all.add(p);
    by_shape[p.label()].push_back(&p);
  }
  std::string out;
  for (auto& [op, errors] : by_op) out += fmt::format("  {:20} {}\n", op, errors.to_string());
  if (!all.distances.empty()) out += fmt::format("  {:20} {}\n", "all", all.to_string());
  out += choice_losses(by_shape);
  if (left_out > 0) out += fmt::format("{} points not measured\n", left_out);
  return out;
}

}  // namespace stretto::bench
