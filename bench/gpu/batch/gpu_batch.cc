// Steps of many requests over a cache of pages with random weights on one GPU or several: whether
// answers are those of each request alone, and how near steps of decoding come to the time that
// reading weights and cache takes.
//   gpu_batch run     [--model NAME|DIR] [--tp N] [--rows 1,8,32] [--context N] [--kv-dtype LIST]
//   gpu_batch profile [...] [--prompts N]   what each program of a step takes by itself
//   gpu_batch sampling [--rows 1,64,256]   the choice of tokens alone
//   gpu_batch compile [...]     every proof and kernel of it; needs no GPU
#include "stretto/model/gpu/gpu_batch.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "bench/gpu/batch/batch_check.h"
#include "bench/gpu/batch/batch_models.h"
#include "bench/gpu/batch/batch_samples.h"
#include "bench/gpu/batch/sampling_time.h"
#include "bench/gpu/harness/command_line.h"
#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/harness/copy_rate.h"
#include "bench/gpu/harness/progress.h"
#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/model/checkpoint/dummy_checkpoint.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/ops/gemm/gemm.h"

namespace stretto::bench {
namespace {

constexpr std::int64_t kPage = 64;

struct Settings {
  std::string model = "llama-3-8b", dtype = "bf16", weights = "auto", only, out, commit, driver;
  std::vector<std::int64_t> rows = {1, 8, 32, 64, 128, 256}, sampled_rows = {1, 64, 256};
  std::vector<std::string> kv_dtypes = {"auto"};  // one after the other
  std::vector<std::string> experts = {"rows"};    // the way of their products, likewise
  std::int64_t context = 1024, max_rows = 512;
  std::int64_t vocab = 128256;  // of the choice alone
  std::int64_t product = 8192;  // rows, columns and depth of the product that is timed
  std::int64_t prompts = 0;     // of `context` tokens, whole, in each step that is profiled
  int ranks = 1, layers = 0, requests = 64, samples = 8;
  std::uint64_t seed = 1;
  double seconds = 330;  // nothing further is begun after this
  bool check = true, apart = true, proof = true;

  std::int64_t sequences() const { return *std::max_element(rows.begin(), rows.end()); }
  std::int64_t max_tokens() const { return ceil_div(context + kPage, kPage) * kPage; }
  std::int64_t pages() const { return (sequences() + prompts) * (max_tokens() / kPage); }
};

ModelConfig config_of(const Settings& s) {
  ModelConfig config = model_config(s.model, s.layers);
  set_weights(config, s.weights);
  return config;
}

using Attention = PagedCache::Attention;

// What the steps of a model are made for.
struct Kind {
  Attention attention = Attention::kByKind;
  std::string kv_dtype = "auto";
  std::string experts = "rows";  // the way of their products

  bool is_apart() const { return attention == Attention::kDecodes; }
};

// ModelShape::swapped_expert_rows for what --experts says.
std::int64_t swapped_rows(const std::string& experts) {
  if (experts == "rows") return 0;
  return experts == "weights" ? std::numeric_limits<std::int64_t>::max() : kFewExpertRows;
}
std::int64_t fused_rows(const std::string& experts) {
  return experts == "fused" ? 1 : kNoFusedExperts;
}

GpuModelOptions options_of(const std::string& experts) {
  GpuModelOptions options;
  options.swapped_expert_rows = swapped_rows(experts);
  options.fused_expert_rows = fused_rows(experts);
  return options;
}

std::vector<Kind> kinds_of(const Settings& s, const std::string& kv_dtype) {
  std::vector<Kind> out;
  for (const std::string& left : s.experts) {
    out.push_back({Attention::kByKind, kv_dtype, left});
    if (s.apart) out.push_back({Attention::kDecodes, kv_dtype, left});
  }
  return out;
}

ModelShape shape_of(const Settings& s, const ModelConfig& config, const Kind& kind) {
  DType dtype = parse_dtype(s.dtype);
  ModelShape shape = batch_shape(config, s.ranks,
                                 {.dtype = dtype,
                                  .max_rows = s.max_rows,
                                  .max_tokens = s.max_tokens(),
                                  .cache = {.page = kPage,
                                            .num_pages = s.pages(),
                                            .sequences = s.sequences() + s.prompts,
                                            .prompts = PagedCache::kPromptsOnGpus,
                                            .fp8 = kind.kv_dtype == "fp8",
                                            .attention = kind.attention},
                                  .plan_for = Target::kCuda});
  // As weights.h: weight_dtype() finds it for dummy weights.
  shape.weight_dtype = dtype == DType::kF32 ? config.dtype.value_or(DType::kF32) : dtype;
  shape.swapped_expert_rows = swapped_rows(kind.experts);
  shape.fused_expert_rows = fused_rows(kind.experts);
  return shape;
}

// All but what is in the cache; false where a kernel or proof failed.
bool compile_all(const Settings& s, const ModelConfig& config) {
  std::vector<LabelledProgram> programs;
  std::vector<Kind> kinds;
  for (const std::string& kv_dtype : s.kv_dtypes) {
    for (const Kind& kind : kinds_of(s, kv_dtype)) kinds.push_back(kind);
  }
  for (const Kind& kind : kinds) {
    const std::int64_t most = kind.is_apart() ? s.sequences() : s.max_rows;
    ModelShape shape = shape_of(s, config, kind);
    for (const BatchBounds& bounds : batch_bounds(shape, most)) {
      shape.paged.sequences = bounds.sequences;
      step::Plan plan = plan_step(shape, bounds.rows).plan;
      std::vector<ProveOptions> proofs = step_proofs(shape, plan, bounds);
      std::vector<std::set<std::string>> constants = step::constant_inputs(plan);
      for (std::size_t i = 0; i < plan.programs.size(); ++i) {
        Program& p = plan.programs[i];
        if (p.name.find(s.only) == std::string::npos) continue;
        programs.push_back(
            {fmt::format("{}{}{}rows={} {}", kind.is_apart() ? "decode " : "",
                         kind.kv_dtype == "auto" ? "" : kind.kv_dtype + " ",
                         kind.experts == "rows" ? "" : "experts by " + kind.experts + " ",
                         bounds.rows, p.name),
             std::move(p),
             {.constants = constants[i]},
             {},
             std::move(proofs[i])});
      }
    }
  }
  Clock::time_point begin = Clock::now();
  compile_choice_kernel();
  int failed = 0, dirty = 0;
  for (const CompiledKernel& k : compile_ahead(programs, s.proof)) {
    if (!k.error.empty() || !k.is_clean()) say("  {}", k.to_string());
    failed += !k.error.empty();
    dirty += k.error.empty() && !k.is_clean();
  }
  say("compile: {} kernels in {:.1f} s, {} failed, {} dirty", programs.size(), seconds_since(begin),
      failed, dirty);
  return failed == 0;
}

// Multiplications and additions a second of a large product, the best of a few.
double product_rate(GpuWorld& world, std::int64_t size, std::uint64_t seed) {
  GemmDesc d{.m = size, .n = size, .k = size};
  d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
  Lowered lowered = lower(gemm(d, default_config(d, Target::kCuda)));

  const GpuTarget gpu = world.target();
  std::unique_ptr<Executable> executable =
      load(prove(lowered, for_launches_of(lowered, {size}, gpu)), world,
           generate(lowered, {.target = gpu}));
  const Program& p = executable->program();
  const auto bytes = static_cast<std::size_t>(size * size * 2);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(size * size));
  for (std::uint16_t& v : values) v = f32_to_bf16(normal(random));
  std::vector<SymmetricGpuMemory> memory;
  Args args;
  args.tensors.resize(p.tensors.size());
  for (const char* name : {"a", "b", "c"}) {
    memory.push_back(world.allocate(bytes));
    // Products of equal numbers draw less power, and run at a higher clock than a model's do.
    world.stream(0).upload(memory.back().addresses()[0], values.data(), bytes);
    args.tensors[static_cast<std::size_t>(p.find_tensor(name))].on = memory.back().addresses();
  }
  std::shared_ptr<Launch> launches = executable->prepare(args);
  cuda::Event begin(world.device(0), cuda::Event::Timing::kOn);
  cuda::Event end(world.device(0), cuda::Event::Timing::kOn);
  double best = 0;
  for (int i = 0; i < 12; ++i) {
    world.stream(0).record(begin);
    launches->run({&size, 1});
    world.stream(0).record(end);
    executable->wait();
    double operations = 2.0 * static_cast<double>(size) * static_cast<double>(size * size);
    best = std::max(best, 1e3 * operations / cuda::elapsed_ms(begin, end));
  }
  return best;
}

std::size_t weight_bytes(const ModelShape& shape) {  // of a rank
  std::size_t bytes = 0;
  for (const step::Buffer& b : model_buffers(shape)) {
    const bool cache = b.name.ends_with("_cache") || b.name.ends_with(".k_scales") ||
                       b.name.ends_with(".v_scales");
    if (!cache) bytes += step::num_bytes(b);
  }
  return bytes;
}

// What a step of `rows` sequences of `context` tokens reads, on a rank, and multiplies.
struct Work {
  double bytes = 0, operations = 0;
};
Work work_of(const Settings& s, const ModelShape& shape, std::int64_t rows) {
  Work w;
  for (const step::Buffer& b : model_buffers(shape)) {
    bool cache = b.name.ends_with("_cache") || b.name.ends_with("_scales");
    if (cache) {
      double tokens = static_cast<double>(rows * s.context);
      double of_token = static_cast<double>(step::num_bytes(b)) /
                        static_cast<double>(shape.paged.num_pages * shape.paged.page);
      w.bytes += tokens * of_token;
      if (b.name.ends_with("_scales")) continue;
      // Of each key and value, one multiplication and addition for every query head.
      double group = static_cast<double>(shape.config->num_heads) / shape.config->num_kv_heads;
      w.operations += 2 * group * tokens * of_token / static_cast<double>(size_bytes(b.dtype));
      continue;
    }
    if (b.name == "embedding" && !shape.config->tie_word_embeddings) continue;
    w.bytes += static_cast<double>(step::num_bytes(b));
    w.operations += 2.0 * static_cast<double>(rows) *
                    static_cast<double>(step::num_bytes(b) / size_bytes(b.dtype));
  }
  return w;
}

// Sequences of the context's tokens, the last of them in this step.
std::vector<BatchPiece> decode_rows(const Settings& s, std::int64_t rows,
                                    const std::vector<int>& tokens, const std::vector<int>& pages) {
  const auto width = static_cast<std::size_t>(s.max_tokens() / kPage);
  std::vector<BatchPiece> pieces;
  for (std::int64_t i = 0; i < rows; ++i) {
    auto at = static_cast<std::size_t>(i);
    pieces.push_back({.tokens = std::span(tokens).subspan(at, 1),
                      .first = s.context - 1,
                      .pages = std::span(pages).subspan(at * width, width),
                      .wanted = 1});
  }
  return pieces;
}

Json time_rows(const Settings& s, BatchModel& model, std::int64_t rows, double copied,
               double multiplied) {
  std::vector<int> tokens(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(i % 97);
  std::vector<int> pages(static_cast<std::size_t>(s.pages()));
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int>(i);
  std::vector<BatchPiece> pieces = decode_rows(s, rows, tokens, pages);
  long best = 0;
  auto look = [&](std::size_t, std::int64_t, std::span<const float> logits) {
    best += std::max_element(logits.begin(), logits.end()) - logits.begin();
  };
  std::vector<double> host_ms, ms;
  for (int i = 0; i < 4; ++i) {
    Clock::time_point begin = Clock::now();
    model.step(pieces, look);
    if (i > 0) host_ms.push_back(seconds_since(begin) * 1e3);
  }
  std::map<std::string, std::vector<double>> chosen_ms;  // by the GPU
  for (const char* kind : {"greedy", "all"}) {
    const SamplingWishes wishes(kind, rows, model.shape().config->vocab_size, s.seed);
    TokensOnly tokens_only(wishes);
    for (int i = 0; i < 4; ++i) {
      Clock::time_point begin = Clock::now();
      model.step(pieces, tokens_only);
      if (i > 0) chosen_ms[kind].push_back(seconds_since(begin) * 1e3);
    }
    if (tokens_only.failed() > 0) throw InternalError("a GPU did not choose a token");
  }
  auto& step = static_cast<GpuBatchStep&>(model.last_step());
  step.replay(2);
  for (int i = 0; i < s.samples; ++i) {
    constexpr int kTimes = 4;
    Clock::time_point begin = Clock::now();
    step.replay(kTimes);
    ms.push_back(seconds_since(begin) * 1e3 / kTimes);
  }
  Work w = work_of(s, model.shape(), rows);
  double bound_ms = 1e3 * std::max(w.bytes / copied, w.operations / multiplied);
  say("  {:4} rows: {:8.3f} ms, bound {:7.3f} ms ({:.2f} GB, {:.2f} TFLOP), {:.3f} of it; {:8.3f} "
      "ms with the host choosing, {:8.3f} with the GPU, {:8.3f} with all options",
      rows, median(ms), bound_ms, w.bytes / 1e9, w.operations / 1e12, bound_ms / median(ms),
      median(host_ms), median(chosen_ms["greedy"]), median(chosen_ms["all"]));
  Json out = {{"rows", rows},
              {"bytes", w.bytes},
              {"bound_ms", bound_ms},
              {"operations", w.operations},
              {"of_bound", bound_ms / median(ms)}};
  keep_samples(out, "", ms);
  keep_samples(out, "host", host_ms);
  keep_samples(out, "greedy", chosen_ms["greedy"]);
  keep_samples(out, "all", chosen_ms["all"]);
  return out;
}

// Each program of steps of so many rows that decode, and of whole prompts beside them.
void profile_kind(const Settings& s, BatchModel& model) {
  const auto context = static_cast<std::size_t>(s.context);
  std::vector<int> tokens(std::max<std::size_t>(context, static_cast<std::size_t>(s.sequences())));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(i % 97);
  std::vector<int> pages(static_cast<std::size_t>(s.pages()));
  std::iota(pages.begin(), pages.end(), 0);
  const auto width = static_cast<std::size_t>(s.max_tokens() / kPage);
  for (std::int64_t rows : s.rows) {
    std::vector<BatchPiece> pieces = decode_rows(s, rows, tokens, pages);
    for (std::int64_t i = 0; i < s.prompts; ++i) {
      const auto at = static_cast<std::size_t>(rows + i);
      pieces.push_back({.tokens = std::span(tokens).first(context),
                        .first = 0,
                        .pages = std::span(pages).subspan(at * width, width),
                        .wanted = 1});
    }
    model.step(pieces, BatchModel::Visit());
    auto& step = static_cast<GpuBatchStep&>(model.last_step());
    step.replay(2);
    Clock::time_point begin = Clock::now();
    step.replay(s.samples);
    const double whole = seconds_since(begin) * 1e3 / s.samples;
    say("  {} rows that decode, {} prompts of {}: {:.3f} ms a step", rows, s.prompts, s.context,
        whole);
    double sum = 0;
    for (const step::GpuRunner::ProgramTime& t : step.time_programs(s.samples)) {
      say("    {:9.3f} ms, {:4} launches of {:8.1f} us: {}", t.ms, t.launches,
          1e3 * t.ms / t.launches, t.name);
      sum += t.ms;
    }
    say("    {:9.3f} ms in all", sum);
  }
}

int profile(const Settings& s) {
  const ModelConfig config = config_of(s);
  GpuWorld world({.size = s.ranks});
  say("{}: {}", s.model, world.device(0).properties().to_string());
  compile_all(s, config);
  const Checkpoint checkpoint = dummy_checkpoint(config, s.seed);
  auto weights = std::make_shared<GpuModel>(world, shape_of(s, config, {}), checkpoint);
  for (const Kind& kind : kinds_of(s, "auto")) {
    if (kind.is_apart() && s.prompts > 0) continue;  // decodes alone
    say("{}, experts' products: {}",
        kind.is_apart() ? "decoding in the fastest order" : "steps as they are served",
        kind.experts);
    BatchModel model(
        std::make_unique<GpuBatchRunner>(world, weights, kind.attention, options_of(kind.experts)),
        s.max_rows);
    profile_kind(s, model);
  }
  return 0;
}

Json of_a_run(const Settings& s, const GpuWorld& world, double copied) {
  auto now = std::chrono::system_clock::now();
  return {
      {"commit", s.commit},
      {"command", command_line()},
      {"driver", s.driver},
      {"seed", s.seed},
      {"copy_bytes_per_s", copied},
      {"machine", world.device(0).properties().to_string()},
      {"date", fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)))}};
}

int run_sampling(const Settings& s) {
  GpuWorld world({.size = 1});
  const double copied = copy_bandwidth(world);
  say("{}: {:.2f} TB/s by a copy", world.device(0).properties().to_string(), copied / 1e12);
  Json out = of_a_run(s, world, copied);
  out["choices"] = time_sampling(
      world, {.rows = s.sampled_rows, .vocab = s.vocab, .samples = s.samples, .seed = s.seed},
      copied);
  if (!s.out.empty()) std::ofstream(s.out) << out.dump(1) << "\n";
  int wrong = 0;
  for (const Json& row : out["choices"]) wrong += row.at("wrong").get<int>();
  say("sampling: {} rows wrong", wrong);
  return wrong == 0 ? 0 : 1;
}

struct Rates {
  double copied = 0, multiplied = 0;  // a second
  Clock::time_point begin;            // of the program
};

// Times of a kind's steps and what they answer in company, in `run`, which `keep` keeps.
void run_kind(const Settings& s, GpuWorld& world, const std::shared_ptr<GpuModel>& weights,
              const Kind& kind, const Rates& rates, Json& run, const std::function<void()>& keep) {
  const bool apart = kind.is_apart();
  Clock::time_point making = Clock::now();
  BatchModel model(
      std::make_unique<GpuBatchRunner>(world, weights, kind.attention, options_of(kind.experts)),
      apart ? s.sequences() : s.max_rows);
  run["ready_s"] = seconds_since(making);
  say("{}, experts {}: ready in {:.1f} s, after {:.1f} s",
      apart ? "decoding in the fastest order" : "steps as they are served", kind.experts,
      seconds_since(making), seconds_since(rates.begin));
  for (std::int64_t rows : s.rows) {
    if (seconds_since(rates.begin) > s.seconds) {
      say("  {} rows: left out, no time left", rows);
      continue;
    }
    run["steps"].push_back(time_rows(s, model, rows, rates.copied, rates.multiplied));
    keep();
  }
  const double left = s.seconds - seconds_since(rates.begin);
  if (apart || !s.check || left < 0) return;
  Company c = compare_company(model, {.requests = s.requests,
                                      .seed = s.seed,
                                      .max_rows = s.max_rows,
                                      .num_pages = s.pages(),
                                      .seconds = left / 2});
  say("  {}", c.to_string());
  run["company"] = c.to_json();
  run["differs"] = c.other_bits > 0 || c.alone == 0;
}

int run_all(const Settings& s) {
  Clock::time_point begin = Clock::now();
  ModelConfig config = config_of(s);
  if (cuda::num_devices() < s.ranks) throw DeviceError("too few GPUs");
  GpuWorld world({.size = s.ranks});
  double copied = copy_bandwidth(world);
  double multiplied = s.ranks == 1 ? product_rate(world, s.product, s.seed) : 1e18;
  say("{} {} tp {} context {}: random weights, {}", s.model, s.dtype, s.ranks, s.context,
      world.device(0).properties().to_string());
  say("  memory: {:.2f} TB/s by a copy; products: {:.0f} TFLOP/s", copied / 1e12,
      multiplied / 1e12);
  Json out = of_a_run(s, world, copied);
  out.update({{"model", s.model},
              {"dtype", s.dtype},
              {"weights", s.weights},
              {"context", s.context},
              {"tp", s.ranks},
              {"layers", config.layers.size()},
              {"operations_per_s", multiplied}});
  auto keep = [&] {
    if (!s.out.empty()) std::ofstream(s.out) << out.dump(1) << "\n";
  };
  keep();
  compile_all(s, config);
  say("compiled after {:.1f} s", seconds_since(begin));
  Checkpoint checkpoint = dummy_checkpoint(config, s.seed);
  int failed = 0;
  for (const std::string& kv_dtype : s.kv_dtypes) {
    std::string first_digest;  // of the first way that answered
    auto weights = std::make_shared<GpuModel>(
        world, shape_of(s, config, {Attention::kByKind, kv_dtype}), checkpoint);
    say("cache {}: {:.2f} GB of weights on each rank after {:.1f} s", kv_dtype,
        static_cast<double>(weight_bytes(weights->shape())) / 1e9, seconds_since(begin));
    for (const Kind& kind : kinds_of(s, kv_dtype)) {
      Json& run = out["runs"].emplace_back();
      run = {{"attention", kind.is_apart() ? "paged_decode" : "as served"}};
      if (kind.experts != "rows") run["experts"] = kind.experts;
      if (kv_dtype != "auto") run["kv_dtype"] = kv_dtype;
      try {
        run_kind(s, world, weights, kind, {copied, multiplied, begin}, run, keep);
        if (run.contains("company")) {
          const auto digest = run["company"]["digest"].get<std::string>();
          if (first_digest.empty()) first_digest = digest;
          if (digest != first_digest) {
            say("  DIFFERS: answers have other bits than those of the first way");
            run["differs"] = true;
          }
        }
        failed += run.value("differs", false);
      } catch (const Error& e) {
        say("  FAILED: {}", e.what());
        run["error"] = e.what();
        ++failed;
      }
      keep();
    }
  }
  say("batch: {} failed, {:.1f} s", failed, seconds_since(begin));
  return failed == 0 ? 0 : 1;
}

void add_options(CLI::App* command, Settings& s) {
  command->add_option("--model", s.model, "llama-3-8b, llama-3-70b or a directory with config.json")
      ->capture_default_str();
  command->add_option("--tp", s.ranks, "GPUs")->check(CLI::Range(1, 8));
  command->add_option("--dtype", s.dtype)->capture_default_str();
  command->add_option("--kv-dtype", s.kv_dtypes, "of caches, one after the other: auto, fp8")
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "fp8"}));
  command->add_option("--weights", s.weights, "of products: auto, or fp8")->capture_default_str();
  command
      ->add_option(
          "--experts", s.experts,
          "the way of experts' products, one after the other: rows, weights (as their left "
          "factor), few (weights in steps with few rows of each), fused (few, the second ones with "
          "their sums in one launch)")
      ->delimiter(',')
      ->check(CLI::IsMember({"rows", "weights", "few", "fused"}));
  command->add_option("--layers", s.layers, "only so many layers; 0: all");
  command->add_option("--rows", s.rows, "sequences of the steps that are timed")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  command->add_option("--context", s.context, "tokens of each of them")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--max-rows", s.max_rows, "of the largest step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_flag("!--no-apart", s.apart, "leave out steps with paged_decode");
}

int main_of(int argc, char** argv) {
  CLI::App app("Steps of many requests with random weights on GPUs", "gpu_batch");
  app.require_subcommand(1);
  Settings s;
  CLI::App* compile = app.add_subcommand("compile", "every proof and kernel of it");
  add_options(compile, s);
  compile->add_option("--only", s.only, "programs with this in their names");
  compile->add_flag("!--no-proof", s.proof, "kernels alone");
  CLI::App* run = app.add_subcommand("run", "compare answers and measure steps");
  add_options(run, s);
  CLI::App* of_programs = app.add_subcommand("profile", "measure each program of a step");
  add_options(of_programs, s);
  of_programs->add_option("--prompts", s.prompts, "whole prompts of the context's tokens beside")
      ->check(CLI::Range(0, 4096));
  of_programs->add_option("--samples", s.samples, "times of each")->check(CLI::Range(1, 1000));
  CLI::App* sampling = app.add_subcommand("sampling", "measure the choice of tokens");
  sampling->add_option("--rows", s.sampled_rows, "that tokens are chosen for")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  sampling->add_option("--vocab", s.vocab)->check(CLI::Range(1, 1 << 24))->capture_default_str();
  run->add_option("--product", s.product, "size of the product that is timed")
      ->check(CLI::Range(64, 1 << 15));
  for (CLI::App* command : {run, sampling}) {
    command->add_option("--samples", s.samples, "times of each")->check(CLI::Range(1, 1000));
    command->add_option("--seed", s.seed, "of what is drawn by lot");
    command->add_option("-o", s.out, "JSON file");
    command->add_option("--commit", s.commit);
    command->add_option("--driver", s.driver);
  }
  run->add_option("--requests", s.requests, "whose answers are compared")
      ->check(CLI::Range(1, 4096));
  run->add_option("--seconds", s.seconds, "nothing further is begun after this");
  run->add_flag("!--no-check", s.check, "compare no answers");
  CLI11_PARSE(app, argc, argv);
  if (compile->parsed()) return compile_all(s, config_of(s)) ? 0 : 1;
  if (of_programs->parsed()) return profile(s);
  return sampling->parsed() ? run_sampling(s) : run_all(s);
}

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) try {
  return stretto::bench::main_of(argc, argv);
} catch (const stretto::DeviceError& e) {
  fmt::print(stderr, "gpu_batch: {}\n", e.what());
  return 4;
} catch (const std::exception& e) {
  fmt::print(stderr, "gpu_batch: {}\n", e.what());
  return 2;
}
