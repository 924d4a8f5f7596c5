// The list of weights that a config implies, and its comparison with a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"
#include "stretto/model/checkpoint/config.h"

namespace stretto {
namespace {

using Shape = std::vector<std::int64_t>;
using Visit = ModelConfig::VisitShape;

constexpr const char* kChoiceBias = "gate.e_score_correction_bias";

void visit_attention(const ModelConfig& c, const std::string& prefix, const Visit& visit) {
  std::int64_t q = c.num_heads * c.head_dim;
  std::int64_t kv = c.num_kv_heads * c.head_dim;
  for (auto [name, rows] : {std::pair{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}) {
    visit(prefix + name + ".weight", {rows, c.hidden_size});
    if (c.qkv_bias) visit(prefix + name + ".bias", {rows});
  }
  visit(prefix + "o_proj.weight", {c.hidden_size, q});
  if (c.out_bias) visit(prefix + "o_proj.bias", {c.hidden_size});
  if (c.traits->qk_norm) {
    visit(prefix + "q_norm.weight", {c.head_dim});
    visit(prefix + "k_norm.weight", {c.head_dim});
  }
}

void visit_dense_mlp(const ModelConfig& c, const std::string& prefix, const Visit& visit) {
  for (const char* name : {"gate_proj", "up_proj"}) {
    visit(prefix + name + ".weight", {c.intermediate_size, c.hidden_size});
    if (c.mlp_bias) visit(prefix + name + ".bias", {c.intermediate_size});
  }
  visit(prefix + "down_proj.weight", {c.hidden_size, c.intermediate_size});
  if (c.mlp_bias) visit(prefix + "down_proj.bias", {c.hidden_size});
}

void visit_experts(const ModelConfig& c, const std::string& layer, const Visit& visit) {
  MoeNames names = moe_names(c.traits->family);
  std::string prefix = layer + names.block + ".";
  std::int64_t width = c.moe->intermediate_size;
  visit(prefix + "gate.weight", {c.moe->num_experts, c.hidden_size});
  if (c.moe->choice_bias) visit(prefix + kChoiceBias, {c.moe->num_experts});
  for (std::int64_t expert = 0; expert < c.moe->num_experts; ++expert) {
    std::string at = fmt::format("{}experts.{}.", prefix, expert);
    visit(at + names.gate + ".weight", {width, c.hidden_size});
    visit(at + names.up + ".weight", {width, c.hidden_size});
    visit(at + names.down + ".weight", {c.hidden_size, width});
  }
}

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// Tensors that older exporters wrote and that no computation needs.
bool is_leftover(const ModelConfig& c, const std::string& name) {
  for (const char* tail : {"inv_freq", "cos_cached", "sin_cached"}) {
    if (name.ends_with(std::string(".rotary_emb.") + tail)) return true;
  }
  return name.ends_with(".self_attn.masked_bias") || (c.tie_word_embeddings && name == kHead);
}

// The same shape and the same numbers, in whatever dtype each has them.
bool same_values(const TensorView& a, const TensorView& b) {
  if (a.shape != b.shape) return false;
  if (a.dtype == b.dtype) return std::memcmp(a.data, b.data, a.size_bytes) == 0;
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    auto at = static_cast<std::size_t>(i);
    if (load_element(a.dtype, a.data + at * size_bytes(a.dtype)) !=
        load_element(b.dtype, b.data + at * size_bytes(b.dtype))) {
      return false;
    }
  }
  return true;
}

// What most of the weights are stored in, counted by their elements: norms and routers may be
// wider, and weights of e4m3 do not count.
DType stored_dtype(const Checkpoint& checkpoint, bool fp8) {
  std::map<DType, std::int64_t> elements;
  for (const std::string& name : checkpoint.names()) {
    if (fp8 && (is_product_weight(name) || is_scales(name))) continue;
    const TensorView& view = checkpoint.tensor(name);
    elements[view.dtype] += view.num_elements();
  }
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// A damaged scale would make every product of its block meaningless.
void check_scales(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView& view = checkpoint.tensor(name);
  for (std::int64_t i = 0; i < view.num_elements(); ++i) {
    double scale =
        load_element(view.dtype, view.data + static_cast<std::size_t>(i) * size_bytes(view.dtype));
    if (std::isfinite(scale) && scale >= 0) continue;
    throw UserError(fmt::format(
        "{}: tensor '{}': the scale of block {}, {} is {}, need a finite "
        "number that is not negative",
        checkpoint.directory().string(), name, i / view.shape[1], i % view.shape[1], scale));
  }
}

}  // namespace

MoeNames moe_names(Family family) {
  if (family == Family::kMixtral) {
    return {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  }
  return {.block = "mlp", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};
}

bool is_choice_bias(std::string_view weight_name) { return weight_name.ends_with(kChoiceBias); }

void ModelConfig::for_each_weight(const VisitShape& visit) const {
  const ModelConfig& c = *this;
  visit(kEmbedding, {c.vocab_size, c.hidden_size});
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    std::string layer = fmt::format("model.layers.{}.", i);
    visit(layer + "input_layernorm.weight", {c.hidden_size});
    visit_attention(c, layer + "self_attn.", visit);
    visit(layer + "post_attention_layernorm.weight", {c.hidden_size});
    if (c.layers[i].moe) {
      visit_experts(c, layer, visit);
    } else {
      visit_dense_mlp(c, layer + "mlp.", visit);
    }
  }
  visit("model.norm.weight", {c.hidden_size});
  if (!c.tie_word_embeddings) visit(kHead, {c.vocab_size, c.hidden_size});
}

void ModelConfig::settle_with(Checkpoint& checkpoint) {
  if (tie_word_embeddings && checkpoint.contains(kHead)) {
    if (!checkpoint.contains(kEmbedding)) {
      checkpoint.also_known_as(kHead, kEmbedding);  // of the two names of one matrix, this was kept
    } else if (!same_values(checkpoint.tensor(kEmbedding), checkpoint.tensor(kHead))) {
      tie_word_embeddings = false;
      warnings.push_back(
          fmt::format("{}: tie_word_embeddings is true, but {} has a '{}' that is not '{}'; the "
                      "tensor is taken",
                      where, checkpoint.directory().string(), kHead, kEmbedding));
    }
  }
  check_against(checkpoint);
  settle_unlisted(checkpoint, explained_weights(checkpoint));
  for (const std::string& name : checkpoint.names()) {
    if (is_leftover(*this, name)) checkpoint.drop(name);
  }
  settle_dtype(checkpoint);
}

// The config's word counts, as in transformers and vLLM; without it the weights' own.
void ModelConfig::settle_dtype(const Checkpoint& checkpoint) {
  const DType stored = stored_dtype(checkpoint, product_weights == ProductWeights::kFp8Stored);
  const auto told = [](DType dtype) { return std::string(name(dtype)); };
  settle<std::string>(
      {{where + ": dtype", dtype ? std::optional(told(*dtype)) : std::nullopt},
       {checkpoint.directory().string() + ": the dtype of most weights", told(stored)}},
      warnings);
  if (!dtype) dtype = stored;
}

void ModelConfig::settle_unlisted(Checkpoint& checkpoint, const std::set<std::string>& explained) {
  std::vector<std::string> taken;
  for (const std::string& name : checkpoint.names()) {
    if (!checkpoint.is_unlisted(name)) continue;
    explained.contains(name) ? taken.push_back(name) : checkpoint.drop(name);
  }
  if (taken.empty()) return;
  warnings.push_back(fmt::format(
      "{}: model.safetensors.index.json does not list {}, but a shard has {}; {} taken",
      checkpoint.directory().string(),
      taken.size() == 1 ? fmt::format("'{}'", taken[0])
                        : fmt::format("'{}' and {} more weights", taken[0], taken.size() - 1),
      taken.size() == 1 ? "it" : "them", taken.size() == 1 ? "it is" : "they are"));
}

void ModelConfig::check_against(const Checkpoint& checkpoint) const {
  std::set<std::string> explained = explained_weights(checkpoint);
  for (const std::string& name : checkpoint.names()) {
    if (explained.contains(name) || checkpoint.is_unlisted(name) || is_leftover(*this, name)) {
      continue;
    }
    throw UserError(fmt::format("{}: tensor '{}': not part of the model that {} describes",
                                checkpoint.directory().string(), printable(name), where));
  }
}

std::set<std::string> ModelConfig::explained_weights(const Checkpoint& checkpoint) const {
  std::string directory = checkpoint.directory().string();
  // The first missing weight ends the walk, so that its length is bounded by the tensors present.
  std::set<std::string> explained;
  auto explain = [&](const std::string& name, const Shape& shape, bool fp8) {
    if (!checkpoint.contains(name)) {
      throw UserError(fmt::format("{}: tensor '{}': missing, {} implies it with shape {}",
                                  directory, name, where, to_string(shape)));
    }
    const TensorView& found = fp8 ? checkpoint.fp8_tensor(name) : checkpoint.tensor(name);
    if (found.shape != shape) {
      throw UserError(fmt::format("{}: tensor '{}': expected shape {} ({}), found {}", directory,
                                  name, to_string(shape), where, to_string(found.shape)));
    }
    explained.insert(name);
  };
  for_each_weight([&](const std::string& name, const Shape& shape) {
    const bool fp8 = product_weights == ProductWeights::kFp8Stored && is_product_weight(name);
    explain(name, shape, fp8);
    if (!fp8) return;
    const std::string scales = scales_name(name);
    auto blocks = [](std::int64_t size) { return (size + kWeightBlock - 1) / kWeightBlock; };
    explain(scales, {blocks(shape[0]), blocks(shape[1])}, false);
    check_scales(checkpoint, scales);
  });
  return explained;
}

}  // namespace stretto
