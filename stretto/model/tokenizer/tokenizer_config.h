// tokenizer_config.json beside tokenizer.json: names of special tokens, and what both files tell.
// Private to tokenizer.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/sources.h"
#include "stretto/model/tokenizer/added_tokens.h"
#include "stretto/model/tokenizer/json_node.h"

namespace stretto::tokenization {

inline constexpr int kText = -1;  // the place of a text among ids

// The special token of this name ("bos_token"): a string, or an object with its `content`.
std::optional<std::string> configured_token(const JsonNode& config, const char* name);

// What tokenizer.json says.
struct LoadedTokenizer {
  std::string file;
  std::function<std::optional<int>(std::string_view)> id_of;
  const AddedTokens* added;
  std::vector<int> around;  // the ids that are put around a text, kText in its place
};

// Where tokenizer_config.json tells something else than tokenizer.json, which counts.
Warnings compare_with_config(const JsonNode& config, const LoadedTokenizer& loaded);

// Where special_tokens_map.json, which is read for this alone, names another token than
// tokenizer_config.json.
Warnings compare_names(const JsonNode& config, const JsonNode& map);

}  // namespace stretto::tokenization
