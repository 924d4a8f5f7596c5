// What config.json says about a model, in one form for all families and for the older and newer
// spellings. Parsed before any weight is touched; check_against() then compares it with the tensors
// of the checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/sources.h"
#include "stretto/model/checkpoint/checkpoint.h"

namespace stretto {

enum class Family { kLlama, kMistral, kQwen2, kQwen3, kMixtral, kQwen3Moe };

// Where a family takes a yes or no from.
enum class Knob { kNever, kAlways, kFromConfig };

// Which layers attend to a window when `sliding_window` is set and `layer_types` does not say.
enum class WindowRule {
  kNone,          // the family knows no window
  kAllLayers,     // every layer
  kUpperIfAsked,  // with use_sliding_window: layers from max_window_layers on
  kAllIfAsked,    // with use_sliding_window: every layer
};

// What distinguishes a family. All of them are pre-norm decoders with RMSNorm, rotary embedding,
// grouped-query attention and SwiGLU.
struct FamilyTraits {
  Family family;
  const char* model_type;    // as in config.json
  const char* architecture;  // as in config.json
  Knob qkv_bias;             // kFromConfig: attention_bias
  Knob out_bias;             // o_proj's; kFromConfig: attention_bias
  Knob mlp_bias;             // kFromConfig: mlp_bias
  bool qk_norm;              // RMSNorm over each head of q and k before the rotary embedding
  WindowRule window;
  bool moe;
  std::int64_t default_head_dim;  // 0: hidden_size / num_attention_heads
  double default_rope_theta;
  // What an absent field means, as in transformers. A field that is null means none: as many
  // key-value heads as heads, no window.
  std::int64_t default_kv_heads = 0;  // 0: as many as heads
  std::int64_t default_max_positions;
  std::int64_t default_window = 0;  // where the family's rule has one in force
  double default_rms_norm_eps;
};

struct RopeConfig {
  // kDynamic (NTK) changes frequencies beyond max_position_embeddings only, which no run exceeds:
  // up to there they are those of kDefault.
  enum class Type { kDefault, kLinear, kDynamic, kYarn, kLlama3 };
  Type type = Type::kDefault;
  double theta = 10000.0;
  double factor = 1.0;  // kLinear, kYarn, kLlama3
  // kLlama3 only: wavelengths (in positions) above original / low_freq_factor are stretched by
  // `factor`, those below original / high_freq_factor stay, those between are interpolated.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // kYarn only: dimensions that turn more than beta_fast times within the original positions stay,
  // those that turn less than beta_slow times are stretched by `factor`, those between are blended,
  // from a whole dimension to a whole one where `truncate` is set. Cosines and sines are multiplied
  // by attention_factor.
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 1.0;
  std::int64_t original_max_position_embeddings = 0;  // kLlama3, kYarn
  // The inverse frequencies, rescaled, are rounded to this before they meet a position.
  DType frequency_dtype = DType::kF32;
};

struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t intermediate_size = 0;  // one expert's
  bool normalize_weights = true;       // the chosen experts' weights are rescaled to sum to 1
  // Where config.json asks for routing as DeepSeek does (ops/moe/route.h has the papers).
  bool sigmoid_scores = false;  // else softmax
  bool choice_bias = false;     // a weight, added to scores to choose by
  std::int64_t num_groups = 1, groups_per_token = 1;
  bool groups_by_best_two = false;  // else by the best expert of each
  double weight_scale = 1;
};

// How a family spells the weights of a mixture: <block>.gate, <block>.experts.<i>.<gate|up|down>.
struct MoeNames {
  const char *block, *gate, *up, *down;
};
MoeNames moe_names(Family family);
// What MoeConfig::choice_bias adds, <block>.gate.e_score_correction_bias, is kept in float32.
bool is_choice_bias(std::string_view weight_name);

// How the weights of the layers' products are kept: attention's and the MLPs' or experts', but for
// biases. All others (embedding, head, norms, routers) are kept as they are stored.
enum class ProductWeights {
  kStored,     // as all others
  kFp8Stored,  // e4m3, and beside each weight one with the scales of its blocks: scales_name()
  kFp8Made,    // stored as all others; ranks make e4m3 of their shares as they load them
};
// Both sides of a block of weights that share a scale.
inline constexpr std::int64_t kWeightBlock = 128;
// Whether a name that for_each_weight() gives is such a weight's: "...o_proj.weight".
bool is_product_weight(std::string_view weight_name);
std::string scales_name(std::string_view weight_name);  // "...o_proj.weight_scale_inv"
bool is_scales(std::string_view tensor_name);

struct LayerConfig {
  std::int64_t window = 0;  // keys a query sees, itself included; 0: all before it
  bool moe = false;         // this layer's MLP is a mixture of experts
};

struct ModelConfig {
  const FamilyTraits* traits = nullptr;  // static
  std::string where;                     // the file, for errors

  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even
  std::int64_t max_positions = 0;
  double rms_norm_eps = 0;
  RopeConfig rope;
  std::vector<LayerConfig> layers;
  std::optional<MoeConfig> moe;

  ProductWeights product_weights = ProductWeights::kStored;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;

  // What activations are computed in, unless the user says otherwise: the file's word or, once
  // settle_with() has seen them, what most weights are stored in.
  std::optional<DType> dtype;
  std::optional<int> bos_token_id;
  std::vector<int> eos_token_ids;
  Warnings warnings;  // what the file tells twice, and differently

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }

  bool has_fp8_products() const { return product_weights != ProductWeights::kStored; }

  // Every weight that this config implies, in the order of the model, but for scales.
  using VisitShape =
      std::function<void(const std::string& name, const std::vector<std::int64_t>& shape)>;
  void for_each_weight(const VisitShape& visit) const;
  // Where config and tensors tell the same, the tensors count, as in transformers: a head beside a
  // tied embedding stays when it is another matrix, and stands for an embedding that is not there.
  // Weights that an index does not list are taken. Tensors that no computation needs are dropped;
  // what remains is checked as below. Comes once, before the weights are loaded.
  void settle_with(Checkpoint& checkpoint);
  // UserError naming tensor, expected and found shape when a weight is missing, has another shape
  // or dtype, or is there although this config does not explain it.
  void check_against(const Checkpoint& checkpoint) const;

 private:
  std::set<std::string> explained_weights(const Checkpoint& checkpoint) const;
  void settle_unlisted(Checkpoint& checkpoint, const std::set<std::string>& explained);
  void settle_dtype(const Checkpoint& checkpoint);
};

// UserError naming `where`, the field and the values allowed.
ModelConfig parse_config(std::string_view text, const std::string& where);
// config.json of a model directory.
ModelConfig read_config(const std::filesystem::path& directory);

// "auto" keeps weights as the checkpoint has them; "fp8" makes the products' e4m3 at loading, where
// they are not yet. UserError for another word.
void set_weights(ModelConfig& config, std::string_view choice);

// "exact" keeps the rotary frequencies in f32, as loading a checkpoint does; "checkpoint-dtype"
// rounds them to `config.dtype`, as casting a whole model does. UserError for another word, or when
// the config names no dtype. Why there is a choice:
// docs/decisions/0004-rotary-frequency-rounding.md
void set_rope_frequencies(ModelConfig& config, std::string_view choice);

}  // namespace stretto
