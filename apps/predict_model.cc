#include "apps/predict_model.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "apps/model_options.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/engine/generate.h"
#include "stretto/runtime/atomic_file.h"
#include "stretto/runtime/world.h"
#include "stretto/step/text.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostRows = 8192;

struct OfProgram {
  std::string name;
  int launches = 0;
  double time_ms = 0;
  step::Bound bound = step::Bound::kLaunch;
};

// In the order in which they first run.
std::vector<OfProgram> by_program(const BatchPrediction& p) {
  std::vector<OfProgram> out;
  std::map<int, std::size_t> at;
  for (const step::NodePrediction& n : p.step.nodes) {
    const step::Node& node = p.plan.nodes[n.node];
    auto [found, is_new] = at.try_emplace(node.program, out.size());
    if (is_new) out.push_back({.name = p.plan.program_of(node).name, .bound = n.bound});
    OfProgram& one = out[found->second];
    ++one.launches;
    one.time_ms += n.time_ms;
  }
  return out;
}

void print_json(const BatchPrediction& p, const predict::Machine& machine) {
  nlohmann::json programs = nlohmann::json::array();
  for (const OfProgram& one : by_program(p)) {
    programs.push_back({{"name", one.name},
                        {"launches", one.launches},
                        {"time_ms", one.time_ms},
                        {"bound_by", step::name(one.bound)}});
  }
  nlohmann::json out = {{"time_ms", p.time_ms},
                        {"tokens_per_second", p.tokens_per_second},
                        {"memory_bytes", p.memory_bytes},
                        {"bound_by", p.bound_by},
                        {"machine", machine.name},
                        {"memory",
                         {{"weights", p.bytes.constants},
                          {"cache", p.bytes.state},
                          {"step", p.bytes.work},
                          {"programs", p.bytes.programs}}},
                        {"programs", programs}};
  fmt::print("{}\n", to_line(out));
}

void print_lines(const BatchPrediction& p, const PredictModelOptions& options,
                 const predict::Machine& machine) {
  const BatchQuestion& q = options.question;
  auto gib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  fmt::print("{} on {}, {} rank{}: {} sequences of {} tokens", options.model, machine.name, q.ranks,
             q.ranks == 1 ? "" : "s", q.batch, q.context);
  if (q.prompt > 0) fmt::print(", {} tokens of a prompt", q.prompt);
  fmt::print("\n{:.3f} ms a step, {:.0f} tokens/s, bound by {}\n", p.time_ms, p.tokens_per_second,
             p.bound_by);
  fmt::print("{:.2f} GiB of a rank: weights {:.2f}, cache {:.2f}, step {:.2f}, programs {:.2f}\n",
             gib(p.memory_bytes), gib(p.bytes.constants), gib(p.bytes.state), gib(p.bytes.work),
             gib(p.bytes.programs));
  for (const OfProgram& one : by_program(p)) {
    fmt::print("  {:<22} {:>4} launches {:>10.3f} ms  {}\n", one.name, one.launches, one.time_ms,
               step::name(one.bound));
  }
}

void write_plan(const step::Plan& plan, const std::string& path) {
  AtomicFile file(path);
  file.write(step::print(plan));
  file.commit();
}

}  // namespace

void add_predict_model_options(CLI::App* command, PredictModelOptions& options) {
  BatchQuestion& q = options.question;
  CLI::Option* model =
      command
          ->add_option("--model", options.model,
                       "directory with a config.json, whose step is predicted instead of a program")
          ->group("Steps of a model");
  for (const char* other : {"program", "--ranks", "--m", "--n", "--k", "--size", "--extent",
                            "--target", "--default-config", "--eager", "--output"}) {
    model->excludes(command->get_option(other));
  }
  auto number = [&](const char* flag, auto& value, const char* what, std::int64_t least,
                    std::int64_t most) {
    command->add_option(flag, value, what)
        ->check(CLI::Range(least, most))
        ->group("Steps of a model")
        ->needs(model)
        ->capture_default_str();
  };
  number("--tp", q.ranks, "tensor-parallel ranks", 1, World::kMaxWorldSize);
  number("--ep", q.expert_groups, "groups of ranks over which experts are spread", 1,
         World::kMaxWorldSize);
  number("--batch", q.batch, "sequences that go on by one token", 0, kMostRows);
  number("--context", q.context, "tokens of each sequence", 1, std::int64_t{1} << 31);
  number("--prompt", q.prompt, "tokens of one more sequence's prompt in the step", 0, kMostRows);
  command
      ->add_flag("--sequence-parallel", q.ulysses,
                 "rows of steps that are not small are spread over the ranks")
      ->group("Steps of a model")
      ->needs(model);
  command
      ->add_option("--kv-dtype", options.kv_dtype,
                   "of the cache: auto, as --dtype, or fp8, e4m3 with a scale for each token of "
                   "each head")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->group("Steps of a model")
      ->needs(model)
      ->capture_default_str();
  command
      ->add_option("--weights", options.weights,
                   "of the layers' products: auto, as config.json says, or fp8, e4m3 with a scale "
                   "for each 128 x 128")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->group("Steps of a model")
      ->needs(model)
      ->capture_default_str();
  add_fused_experts_option(command, options.fused_experts)->group("Steps of a model")->needs(model);
  command->add_option("--plan", options.plan_file, "write the step's plan as text")
      ->group("Steps of a model")
      ->needs(model);
}

void predict_model(PredictModelOptions options, const std::string& dtype,
                   const predict::Machine& machine, bool json) {
  if (!options.plan_file.empty()) check_writable(options.plan_file);
  ModelConfig config = read_config(options.model);
  set_weights(config, options.weights);
  options.question.dtype = activation_dtype(dtype, config);
  check_has_experts(config, options.fused_experts);
  options.question.fused_experts = fused_experts(options.fused_experts);
  options.question.fp8_cache = options.kv_dtype == "fp8";
  BatchPrediction p = predict_batch(config, machine, options.question);
  if (!options.plan_file.empty()) write_plan(p.plan, options.plan_file);
  json ? print_json(p, machine) : print_lines(p, options, machine);
}

}  // namespace stretto
