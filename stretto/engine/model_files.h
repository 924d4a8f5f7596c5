// A model directory, opened and checked: what every command that runs a model begins with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "stretto/model/checkpoint/checkpoint.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/model/checkpoint/generation_config.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace stretto {

// Weights stay mapped until ranks have copied their shares.
enum class LoadFormat : std::uint8_t {
  kSafetensors,
  kDummy,  // random weights for config.json, to measure with
};

struct ModelFiles {
  explicit ModelFiles(const std::filesystem::path& directory,
                      LoadFormat format = LoadFormat::kSafetensors);

  std::filesystem::path directory;
  ModelConfig config;
  GenerationConfig generation;
  Tokenizer tokenizer;
  Checkpoint checkpoint;
  // What the directory's files tell twice, and differently: both tellings, and which is taken.
  Warnings warnings;
};

// "auto" is what the checkpoint was trained in; UserError for a dtype that activations cannot have.
DType activation_dtype(const std::string& text, const ModelConfig& config);

}  // namespace stretto
