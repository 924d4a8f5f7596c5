#include "stretto/engine/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/model/checkpoint/dummy_checkpoint.h"

namespace stretto {
namespace {

// The tokenizer's own names of the tokens that begin and end a text; those of the model's files
// count.
void compare_special_tokens(ModelFiles& files) {
  const auto& [ids, tokenizer] = std::tie(files.generation, files.tokenizer);
  const std::string model = (files.directory / "generation_config.json, config.json").string();
  const std::string names = (files.directory / "tokenizer_config.json").string();
  settle<int>({{model + ": bos_token_id", ids.bos_token_id},
               {names + ": the id of bos_token", tokenizer.bos_id()}},
              files.warnings);
  if (ids.eos_token_ids.empty() || !tokenizer.eos_id()) return;
  settle<std::vector<int>>({{model + ": eos_token_id", ids.eos_token_ids},
                            {names + ": the id of eos_token", std::vector{*tokenizer.eos_id()}}},
                           files.warnings, [](const auto& taken, const auto& other) {
                             return std::find(taken.begin(), taken.end(), other.front()) !=
                                    taken.end();
                           });
}

// Tokens added to a tokenizer whose model did not grow with it. Texts without them are none the
// worse; check_tokens refuses the others.
void compare_vocabularies(ModelFiles& files) {
  if (files.tokenizer.id_limit() <= files.config.vocab_size) return;
  files.warnings.push_back(
      fmt::format("{}: vocab_size is {}, but {} has ids up to {}; texts with tokens beyond the "
                  "vocabulary are refused",
                  files.config.where, files.config.vocab_size,
                  (files.directory / "tokenizer.json").string(), files.tokenizer.id_limit() - 1));
}

}  // namespace

ModelFiles::ModelFiles(const std::filesystem::path& path, LoadFormat format)
    : directory(path),
      config(read_config(directory)),
      generation(read_generation_config(directory, config)),
      tokenizer(Tokenizer::load(directory)),
      checkpoint(format == LoadFormat::kDummy ? dummy_checkpoint(config) : Checkpoint(directory)) {
  // Random weights are never stored as e4m3.
  if (format == LoadFormat::kDummy && config.has_fp8_products()) {
    config.product_weights = ProductWeights::kFp8Made;
  }
  config.settle_with(checkpoint);
  compare_special_tokens(*this);
  compare_vocabularies(*this);
  for (const Warnings& told :
       {config.warnings, generation.warnings, tokenizer.warnings(), checkpoint.warnings()}) {
    warnings.insert(warnings.end(), told.begin(), told.end());
  }
}

DType activation_dtype(const std::string& text, const ModelConfig& config) {
  DType dtype = text == "auto" ? config.dtype.value_or(DType::kF32) : parse_dtype(text);
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    throw UserError(
        fmt::format("dtype {}: a model runs in float32, bfloat16 or float16", name(dtype)));
  }
  return dtype;
}

}  // namespace stretto
