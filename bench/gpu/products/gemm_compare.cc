#include "bench/gpu/products/gemm_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/harness/search_times.h"
#include "bench/gpu/products/gemm_buffers.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"

namespace stretto::bench {
namespace {

// A config of ours made ready, or why it is not.
struct GemmCandidate {
  ConfigTime time;
  Program program;
  std::unique_ptr<Executable> executable;  // null after an error
};

// Shapes with the same n and k, by their largest m.
struct ShapeGroup {
  std::vector<GemmShape> shapes;
  GemmShape largest() const {
    return *std::max_element(shapes.begin(), shapes.end(),
                             [](const auto& a, const auto& b) { return a.m < b.m; });
  }
};

std::vector<ShapeGroup> group(const std::vector<GemmShape>& shapes) {
  std::vector<ShapeGroup> groups;
  for (const GemmShape& s : shapes) {
    bool joins =
        !groups.empty() && groups.back().shapes[0].n == s.n && groups.back().shapes[0].k == s.k;
    if (!joins) groups.emplace_back();
    groups.back().shapes.push_back(s);
  }
  return groups;
}

std::vector<GemmCandidate> make_candidates(GpuWorld& world, const GemmShape& largest,
                                           const GemmOptions& options) {
  std::vector<GemmCandidate> candidates;
  for (const GemmConfig& config : options.configs) {
    GemmCandidate& c = candidates.emplace_back();
    c.time.config = config;
    try {
      c.program = gemm(gemm_desc(largest, options.dtype), config);
      Lowered lowered = lower(c.program);
      const GpuTarget gpu = world.target();
      c.executable = load(prove(lowered, {.gpu = gpu}), world, generate(lowered, {.target = gpu}));
    } catch (const Error& e) {
      c.time.error = e.what();
    }
  }
  return candidates;
}

class GemmComparison {
 public:
  GemmComparison(GpuWorld& world, std::vector<GemmCandidate>& candidates, const GemmShape& shape,
                 const GemmOptions& options)
      : world_(world),
        candidates_(candidates),
        options_(options),
        buffers_(world, shape, options.dtype, options.seed),
        library_(world.device(0), {shape.m, shape.n, shape.k, options.dtype}) {
    result_.shape = shape;
    for (const GemmCandidate& c : candidates) result_.configs.push_back(c.time);
  }

  GemmResult run() {
    library_.choose(world_.device(0), world_.stream(0), buffers_.theirs());
    result_.algorithm = library_.chosen();
    result_.num_algorithms = library_.num_algorithms();
    library_.run(world_.stream(0), buffers_.theirs()[0]);
    if (!options_.profile) time_candidates();
    for (const GemmCandidate* c : by_time()) {
      if (!is_right(*c)) continue;
      result_.chosen = c->time.config;
      measure(*c);
      // What hundreds of launches in a row have left.
      result_.error = buffers_.compare(options_.profile ? 0 : buffers_.num_sets() - 1);
      break;
    }
    if (result_.eager.ours_ms.empty()) result_.error = "no config of ours gives the product";
    return std::move(result_);
  }

 private:
  GpuCall call_of(const GemmCandidate& c) const {
    std::vector<std::shared_ptr<Launch>> launches;
    for (int set = 0; set < buffers_.num_sets(); ++set) {
      launches.push_back(c.executable->prepare(buffers_.ours(set, c.program)));
    }
    const cuda::Stream* stream = &world_.stream(0);
    return [launches, stream, extents = buffers_.extents()](int set) {
      launches[static_cast<std::size_t>(set)]->run(extents, 0, *stream);
    };
  }

  void time_candidates() {
    std::vector<GpuCall> calls;
    for (const GemmCandidate& c : candidates_) {
      calls.push_back(c.executable == nullptr ? GpuCall() : call_of(c));
    }
    std::vector<double> ms = search_times(world_, calls, buffers_.num_sets());
    for (std::size_t i = 0; i < ms.size(); ++i) result_.configs[i].ms = ms[i];
  }

  // Those that were timed, fastest first; for a profile all that compile.
  std::vector<const GemmCandidate*> by_time() const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      bool runs = options_.profile && candidates_[i].executable != nullptr;
      if (runs || result_.configs[i].ms > 0) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return result_.configs[a].ms < result_.configs[b].ms;
    });
    std::vector<const GemmCandidate*> sorted;
    for (std::size_t i : order) sorted.push_back(&candidates_[i]);
    return sorted;
  }

  bool is_right(const GemmCandidate& c) {
    buffers_.poison_ours(0);
    call_of(c)(0);
    std::string found = buffers_.compare(0);
    if (found.empty()) return true;
    result_.configs[static_cast<std::size_t>(&c - candidates_.data())].error = found;
    return false;
  }

  void measure(const GemmCandidate& c) {
    GpuCall theirs = [&](int set) {
      library_.run(world_.stream(0), buffers_.theirs()[static_cast<std::size_t>(set)]);
    };
    GpuTimeOptions timing{
        .num_sets = buffers_.num_sets(), .samples = options_.samples, .profile = options_.profile};
    auto pair = [&] {
      auto ms = time_gpu(world_.device(0), world_.stream(0), {call_of(c), theirs}, timing);
      return PairedSamples{std::move(ms[0]), std::move(ms[1])};
    };
    result_.eager = pair();
    if (!options_.graph) return;
    timing.graph = true;
    result_.graph = pair();
  }

  GpuWorld& world_;
  std::vector<GemmCandidate>& candidates_;
  const GemmOptions& options_;
  GemmBuffers buffers_;
  cuda::CublasLtGemm library_;
  GemmResult result_;
};

Json to_json(const MedianInterval& m) {
  return {{"median", m.median}, {"low", m.low}, {"high", m.high}};
}

Json to_json(const PairedSamples& s) {
  return {{"ours_ms", s.ours_ms},
          {"theirs_ms", s.theirs_ms},
          {"theirs_over_ours", to_json(paired_ratio(s.theirs_ms, s.ours_ms))}};
}

}  // namespace

double GemmResult::tflops(double ms) const {
  return 2e-9 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
         static_cast<double>(shape.k) / ms;
}

std::string table_header() {
  return fmt::format(
      "{:22} {:>5} {:>6} {:>6} {:>9} {:>9} {:>6} {:>6} {:>6} [95 %        ] {:>6} {}", "shape", "m",
      "n", "k", "ours ms", "theirs ms", "TF/s", "theirs", "ratio", "graph", "config");
}

std::string GemmResult::to_string() const {
  std::string out = fmt::format("{:22} {:5} {:6} {:6} ", shape.label, shape.m, shape.n, shape.k);
  if (!error.empty()) return out + "FAILED: " + error;
  MedianInterval ours = median_interval(eager.ours_ms), theirs = median_interval(eager.theirs_ms);
  MedianInterval ratio = paired_ratio(eager.theirs_ms, eager.ours_ms);
  std::string in_graph =
      graph ? fmt::format("{:.3f}", paired_ratio(graph->theirs_ms, graph->ours_ms).median) : "-";
  return out + fmt::format("{:9.4f} {:9.4f} {:6.1f} {:6.1f} {:6.3f} [{:.3f}, {:.3f}] {:>6} {}",
                           ours.median, theirs.median, tflops(ours.median), tflops(theirs.median),
                           ratio.median, ratio.low, ratio.high, in_graph,
                           stretto::to_string(chosen));
}

Json GemmResult::to_json() const {
  Json out = {{"label", shape.label}, {"m", shape.m}, {"n", shape.n}, {"k", shape.k}};
  for (const ConfigTime& c : configs) {
    Json row = {{"config", stretto::to_string(c.config)}};
    if (c.ms > 0) row["ms"] = c.ms;
    if (!c.error.empty()) row["error"] = c.error;
    out["configs"].push_back(row);
  }
  if (!error.empty()) {
    out["error"] = error;
    return out;
  }
  out["chosen"] = stretto::to_string(chosen);
  out["algorithm"] = {{"index", algorithm}, {"of", num_algorithms}};
  out["eager"] = bench::to_json(eager);
  if (graph) out["graph"] = bench::to_json(*graph);
  return out;
}

std::vector<Program> gemm_programs(const std::vector<GemmShape>& shapes,
                                   const GemmOptions& options) {
  std::vector<Program> programs;
  for (const ShapeGroup& g : group(shapes)) {
    for (const GemmConfig& config : options.configs) {
      programs.push_back(gemm(gemm_desc(g.largest(), options.dtype), config));
    }
  }
  return programs;
}

std::vector<GemmResult> compare_gemms(GpuWorld& world, const std::vector<GemmShape>& shapes,
                                      const GemmOptions& options,
                                      const std::function<void(const GemmResult&)>& done) {
  std::vector<GemmResult> results;
  for (const ShapeGroup& g : group(shapes)) {
    std::vector<GemmCandidate> candidates = make_candidates(world, g.largest(), options);
    for (const GemmShape& shape : g.shapes) {
      try {
        results.push_back(GemmComparison(world, candidates, shape, options).run());
      } catch (const Error& e) {
        results.push_back({.shape = shape, .error = e.what()});
      }
      done(results.back());
    }
  }
  return results;
}

std::string summary(const std::vector<GemmResult>& results) {
  std::vector<double> logs;
  for (const GemmResult& r : results) {
    if (!r.error.empty()) continue;
    logs.push_back(std::log(paired_ratio(r.eager.theirs_ms, r.eager.ours_ms).median));
  }
  if (logs.empty()) return "nothing was measured";
  double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size());
  return fmt::format("theirs / ours over {} of {} shapes: geometric mean {:.3f}, least {:.3f}",
                     logs.size(), results.size(), std::exp(mean),
                     std::exp(*std::min_element(logs.begin(), logs.end())));
}

}  // namespace stretto::bench
