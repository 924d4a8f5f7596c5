// Decode with random weights on 1 to 8 GPUs, batch 1: how near a token comes to the time that
// reading the weights takes.
//   gpu_decode run     [--model NAME|DIR] [--tp 1,2,4] [--dtype bf16] [--context N]
//   gpu_decode compile [--model NAME|DIR] [--tp 1,2,4]     every kernel of it; needs no GPU
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <tuple>

#include "bench/gpu/decode/decode_models.h"
#include "bench/gpu/decode/decode_samples.h"
#include "bench/gpu/harness/command_line.h"
#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/harness/copy_rate.h"
#include "bench/gpu/harness/progress.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/model/checkpoint/dummy_checkpoint.h"
#include "stretto/model/gpu/gpu_forward_step.h"
#include "stretto/model/transformer/transformer.h"
#include "stretto/ops/choose/calibrated_machine.h"

namespace stretto::bench {
namespace {

struct Settings {
  std::string model = "llama-3-8b", dtype = "bf16", weights = "auto", out, commit, driver;
  std::vector<int> ranks = {1, 2, 4};
  std::int64_t max_tokens = 4096, context = 512;
  int tokens = 64, layers = 0;
  double seconds = 240;
  bool proof = false, stages = true, early = true;
  bool exchanges = true;           // time what they take, too
  std::vector<std::string> tries;  // of RowSlots
  bool prefill = false;            // compile those kernels, too
  std::int64_t prompt = 0;         // tokens of a prompt to time, too; 0: none
  bool whole_experts = false, ulysses = false;
  int data_groups = 1;  // of as many GPUs as `ranks` says each; compiled alone
};

// `machine`, where products of long steps are chosen for one, must outlive the shape.
ModelShape shape_of(const Settings& s, const ModelConfig& config, int ranks,
                    const predict::Machine* machine) {
  DType dtype = parse_dtype(s.dtype);
  int all = ranks * s.data_groups;
  ModelShape shape = model_shape(config, all,
                                 {.dtype = dtype,
                                  .max_tokens = s.max_tokens,
                                  .plan_for = Target::kCuda,
                                  .expert_groups = s.whole_experts ? all : 1,
                                  .data_groups = s.data_groups,
                                  .ulysses = s.ulysses});
  // As weights.h: weight_dtype() finds it for dummy weights.
  shape.weight_dtype = dtype == DType::kF32 ? config.dtype.value_or(DType::kF32) : dtype;
  shape.machine = machine;
  return shape;
}

std::vector<CompiledKernel> compile_plan(const Settings& s, const ModelShape& shape) {
  std::vector<LabelledProgram> programs;
  for (std::int64_t bound : step_bounds(shape)) {
    bound = std::min(bound, shape.max_tokens);
    StepPlan plan = plan_step(shape, bound);
    std::vector<std::set<std::string>> constants = constant_inputs(shape, plan);
    for (std::size_t i = 0; i < plan.programs.size(); ++i) {
      Program& p = plan.programs[i];
      programs.push_back({fmt::format("tp={} rows={} {}", shape.world_size, bound, p.name),
                          std::move(p), {.constants = constants[i]}});
    }
    if (!s.prefill || bound == shape.max_tokens) break;
  }
  return compile_ahead(programs, s.proof);
}

int run_compile(const Settings& s) {
  ModelConfig config = model_config(s.model, s.layers);
  set_weights(config, s.weights);
  int failed = 0, dirty = 0, total = 0;
  for (int ranks : s.ranks) {
    predict::Machine machine = calibrated_machine(ranks);
    for (const CompiledKernel& k : compile_plan(s, shape_of(s, config, ranks, &machine))) {
      say("{}", k.to_string());
      ++total;
      failed += !k.error.empty();
      dirty += k.error.empty() && !k.is_clean();
    }
  }
  say("compile: {} kernels, {} failed, {} dirty", total, failed, dirty);
  return failed == 0 ? 0 : 1;
}

// Of steps of one row.
int best_of(const float* logits, std::int64_t vocab) {
  return static_cast<int>(std::max_element(logits, logits + vocab) - logits);
}

struct Decode {
  std::vector<double> eager_ms, step_ms, replay_ms, early_ms;  // of each sample, per token
  double greedy_ms = 0, early_greedy_ms = 0;                   // the GPU choosing
  bool early_same = false;                                     // the logits, bit by bit
  bool greedy_same = false;                                    // the tokens
};

// Milliseconds a token of as many as `expected` holds, which the GPU chooses from `token` on; and
// whether they are those.
std::pair<double, bool> time_greedy(GpuForwardStep& step, int token, std::int64_t past,
                                    const std::vector<int>& expected) {
  std::vector<int> chosen;
  auto count = static_cast<std::int64_t>(expected.size());
  double ms = 0;
  for (int round = 0; round < 2; ++round) {  // the first captures
    chosen.clear();
    Clock::time_point begin = Clock::now();
    step.run_greedy(token, past, count, [&](int choice) {
      chosen.push_back(choice);
      return true;
    });
    ms = seconds_since(begin) * 1e3 / static_cast<double>(count);
  }
  return {ms, chosen == expected};
}

// Milliseconds of a replay of the captured step, on average of each eight that the host enqueues at
// a time.
std::vector<double> time_replays(GpuForwardStep& step) {
  std::vector<double> ms;
  step.replay(4);
  for (int i = 0; i < 10; ++i) {
    constexpr int kTimes = 8;
    Clock::time_point begin = Clock::now();
    step.replay(kTimes);
    ms.push_back(seconds_since(begin) * 1e3 / kTimes);
  }
  return ms;
}

// The same step with launches that overlap at their edges.
void time_early(GpuModel& model, GpuForwardStep& step, int token, std::int64_t past,
                const std::vector<int>& chosen, Decode& d) {
  auto logits_of = [&](ForwardStep& on) {
    on.run({&token, 1}, past, 1);
    const float* row = on.logits(0, 1);
    return std::vector<float>(row, row + model.shape().config->vocab_size);
  };
  std::unique_ptr<ForwardStep> early = model.make_step(1, GpuModelOptions{});
  for (int i = 0; i < 3; ++i) d.early_same = logits_of(*early) == logits_of(step);
  auto& on_gpu = static_cast<GpuForwardStep&>(*early);
  d.early_ms = time_replays(on_gpu);
  bool same = false;
  std::tie(d.early_greedy_ms, same) = time_greedy(on_gpu, token, past, chosen);
  d.greedy_same &= same;
}

// Greedy steps from `context` tokens on, the cache before them being zeros: launch by launch, then
// captured with the host choosing every token, then replayed without the host.
Decode decode(const Settings& s, GpuModel& model, GpuForwardStep& step) {
  std::int64_t vocab = model.shape().config->vocab_size;
  int token = 5;
  std::int64_t past = s.context;
  auto one = [&](ForwardStep& on) {
    Clock::time_point begin = Clock::now();
    on.run({&token, 1}, past, 1);
    token = best_of(on.logits(0, 1), vocab);
    return seconds_since(begin) * 1e3;
  };
  Decode d;
  {
    GpuModelOptions plain;
    plain.graphs = false;
    std::unique_ptr<ForwardStep> eager = model.make_step(1, plain);
    for (int i = 0; i < 8; ++i) d.eager_ms.push_back(one(*eager));
  }
  for (int i = 0; i < 4; ++i) one(step);
  int first = token;
  std::vector<int> chosen;
  for (int i = 0; i < s.tokens; ++i, ++past) {
    d.step_ms.push_back(one(step));
    chosen.push_back(token);
  }
  d.replay_ms = time_replays(step);
  std::tie(d.greedy_ms, d.greedy_same) = time_greedy(step, first, s.context, chosen);
  if (s.early) time_early(model, step, first, s.context, chosen, d);
  return d;
}

// Milliseconds of a prompt from an empty cache to its last row's logits, in as few steps as the
// plan allows, with chosen configs of products and with the default ones in turn, and of the last
// step's programs with each.
Json time_prompt(const Settings& s, GpuModel& model) {
  constexpr int kRounds = 15;
  std::int64_t rows = s.prompt;
  std::vector<std::int64_t> bounds = step_bounds(model.shape());
  std::int64_t bound = *std::lower_bound(bounds.begin(), bounds.end() - 1, rows);
  if (rows > model.shape().max_tokens) {
    throw UserError(fmt::format("a prompt of {} tokens, the cache has room for {}", rows,
                                model.shape().max_tokens));
  }
  std::int64_t last = (rows - 1) / bound * bound;  // the last step's first row
  std::vector<int> tokens(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(i % 97);
  Json out;
  std::vector<float> logits[2];
  for (bool choose : {true, false}) {
    std::unique_ptr<ForwardStep> step = model.make_step(bound, {.choose = choose});
    std::vector<double> ms;
    for (int i = 0; i < kRounds; ++i) {
      Clock::time_point begin = Clock::now();
      for (std::int64_t first = 0; first < rows; first += bound) {
        std::int64_t count = std::min(bound, rows - first);
        std::span<const int> all(tokens);
        step->run(all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                  first, count);
      }
      const float* row = step->logits(rows - 1 - last, 1);
      ms.push_back(seconds_since(begin) * 1e3);
      logits[choose].assign(row, row + model.shape().config->vocab_size);
    }
    const char* which = choose ? "chosen" : "default";
    say("  {} tokens in {} steps with {} configs: {:.3f} ms", rows, last / bound + 1, which,
        median(ms));
    keep_samples(out[which], "", ms);
    out[which]["tokens"] = rows;
    out[which]["steps"] = last / bound + 1;
    for (const auto& t : static_cast<GpuForwardStep&>(*step).time_stages(9)) {
      double us = t.ms * 1e3 / t.launches;
      say("    {:<16} {:4} launches, {:8.2f} us each", t.program, t.launches, us);
      out[which]["stages"].push_back(
          {{"program", t.program}, {"launches", t.launches}, {"us", us}});
    }
  }
  double worst = 0;
  for (std::size_t i = 0; i < logits[0].size(); ++i) {
    worst = std::max<double>(worst, std::abs(logits[0][i] - logits[1][i]));
  }
  say("  largest difference of logits {:.4f}", worst);
  return out;
}

Json to_json(const std::vector<GpuForwardStep::StageTime>& stages) {
  Json out = Json::array();
  for (const GpuForwardStep::StageTime& t : stages) {
    double us = t.ms * 1e3 / t.launches, of_step_us = t.of_step_ms * 1e3 / t.launches;
    say("    {:<16} {:<22} {:4} launches, {:8.2f} us each, {:7.3f} ms, {:5.2f} TB/s; of the step "
        "{:8.2f} us each, {:7.3f} ms",
        t.program, t.weights, t.launches, us, t.ms,
        static_cast<double>(t.weight_bytes) / (t.ms * 1e9), of_step_us, t.of_step_ms);
    out.push_back({{"program", t.program},
                   {"weights", t.weights},
                   {"launches", t.launches},
                   {"bytes", t.weight_bytes / static_cast<std::size_t>(t.launches)},
                   {"us", us},
                   {"of_step_us", of_step_us}});
  }
  return out;
}

// A step that was captured: its second run.
std::unique_ptr<GpuForwardStep> captured_step(const Settings& s, GpuModel& model,
                                              const GpuModelOptions& options) {
  auto made = model.make_step(1, options);
  std::unique_ptr<GpuForwardStep> step(static_cast<GpuForwardStep*>(made.release()));
  int token = 5;
  for (int i = 0; i < 2; ++i) {
    step->run({&token, 1}, s.context, 1);
    static_cast<void>(step->logits(0, 1));
  }
  return step;
}

// A step with the slots of each of `s.tries`, and as it is between them.
Json time_tries(const Settings& s, GpuModel& model) {
  Json out = Json::array();
  for (const std::string& text : s.tries) {
    for (const std::string& slots : {std::string("0:0:0"), text}) {
      GpuModelOptions options;
      options.slots = parse_slots(slots);
      std::vector<double> ms = time_replays(*captured_step(s, model, options));
      say("  slots {}: {:.3f} ms", slots, median(ms));
      out.push_back({{"slots", slots}});
      keep_samples(out.back(), "early", ms);
    }
  }
  return out;
}

// Every launch of a step whose launches start early, with and without the exchange between ranks;
// `replay_ms`, where it is not null: of a token, every sample.
Json time_launches(const Settings& s, GpuModel& model, bool exchanges,
                   std::vector<double>* replay_ms) {
  GpuModelOptions options;
  options.exchanges = exchanges;
  auto step = captured_step(s, model, options);
  if (replay_ms != nullptr) *replay_ms = time_replays(*step);
  return to_json(step->time_stages(9));
}

Json measure(const Settings& s, const ModelConfig& config, const Checkpoint& checkpoint,
             int ranks) {
  Clock::time_point begin = Clock::now();
  GpuWorld world({.size = ranks});
  double copied = copy_bandwidth(world);
  say("tp {}: {}", ranks, world.device(0).properties().to_string());
  say("  memory: {:.2f} TB/s by a copy", copied / 1e12);
  predict::Machine machine = calibrated_machine(ranks);
  ModelShape shape = shape_of(s, config, ranks, &machine);
  for (const CompiledKernel& k : compile_plan(s, shape)) {
    if (!k.error.empty() || !k.is_clean()) say("  {}", k.to_string());
  }
  say("  compiled after {:.1f} s", seconds_since(begin));
  GpuModelOptions options;
  options.early_starts = !s.early;
  Clock::time_point loading = Clock::now();
  GpuModel model(world, shape, checkpoint, options);
  double load_s = seconds_since(loading);
  say("  {:.2f} GB of weights on each rank in {:.1f} s, after {:.1f} s",
      static_cast<double>(model.weight_bytes()) / 1e9, load_s, seconds_since(begin));
  std::unique_ptr<ForwardStep> owned = model.make_step(1);
  auto* step = static_cast<GpuForwardStep*>(owned.get());
  Decode d = decode(s, model, *step);
  // A token reads every weight but the embedding, of which it takes one row.
  std::size_t read = 0;
  for (const PlanBuffer& b : model_buffers(model.shape())) {
    bool whole = b.name != "embedding" || config.tie_word_embeddings;
    bool of_prompts = b.name.find(".whole_") != std::string::npos;
    if (whole && !of_prompts && b.name != "cos" && b.name != "sin" && !b.name.ends_with("_cache")) {
      read += b.bytes();
    }
  }
  double replay_ms = median(d.replay_ms), early_ms = s.early ? median(d.early_ms) : 0;
  double best_ms = s.early ? std::min(early_ms, replay_ms) : replay_ms;
  double rate = static_cast<double>(read) / (best_ms * 1e-3);
  say("  per token: {:.3f} ms replayed, {:.3f} ms with the host choosing, {:.3f} ms launch by "
      "launch",
      replay_ms, median(d.step_ms), median(d.eager_ms));
  say("  {:.3f} ms with the GPU choosing, {}", d.greedy_ms,
      d.greedy_same ? "the same tokens" : "OTHER TOKENS");
  if (s.early) {
    say("  {:.3f} ms with launches that start early, {}; {:.3f} ms with the GPU choosing", early_ms,
        d.early_same ? "the same logits" : "OTHER LOGITS", d.early_greedy_ms);
  }
  say("  {:.1f} tokens/s, {:.2f} GB read per rank and token, {:.2f} TB/s, {:.1f} % of the copy",
      1e3 / best_ms, static_cast<double>(read) / 1e9, rate / 1e12, 100 * rate / copied);
  Json out = {{"tp", ranks},
              {"early_ms", early_ms},
              {"best_ms", best_ms},
              {"greedy_ms", d.greedy_ms},
              {"early_greedy_ms", d.early_greedy_ms},
              {"bytes_read", read},
              {"layers", config.layers.size()},
              {"load_s", load_s},
              {"weight_bytes", model.weight_bytes()},
              {"copy_bytes_per_s", copied},
              {"of_copy", rate / copied}};
  keep_samples(out, "replay", d.replay_ms);
  keep_samples(out, "step", d.step_ms);
  keep_samples(out, "eager", d.eager_ms);
  if (s.early) keep_samples(out, "early", d.early_ms);
  if (!s.tries.empty()) out["tries"] = time_tries(s, model);
  if (s.prompt > 0) out["prompt"] = time_prompt(s, model);
  if (!s.stages) return out;
  if (!s.early) out["stages"] = to_json(step->time_stages(9));
  if (!s.early) return out;
  say("  launches, and what a step is shorter without them:");
  out["stages"] = time_launches(s, model, true, nullptr);
  if (ranks == 1 || !s.exchanges) return out;
  say("  the same where the ranks' parts of sums stay as they are:");
  std::vector<double> ms;
  out["without_exchange"]["stages"] = time_launches(s, model, false, &ms);
  keep_samples(out["without_exchange"], "early", ms);
  say("  {:.3f} ms a token so, {:.3f} ms less", median(ms), early_ms - median(ms));
  return out;
}

int run_decode(const Settings& s) {
  Clock::time_point begin = Clock::now();
  ModelConfig config = model_config(s.model, s.layers);
  set_weights(config, s.weights);
  int devices = cuda::num_devices();
  if (devices == 0) throw DeviceError("no GPU");
  say("{} {}: random weights, {} GPUs", s.model, s.dtype, devices);
  Checkpoint checkpoint = dummy_checkpoint(config);
  say("weights drawn after {:.1f} s", seconds_since(begin));
  auto now = std::chrono::system_clock::now();
  Json out = {
      {"model", s.model},
      {"dtype", s.dtype},
      {"weights", s.weights},
      {"context", s.context},
      {"sequence_parallel", s.ulysses},
      {"commit", s.commit},
      {"command", command_line()},
      {"driver", s.driver},
      {"machine", cuda::Device(0).properties().to_string()},
      {"date", fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)))}};
  int failed = 0;
  double one = 0;
  for (int ranks : s.ranks) {
    if (ranks > devices || seconds_since(begin) > s.seconds) {
      say("tp {}: left out, {}", ranks, ranks > devices ? "too few GPUs" : "no time left");
      continue;
    }
    try {
      Json r = measure(s, config, checkpoint, ranks);
      auto ms = r["best_ms"].get<double>();
      if (ranks == 1) one = ms;
      if (one > 0 && ranks > 1) say("  {:.2f} times as fast as one GPU", one / ms);
      out["runs"].push_back(r);
    } catch (const Error& e) {
      say("tp {}: FAILED: {}", ranks, e.what());
      out["runs"].push_back({{"tp", ranks}, {"error", e.what()}});
      ++failed;
    }
    if (!s.out.empty()) std::ofstream(s.out) << out.dump(1) << "\n";
  }
  return failed == 0 ? 0 : 1;
}

void add_options(CLI::App* command, Settings& s) {
  command->add_option("--model", s.model, "llama-3-8b, llama-3-70b or a directory with config.json")
      ->capture_default_str();
  command->add_option("--tp", s.ranks, "numbers of GPUs")->delimiter(',')->check(CLI::Range(1, 8));
  command->add_flag("--ep", s.whole_experts, "whole experts spread over the GPUs");
  command->add_flag("--sequence-parallel", s.ulysses,
                    "prompts through sequence-parallel attention");
  command->add_option("--dtype", s.dtype)->capture_default_str();
  command->add_option("--weights", s.weights, "of products: auto, or fp8")->capture_default_str();
  command->add_option("--max-tokens", s.max_tokens, "capacity of the cache")
      ->check(CLI::Range(64, 1 << 20));
  command->add_option("--layers", s.layers, "only so many layers; 0: all");
}

int main_of(int argc, char** argv) {
  CLI::App app("Decode with random weights on GPUs", "gpu_decode");
  app.require_subcommand(1);
  Settings s;
  CLI::App* compile = app.add_subcommand("compile", "compile every kernel of decode");
  add_options(compile, s);
  compile->add_flag("--proof", s.proof, "prove every program, too");
  compile->add_option("--dp", s.data_groups, "data groups")->check(CLI::Range(1, 8));
  compile->add_flag("--prefill", s.prefill, "kernels of longer steps, too");
  CLI::App* run = app.add_subcommand("run", "measure decode");
  add_options(run, s);
  run->add_option("--context", s.context, "tokens in the cache")->check(CLI::Range(0, 1 << 20));
  run->add_option("--tokens", s.tokens, "steps that are timed")->check(CLI::Range(1, 10000));
  run->add_option("--seconds", s.seconds, "no further world size is begun after this");
  run->add_flag("!--no-stages", s.stages, "leave out the table of operators");
  run->add_option("--try", s.tries,
                  "time a step with other slots for its products, too: KiB, KiB of the product "
                  "after attention and columns of a step, '0:104:256', 0: as they are");
  run->add_flag("!--no-exchange-times", s.exchanges,
                "leave out the table of a step that does not exchange");
  run->add_option("--prompt", s.prompt, "time a prompt of so many tokens, too")
      ->check(CLI::Range(1, 1 << 20));
  run->add_flag("!--no-early", s.early, "leave out launches that start early");
  run->add_option("-o", s.out, "JSON file");
  run->add_option("--commit", s.commit);
  run->add_option("--driver", s.driver);
  CLI11_PARSE(app, argc, argv);
  return compile->parsed() ? run_compile(s) : run_decode(s);
}

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) try {
  return stretto::bench::main_of(argc, argv);
} catch (const stretto::DeviceError& e) {
  fmt::print(stderr, "gpu_decode: {}\n", e.what());
  return 4;
} catch (const std::exception& e) {
  fmt::print(stderr, "gpu_decode: {}\n", e.what());
  return 2;
}
