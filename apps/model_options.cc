#include "apps/model_options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/say.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/processes/bootstrap_address.h"
#include "stretto/runtime/world.h"

namespace stretto {
namespace {

// Of check_groups what `--ep` is to blame for, in its words.
void check_expert_groups(const ModelConfig& config, const ModelOptions& options) {
  if (options.ep == 1) return;
  if (!config.moe) {
    throw UserError(fmt::format("--ep {}: {}: has no experts to spread", options.ep, config.where));
  }
  if (options.num_ranks() % options.ep == 0) return;
  std::vector<int> possible;
  for (int groups = 1; groups <= options.num_ranks(); ++groups) {
    if (options.num_ranks() % groups == 0) possible.push_back(groups);
  }
  throw UserError(
      fmt::format("--ep {}: {} groups of experts do not divide {} ranks; possible are {}",
                  options.ep, options.ep, options.num_ranks(), fmt::join(possible, ", ")));
}

}  // namespace

void check_has_experts(const ModelConfig& config, const std::string& fused_experts) {
  if (fused_experts != "on" || config.moe) return;
  throw UserError(fmt::format("--fused-experts on: {}: has no experts", config.where));
}

CLI::Option* add_fused_experts_option(CLI::App* command, std::string& value) {
  return command
      ->add_option(
          "--fused-experts", value,
          "on: experts' second products, the sums over them and over the ranks are one "
          "launch, with the same bits; off: several; auto: where one launch was measured to be "
          "faster, in bf16 on two GPUs from 512 rows of a step on")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
}

FusedExperts fused_experts(const std::string& value) {
  if (value == "auto") return FusedExperts::kAuto;
  return value == "on" ? FusedExperts::kOn : FusedExperts::kOff;
}

void add_model_options(CLI::App* command, ModelOptions& options) {
  command->add_option("--model", options.model, "Hugging Face model directory")
      ->required()
      ->envname("STRETTO_MODEL");
  command->add_option("--tp", options.tp, "tensor-parallel ranks, of each data-parallel group")
      ->check(CLI::Range(1, World::kMaxWorldSize))
      ->envname("STRETTO_TP")
      ->capture_default_str();
  command
      ->add_option("--dp", options.dp,
                   "data-parallel groups of --tp ranks each, over which prompts or documents are "
                   "dealt out; --dp x --tp ranks in all")
      ->check(CLI::Range(1, World::kMaxWorldSize))
      ->envname("STRETTO_DP")
      ->capture_default_str();
  command
      ->add_option("--ep", options.ep,
                   "groups of all ranks over which whole experts are spread; divides --dp x --tp. "
                   "1: every rank has a part of every expert, in each data-parallel group")
      ->check(CLI::Range(1, World::kMaxWorldSize))
      ->envname("STRETTO_EP")
      ->capture_default_str();
  command
      ->add_flag("--sequence-parallel", options.sequence_parallel,
                 "prompts through sequence-parallel attention (Ulysses): around it tokens stay "
                 "spread over the ranks and heads change ranks; every rank keeps all of "
                 "attention's weights beside its share")
      ->envname("STRETTO_SEQUENCE_PARALLEL");
  add_fused_experts_option(command, options.fused_experts)->envname("STRETTO_FUSED_EXPERTS");
  add_launcher_option(command, options.launcher);
  command->add_option("--device", options.device, "cpu, cuda, or auto: GPUs if there are any")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->envname("STRETTO_DEVICE")
      ->capture_default_str();
  command
      ->add_option("--load-format", options.load_format,
                   "auto, or dummy: random weights for config.json, to measure with")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->envname("STRETTO_LOAD_FORMAT")
      ->capture_default_str();
  command->add_option("--dtype", options.dtype, "auto, float32, bfloat16 or float16")
      ->envname("STRETTO_DTYPE")
      ->capture_default_str();
  command
      ->add_option("--weights", options.weights,
                   "of the layers' products: auto, as the checkpoint has them, or fp8, e4m3 with a "
                   "scale for each 128 x 128, made at loading where the checkpoint has others")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->envname("STRETTO_WEIGHTS")
      ->capture_default_str();
  command
      ->add_option("--kv-dtype", options.kv_dtype,
                   "of the cache: auto, the activations' dtype, or fp8, e4m3 with a scale for each "
                   "token of each head")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->envname("STRETTO_KV_DTYPE")
      ->capture_default_str();
  command
      ->add_option("--rope-frequencies", options.rope_frequencies,
                   "exact, or checkpoint-dtype: rounded as by casting the whole model")
      ->envname("STRETTO_ROPE_FREQUENCIES")
      ->capture_default_str();
}

void print_warnings(const Warnings& warnings) {
  for (const std::string& warning : warnings) say("stretto: warning: {}\n", warning);
}

bool ran_as_processes(const ModelOptions& options) {
  return ran_as_processes(options.launcher, options.num_ranks(), options.target());
}

EngineOptions engine_options(const ModelOptions& options, const ModelFiles& files, bool record) {
  EngineOptions engine{.world_size = options.num_ranks(),
                       .dtype = activation_dtype(options.dtype, files.config),
                       .record = record,
                       .device = options.target(),
                       .expert_groups = options.ep,
                       .data_groups = options.dp,
                       .ulysses = options.sequence_parallel,
                       .fused_experts = fused_experts(options.fused_experts),
                       .fp8_cache = options.kv_dtype == "fp8"};
  if (options.launcher.processes()) {
    engine.world = make_world(options.launcher, options.num_ranks(), {.record = record});
  }
  return engine;
}

void choose_device(ModelOptions& options) {
  if (options.device == "auto") options.device = cuda::num_devices() > 0 ? "cuda" : "cpu";
}

ModelFiles open_model(const ModelOptions& options) {
  ModelFiles files(options.model,
                   options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kSafetensors);
  set_rope_frequencies(files.config, options.rope_frequencies);
  set_weights(files.config, options.weights);
  if (files.config.has_fp8_products() && options.sequence_parallel) {
    throw UserError(fmt::format(
        "{}: e4m3 weights: not with --sequence-parallel, whose products have no fp8 programs",
        files.config.where));
  }
  if (options.num_ranks() > World::kMaxWorldSize) {
    throw UserError(fmt::format("--dp {} x --tp {}: {} ranks, at most {}", options.dp, options.tp,
                                options.num_ranks(), World::kMaxWorldSize));
  }
  if (options.dp > 1 && options.target() == Target::kCuda && !options.launcher.processes()) {
    throw UserError(
        fmt::format("--dp {}: data-parallel groups on GPUs need --launcher processes", options.dp));
  }
  check_expert_groups(files.config, options);
  check_has_experts(files.config, options.fused_experts);
  check_groups(files.config, options.num_ranks(), options.dp, options.ep);
  // Of several processes, rank 0 speaks.
  auto bootstrap = bootstrap_address_of_environment();
  if (bootstrap ? bootstrap->rank == 0 : !options.launcher.processes())
    print_warnings(files.warnings);
  return files;
}

}  // namespace stretto
