// What generation_config.json recommends: where to stop and how to sample. Read after config.json,
// whose special tokens stand in where this file is absent or silent; the command line overrides all
// of it. How to sample is read, and checked, only by those who follow it: a model that is loaded
// for its greedy text need not have a sane top_p.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/model/checkpoint/config.h"

namespace stretto {

struct GenerationConfig {
  std::optional<int> bos_token_id;
  std::vector<int> eos_token_ids;  // any of them ends a text; may be empty
  Warnings warnings;               // tokens that config.json tells differently
};

// Absent fields stay nullopt: whoever samples knows its own defaults.
struct SamplingDefaults {
  std::optional<double> temperature;  // 0..1000
  std::optional<std::int64_t> top_k;  // 0: off, which files also spell -1
  std::optional<double> top_p;        // 0..1
  std::optional<double> min_p;        // 0..1
  std::optional<double> repetition_penalty;
};

// UserError naming `where`, the field and the values allowed; token ids must lie inside the model's
// vocabulary.
GenerationConfig parse_generation_config(std::string_view text, const std::string& where,
                                         const ModelConfig& model);
SamplingDefaults parse_sampling_defaults(std::string_view text, const std::string& where);

// generation_config.json of a model directory, or what config.json says when there is none.
GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const ModelConfig& model);
SamplingDefaults read_sampling_defaults(const std::filesystem::path& directory);

}  // namespace stretto
