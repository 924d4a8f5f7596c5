// A decoder-only transformer as plain loops in fp64, and random checkpoints for it: what the engine
// is compared with on the families that no bundled checkpoint covers. Shares no code with the
// engine: it writes config.json and model.safetensors, which the engine reads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/model/checkpoint/checkpoint.h"
#include "stretto/model/checkpoint/test_files.h"

namespace stretto {

struct Llama3Rope {
  double factor = 8, low = 1, high = 4, original = 32;
};

struct YarnRope {
  double factor = 4, beta_fast = 3, beta_slow = 0.5;
  int original = 32;
  bool truncate = true;
};

struct ReferenceConfig {
  std::string model_type = "llama", architecture = "LlamaForCausalLM";
  int vocab = 61, hidden = 40, ffn = 56, layers = 2, heads = 6, kv_heads = 2, head_dim = 8;
  int max_positions = 128;
  double eps = 1e-5, rope_theta = 50;
  std::optional<Llama3Rope> llama3;
  std::optional<YarnRope> yarn;
  bool dynamic = false;  // a rotary type that changes nothing within max_positions
  bool qkv_bias = false, out_bias = false, mlp_bias = false, qk_norm = false, tied = false;
  // The inverse frequencies of the rotary embedding rounded to bfloat16, as some frameworks leave
  // them when a whole model is cast.
  bool bf16_frequencies = false;
  // A mixture of experts in every moe_step-th layer; 0 experts: none.
  int experts = 0, top_k = 2, expert_ffn = 24, moe_step = 1;
  std::vector<int> dense_layers;  // without one all the same
  bool normalize = true;
  // Routing as DeepSeek asks for it: sigmoid instead of softmax, a bias to choose by, experts
  // within topk_group of n_group groups, by their best two, and weights multiplied in the end.
  bool sigmoid = false, choice_bias = false;
  int n_group = 1, topk_group = 1;
  double scaling = 1;
  // Window of the layers from first_sliding_layer on; 0: none.
  int window = 0, first_sliding_layer = 0;
};

class ReferenceModel {
 public:
  // Random weights of a size that keeps logits and attention scores away from both ends.
  ReferenceModel(const ReferenceConfig& config, std::uint64_t seed);

  // The weights of a checkpoint that `config` describes.
  ReferenceModel(const ReferenceConfig& config, const Checkpoint& checkpoint);

  void write(const TemporaryDirectory& directory) const;
  // Logits after every token, [tokens][vocab].
  std::vector<std::vector<double>> logits(const std::vector<int>& tokens) const;
  // How near any choice of experts so far was to another one: the smallest relative gap between the
  // last chosen expert and the first that was not.
  double closest_choice() const { return closest_choice_; }

 private:
  using Row = std::vector<double>;
  struct MlpNames {
    std::string gate, up, down;
  };

  void add(const std::string& name, std::vector<std::int64_t> shape, double scale, double offset,
           std::uint64_t seed);
  void add_mlp(const MlpNames& names, std::int64_t width, std::uint64_t seed);
  bool is_moe(int layer) const;
  std::string moe_block(const std::string& layer) const;
  MlpNames expert_names(const std::string& layer, int expert) const;
  static MlpNames dense_names(const std::string& layer);
  const std::vector<float>& weight(const std::string& name) const;
  Row project(const Row& x, const std::string& name, bool bias) const;
  Row norm(const Row& x, const std::string& weight_name) const;
  double yarn_frequency(double frequency) const;
  void rotate(double* head, int position) const;
  void rotate_heads(Row& x, int position, const std::string& norm_name) const;
  Row attend(const Row& q, const std::vector<Row>& keys, const std::vector<Row>& values,
             int window) const;
  Row mlp(const Row& x, const MlpNames& names) const;
  std::vector<std::size_t> best(const Row& scores, int count) const;
  void forbid_groups(Row& scores) const;
  Row mixture(const Row& x, const std::string& layer) const;
  void run_layer(std::vector<Row>& xs, int layer) const;
  std::string config_json() const;

  ReferenceConfig c_;
  mutable double closest_choice_ = 1;
  struct Weight {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Weight> weights_;
};

}  // namespace stretto
