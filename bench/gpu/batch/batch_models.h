// What gpu_batch is told by name: shapes of models, as config.json has them.
#pragma once

#include <algorithm>
#include <string>

#include "stretto/model/checkpoint/config.h"

namespace stretto::bench {

inline constexpr const char* kLlama8b =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 128000,
  "eos_token_id": 128001})";
inline constexpr const char* kLlama70b =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 128000,
  "eos_token_id": 128001})";

inline constexpr const char* kQwen3Experts =
    R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
  "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
  "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645})";

// Of a name or of a folder with a config.json; its first `layers`, or all: 0.
inline ModelConfig model_config(const std::string& name, int layers) {
  ModelConfig c = name == "llama-3-8b"        ? parse_config(kLlama8b, name)
                  : name == "llama-3-70b"     ? parse_config(kLlama70b, name)
                  : name == "qwen3-30b-a3b"   ? parse_config(kQwen3Experts, name)
                                              : read_config(name);
  if (layers > 0) c.layers.resize(std::min(c.layers.size(), static_cast<std::size_t>(layers)));
  return c;
}

}  // namespace stretto::bench
