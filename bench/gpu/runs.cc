#include "bench/gpu/runs.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/gpu/attention/attention_ranks.h"
#include "bench/gpu/attention/attention_time.h"
#include "bench/gpu/collectives/collectives.h"
#include "bench/gpu/collectives/copies.h"
#include "bench/gpu/collectives/graph_fetch.h"
#include "bench/gpu/collectives/lines.h"
#include "bench/gpu/experts/ep_moe.h"
#include "bench/gpu/experts/exchange.h"
#include "bench/gpu/experts/moe.h"
#include "bench/gpu/harness/check.h"
#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/lot/lot.h"
#include "bench/gpu/lot/lot_shapes.h"
#include "bench/gpu/overlap/overlap.h"
#include "bench/gpu/overlap/sweep.h"
#include "bench/gpu/products/gemm_compare.h"
#include "bench/gpu/products/gemm_fp8.h"
#include "bench/gpu/products/loops.h"
#include "bench/gpu/report.h"
#include "bench/gpu/worlds/enqueue.h"
#include "bench/gpu/worlds/processes.h"
#include "bench/gpu/worlds/startup.h"
#include "bench/gpu/worlds/watchdog.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/predict/prediction.h"

namespace stretto::bench {
namespace {

constexpr int kHopperSms = GpuTarget{}.sms;  // where no device says

GemmOptions gemm_options(const Settings& s, int num_sms) {
  GemmOptions options{.dtype = parse_dtype(s.dtype),
                      .configs = gpu_gemm_configs(num_sms, s.quick),
                      .samples = s.samples,
                      .graph = s.graph,
                      .profile = s.profile,
                      .seed = s.seed};
  if (!s.configs.empty()) options.configs.clear();
  for (const std::string& text : s.configs) {
    options.configs.push_back(parse_gemm_config(text, num_sms));
  }
  return options;
}

std::vector<LabelledProgram> labelled(const std::vector<GemmShape>& shapes,
                                      const GemmOptions& options) {
  std::vector<LabelledProgram> out;
  for (Program& p : gemm_programs(shapes, options)) {
    out.push_back({fmt::format("gemm kernel {}", out.size()), std::move(p)});
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const GemmConfig& config = options.configs[i % options.configs.size()];
    const Program& p = out[i].program;
    const auto shape = bound_shape(p, p.find_tensor("b"));
    out[i].label = fmt::format("n={} k={} | {}", shape[0], shape[1], to_string(config));
  }
  return out;
}

Fp8Options fp8_options(const Settings& s, int num_sms) {
  Fp8Options options{.only = s.only,
                     .num_sms = num_sms,
                     .samples = s.samples,
                     .profile = s.profile,
                     .seed = s.seed};
  for (const std::string& text : s.configs) {
    options.configs.push_back(parse_gemm_config(text, num_sms));
  }
  return options;
}

OverlapOptions overlap_options(const Settings& s) {
  OverlapOptions options{.only = s.only, .configs = s.configs, .quick = s.quick};
  options.graphs = s.graph, options.samples = s.samples, options.seed = s.seed;
  return options;
}

CollectivesOptions collectives_options(const Settings& s) {
  return {.only = s.only, .quick = s.quick, .samples = s.samples, .seed = s.seed};
}

ExchangeOptions exchange_options(const Settings& s) {
  return {
      .only = s.only, .quick = s.quick, .samples = s.samples, .seed = s.seed, .traces = s.traces};
}

MoeOptions moe_options(const Settings& s) {
  return {.only = s.only,
          .quick = s.quick,
          .profile = s.profile,
          .traces = s.traces,
          .samples = s.samples,
          .seed = s.seed};
}

EpMoeOptions ep_moe_options(const Settings& s) {
  return {.only = s.only,
          .m = s.tokens,
          .hidden = s.hidden,
          .ffn = s.ffn,
          .quick = s.quick,
          .samples = s.samples,
          .seed = s.seed,
          .traces = s.traces};
}

SweepOptions sweep_options(const Settings& s) {
  return {.only = s.only, .samples = s.samples, .seed = s.seed};
}

using AttentionRuns = std::vector<std::pair<AttentionShape, AttentionConfig>>;

// The small cases, or the large ones, each with every config.
AttentionRuns attention_runs(const Settings& s, int num_sms, bool checks) {
  AttentionRuns runs;
  for (const AttentionShape& shape : checks ? attention_checks() : attention_suite()) {
    if (shape.label.find(s.only) == std::string::npos) continue;
    if (checks) {
      for (const AttentionConfig& c : attention_check_configs(shape)) runs.push_back({shape, c});
      continue;
    }
    for (const AttentionConfig& c : gpu_attention_configs(shape.desc, num_sms)) {
      runs.push_back({shape, c});
      if (s.profile) break;  // the first config
    }
  }
  return runs;
}

std::vector<LabelledProgram> attention_programs(const AttentionRuns& runs) {
  std::vector<LabelledProgram> programs;
  for (const auto& [shape, config] : runs) {
    programs.push_back({fmt::format("attention {} | rows {} kv {} slots {}", shape.label,
                                    config.tile_rows, config.tile_kv, config.query_slots),
                        attention(shape.desc, config)});
  }
  return programs;
}

// What runs on one GPU, or on `world_size` of them.
std::vector<LabelledProgram> all_programs(const Settings& s) {
  std::vector<LabelledProgram> programs;
  auto add = [&](std::vector<LabelledProgram> more) {
    for (LabelledProgram& p : more) programs.push_back(std::move(p));
  };
  add(moe_programs(s.world_size, kHopperSms, moe_options(s)));
  add(ep_moe_programs(s.world_size, kHopperSms, ep_moe_options(s)));
  if (s.world_size > 1) {
    add(overlap_programs(s.world_size, kHopperSms, overlap_options(s)));
    add(collectives_programs(s.world_size, collectives_options(s)));
    add(exchange_programs(s.world_size, exchange_options(s)));
    if (s.sweep) add(sweep_programs(s.world_size, kHopperSms, sweep_options(s)));
    return programs;
  }
  for (const CheckCase& c : check_cases()) programs.push_back({c.label, c.program()});
  Fp8Options fp8 = fp8_options(s, kHopperSms);
  fp8.only.clear();  // applies to the labels of all
  add(fp8_programs(fp8));
  for (bool held_out : {false, true}) add(loop_programs(kHopperSms, held_out));
  Settings attention = s;
  attention.only.clear();
  add(attention_programs(attention_runs(attention, kHopperSms, false)));
  add(labelled(tensor_parallel_shapes(s.tp), gemm_options(s, kHopperSms)));
  return programs;
}

}  // namespace

int run_compile(const Settings& s) {
  std::vector<LabelledProgram> programs = all_programs(s);
  std::erase_if(programs, [&](const auto& p) { return p.label.find(s.only) == std::string::npos; });
  return compile_programs(programs, s.proof);
}

int compile_programs(const std::vector<LabelledProgram>& programs, bool proof) {
  int failed = 0, dirty = 0;
  for (const CompiledKernel& k : compile_ahead(programs, proof)) {
    fmt::print("{}\n", k.to_string());
    failed += !k.error.empty();
    dirty += k.error.empty() && !k.is_clean();
  }
  fmt::print("compile: {} kernels, {} failed, {} dirty\n", programs.size(), failed, dirty);
  return failed == 0 ? 0 : 1;
}

int run_gemms(const Settings& s, const std::vector<GemmShape>& shapes) {
  GpuWorld world({.size = 1});
  GemmOptions options = gemm_options(s, world.device(0).properties().num_sms);
  Report report(world, s, {"cublaslt"});
  compile_ahead(labelled(shapes, options));
  fmt::print("{}\n", table_header());
  std::fflush(stdout);
  auto results = compare_gemms(world, shapes, options, [&](const GemmResult& r) {
    report.keep("gemm", r);
    for (const ConfigTime& c : r.configs) {
      if (!c.error.empty()) fmt::print("  {}: {}\n", to_string(c.config), c.error);
    }
  });
  fmt::print("{}\n", summary(results));
  return report.status();
}

int run_fp8(const Settings& s) {
  GpuWorld world({.size = 1});
  Report report(world, s, {"cublaslt"});
  Fp8Options options = fp8_options(s, world.device(0).properties().num_sms);
  compile_ahead(fp8_programs(options));
  compare_fp8(world, options, [&](const Fp8Result& r) { report.keep("gemm_fp8", r); });
  return report.finish("gemm-fp8");
}

namespace {

int predict_each(const Settings& s, std::vector<LabelledProgram> programs) {
  if (programs.empty()) throw UserError("nothing to predict: no such shape, or no such config");
  predict::Machine machine = predict::find_machine(s.calibrated);
  for (LabelledProgram& p : programs) {
    Lowered compiled = lower(std::move(p.program));
    predict::Prediction got =
        predict::predict(compiled, machine, {.timetable = {.tables = p.tables}});
    fmt::print("{:9.4f} ms, {:7.4f} exposed, {:11} {}\n", got.time_ms, got.exposed_comm_ms,
               got.bound_by, p.label);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int run_loops(const Settings& s) {
  GpuWorld world({.size = 1});
  Report report(world, s);
  compile_ahead(loop_programs(world.device(0).properties().num_sms, s.held_out));
  measure_loops(world,
                {.only = s.only,
                 .held_out = s.held_out,
                 .size = s.size,
                 .samples = s.samples,
                 .profile = s.profile,
                 .seed = s.seed},
                [&](const LoopResult& r) { report.keep("loops", r); });
  return report.finish("loops");
}

int run_overlap(const Settings& s) {
  if (!s.calibrated.empty()) {
    return predict_each(s, overlap_programs(s.world_size, kHopperSms, overlap_options(s)));
  }
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"cublaslt", "nccl"});
  OverlapOptions options = overlap_options(s);
  compile_ahead(overlap_programs(s.world_size, world.device(0).properties().num_sms, options));
  compare_overlap(world, options, [&](const OverlapResult& r) { report.keep("overlap", r); });
  return report.finish("overlap");
}

int run_moe(const Settings& s) {
  if (!s.calibrated.empty()) {
    return predict_each(s, moe_programs(s.world_size, kHopperSms, moe_options(s)));
  }
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"nccl"});
  MoeOptions options = moe_options(s);
  compile_ahead(moe_programs(s.world_size, world.device(0).properties().num_sms, options));
  compare_moe(world, options, [&](const MoeResult& r) { report.keep("moe", r); });
  return report.finish("moe");
}

int run_routings(const Settings& s) {
  MoeOptions options = moe_options(s);
  options.routings = true;
  if (s.list) {
    for (const MoeShape& shape : routed_shapes(s.world_size, s.seed, s.quick)) {
      if (shape.layer == 1) fmt::print("{}\n", shape.to_string());
    }
    return 0;
  }
  if (s.compile_only) {
    return compile_programs(moe_programs(s.world_size, kHopperSms, options), s.proof);
  }
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"nccl"});
  report.json()["count"] = kNumRoutings;
  compile_ahead(moe_programs(s.world_size, world.device(0).properties().num_sms, options));
  std::map<int, std::vector<double>> hidden;  // by layer
  compare_moe(world, options, [&](const MoeResult& r) {
    report.keep("routings", r);
    if (r.samples) hidden[r.shape.layer].push_back(r.samples->hidden().median);
  });
  std::string found;
  for (const auto& [layer, parts] : hidden) {
    const double mean =
        std::accumulate(parts.begin(), parts.end(), 0.0) / static_cast<double>(parts.size());
    found += fmt::format("{}layer {} of {} routings hidden {:.2f} on average, {:.2f} at least",
                         found.empty() ? "" : "; ", layer, parts.size(), mean,
                         *std::ranges::min_element(parts));
  }
  return report.finish("routings", found);
}

int run_ep_moe(const Settings& s) {
  if (!s.calibrated.empty()) {
    return predict_each(s, ep_moe_programs(s.world_size, kHopperSms, ep_moe_options(s)));
  }
  GpuWorld world({.size = s.world_size});
  Report report(world, s);
  EpMoeOptions options = ep_moe_options(s);
  compile_ahead(ep_moe_programs(s.world_size, world.device(0).properties().num_sms, options));
  compare_ep_moe(world, options, [&](const EpMoeResult& r) { report.keep("ep_moe", r); });
  return report.finish("ep-moe");
}

int run_sweep(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"cublaslt", "nccl"});
  SweepOptions options = sweep_options(s);
  compile_ahead(sweep_programs(s.world_size, world.device(0).properties().num_sms, options));
  int fused = 0, all = 0;
  sweep_rows(world, options, [&](const SweepResult& r) {
    report.keep("sweep", r);
    fused += r.error.empty() && r.winner == SweepResult::Winner::kFused;
    ++all;
  });
  return report.finish("sweep", fmt::format("fused won {} of {}", fused, all));
}

int run_lot(const Settings& s) {
  const LotOptions options{
      .count = s.count, .samples = s.samples, .seed = s.seed, .machine = s.calibrated};
  if (s.list) {
    nlohmann::json shapes = nlohmann::json::array();
    for (const OverlapShape& shape : drawn_shapes(s.world_size, s.seed, s.count)) {
      const GemmShape& g = shape.rank;
      shapes.push_back(
          {{"op", name(shape.kind)}, {"m", g.m}, {"n", g.n}, {"k", g.k}, {"layer", g.label}});
    }
    fmt::print("{}\n", shapes.dump());
    return 0;
  }
  const std::vector<LotChoice> choices = lot_choices(s.world_size, options);
  if (s.compile_only) {
    for (const LotChoice& c : choices) {
      fmt::print("{:44} {} | {}\n", c.shape.to_string(), c.config + c.error, c.shape.rank.label);
    }
    return compile_programs(lot_programs(choices), s.proof);
  }
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"cublaslt", "nccl"});
  report.json()["count"] = s.count;
  compile_ahead(lot_programs(choices));
  measure_lot(world, choices, options, [&](const LotResult& r) { report.keep("lot", r); });
  return report.finish("lot", fmt::format("{} shapes", choices.size()));
}

int run_collectives(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"nccl"});
  CollectivesOptions options = collectives_options(s);
  compile_ahead(collectives_programs(s.world_size, options));
  compare_collectives(world, options,
                      [&](const CollectiveResult& r) { report.keep("collectives", r); });
  return report.finish("collectives");
}

int run_exchange(const Settings& s) {
  if (!s.calibrated.empty())
    return predict_each(s, exchange_programs(s.world_size, exchange_options(s)));
  GpuWorld world({.size = s.world_size});
  Report report(world, s, {"nccl"});
  ExchangeOptions options = exchange_options(s);
  compile_ahead(exchange_programs(s.world_size, options));
  compare_exchange(world, options, [&](const ExchangeResult& r) { report.keep("exchange", r); });
  return report.finish("exchange");
}

int run_attention_suite(const Settings& s, bool checks) {
  GpuWorld world({.size = 1});
  Report report(world, s);
  auto runs = attention_runs(s, world.device(0).properties().num_sms, checks);
  compile_ahead(attention_programs(runs));
  for (auto& [shape, config] : runs) {
    report.keep(
        "attention",
        run_attention(world, shape, config,
                      {.samples = checks ? 0 : s.samples, .profile = s.profile, .seed = s.seed}));
  }
  return report.finish("attention", fmt::format("{} runs", runs.size()));
}

int run_attention_ranks(const Settings& s) {
  Report report(GpuWorld({.size = 1}), s);  // the measurements make worlds of their own
  measure_attention_ranks(
      {.world_size = s.world_size,
       .only = s.only,
       .traces = s.traces,
       .samples = s.samples,
       .seed = s.seed},
      [&](const AttentionRanksResult& r) { report.keep("attention_ranks", r); });
  return report.finish("attention-ranks");
}

int run_watchdog(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Report report(world, s);
  measure_watchdog(world, {.only = s.only, .samples = s.samples, .seed = s.seed},
                   [&](const WatchdogResult& r) { report.keep("watchdog", r); });
  return 0;
}

namespace {

// Hardware queues of a GPU, on which it depends whether streams hold up each other.
void tell_connections(Report& report) {
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  report.json()["connections"] = connections == nullptr ? "default" : connections;
  fmt::print("CUDA_DEVICE_MAX_CONNECTIONS {}\n", report.json()["connections"].get<std::string>());
}

}  // namespace

int run_graph_fetch(const Settings& s) {
  GpuWorld world({.size = 2, .timeout = std::chrono::milliseconds(500)});
  Report report(world, s);
  tell_connections(report);
  try_graph_fetch(world, {.only = s.only},
                  [&](const GraphFetchResult& r) { report.keep("graph_fetch", r); });
  return 0;
}

int run_copies(const Settings& s) {
  GpuWorld world({.size = 2});
  Report report(world, s);
  tell_connections(report);
  measure_copies(world, {.only = s.only, .samples = s.samples},
                 [&](const CopiesResult& r) { report.keep("copies", r); });
  return report.finish("copies");
}

int run_lines(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Report report(world, s);
  measure_lines(world, {}, [&](const LinesResult& r) { report.keep("lines", r); });
  return report.finish("lines");
}

int run_world_of_processes(const Settings& s, ProcessesOptions options) {
  options.seed = s.seed;
  if (!options.part.empty()) return run_processes_part(options);
  Report report(GpuWorld({.size = 1}), s);  // the processes make a world of their own
  report.keep("processes", check_processes(options));
  return report.finish("processes", fmt::format("P={}", options.ranks));
}

int run_startup(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Report report(world, s);
  measure_startup(world, {.only = s.only, .seed = s.seed},
                  [&](const StartupResult& r) { report.keep("startup", r); });
  return report.finish("startup");
}

int run_enqueue(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Report report(world, s);
  measure_enqueueing(world, {.only = s.only, .samples = s.samples, .swallow = s.swallow},
                     [&](const EnqueueResult& r) { report.keep("enqueue", r); });
  return report.finish("enqueue");
}

}  // namespace stretto::bench
