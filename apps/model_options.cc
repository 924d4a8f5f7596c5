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

ModelFiles open_model(const ModelOptions& options) {
  ModelFiles files(options.model,
                   options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kSafetensors);
  set_rope_frequencies(files.config, options.rope_frequencies);
  return files;
}

}  // namespace stretto
