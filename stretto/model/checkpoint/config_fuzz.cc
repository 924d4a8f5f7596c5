// libFuzzer: arbitrary bytes as config.json, generation_config.json read twice, or a shard index,
// chosen by the first byte.
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/model/checkpoint/checkpoint.h"
#include "stretto/model/checkpoint/generation_config.h"

namespace {

void check_config(std::string_view text) {
  stretto::ModelConfig config = stretto::parse_config(text, "fuzz");
  bool sane = config.vocab_size > 0 && config.hidden_size > 0 && config.num_layers() > 0 &&
              config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0 &&
              config.head_dim > 0 && config.head_dim % 2 == 0 &&
              (!config.moe || config.moe->experts_per_token <= config.moe->num_experts);
  if (!sane) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  stretto::ModelConfig model;
  model.vocab_size = 1000;
  try {
    switch (data[0] % 4) {
      case 0:
        check_config(text);
        break;
      case 1:
        stretto::parse_generation_config(text, "fuzz", model);
        break;
      case 2:
        stretto::parse_shard_index(text, "fuzz");
        break;
      default:
        stretto::parse_sampling_defaults(text, "fuzz");
    }
  } catch (const stretto::UserError&) {
  }
  return 0;
}
