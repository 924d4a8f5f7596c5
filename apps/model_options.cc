#include "apps/model_options.h"

#include <CLI/CLI.hpp>

#include "stretto/runtime/world.h"

namespace stretto {

void add_model_options(CLI::App* command, ModelOptions& options) {
  command->add_option("--model", options.model, "Hugging Face model directory")
      ->required()
      ->envname("STRETTO_MODEL");
  command->add_option("--tp", options.tp, "tensor-parallel ranks")
      ->check(CLI::Range(1, World::kMaxWorldSize))
      ->envname("STRETTO_TP")
      ->capture_default_str();
  command
      ->add_option("--ep", options.ep,
                   "groups of ranks over which whole experts are spread; divides --tp. 1: every "
                   "rank has a part of every expert")
      ->check(CLI::Range(1, World::kMaxWorldSize))
      ->envname("STRETTO_EP")
      ->capture_default_str();
  add_launcher_option(command, options.launcher);
  command->add_option("--device", options.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
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
      ->add_option("--rope-frequencies", options.rope_frequencies,
                   "exact, or checkpoint-dtype: rounded as by casting the whole model")
      ->envname("STRETTO_ROPE_FREQUENCIES")
      ->capture_default_str();
}

bool ran_as_processes(const ModelOptions& options) {
  return ran_as_processes(options.launcher, options.tp);
}

EngineOptions engine_options(const ModelOptions& options, const ModelFiles& files, bool record) {
  EngineOptions engine{.world_size = options.tp,
                       .dtype = activation_dtype(options.dtype, files.config),
                       .record = record,
                       .device = options.target(),
                       .expert_groups = options.ep};
  if (options.launcher.processes()) engine.world = make_world(options.launcher, options.tp, record);
  return engine;
}

ModelFiles open_model(const ModelOptions& options) {
  ModelFiles files(options.model,
                   options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kSafetensors);
  set_rope_frequencies(files.config, options.rope_frequencies);
  check_expert_groups(files.config, options.tp, options.ep);
  return files;
}

}  // namespace stretto
