#include "tests/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <random>

#include "stretto/base/dtype.h"

namespace stretto {

ReferenceModel::ReferenceModel(const ReferenceConfig& config, std::uint64_t seed) : c_(config) {
  std::int64_t h = c_.hidden, q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
  add("model.embed_tokens.weight", {c_.vocab, h}, 1.0, 0, seed);
  add("model.norm.weight", {h}, 0.2, 1, seed);
  if (!c_.tied) add("lm_head.weight", {c_.vocab, h}, 2.0 / std::sqrt(h), 0, seed);
  for (int i = 0; i < c_.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i) + ".";
    std::string attention = layer + "self_attn.";
    add(layer + "input_layernorm.weight", {h}, 0.2, 1, seed);
    add(layer + "post_attention_layernorm.weight", {h}, 0.2, 1, seed);
    for (auto [name, rows] : {std::pair{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}) {
      add(attention + name + ".weight", {rows, h}, 1.5 / std::sqrt(h), 0, seed);
      if (c_.qkv_bias) add(attention + name + ".bias", {rows}, 0.7, 0, seed);
    }
    add(attention + "o_proj.weight", {h, q}, 1.5 / std::sqrt(q), 0, seed);
    if (c_.out_bias) add(attention + "o_proj.bias", {h}, 0.7, 0, seed);
    if (c_.qk_norm) {
      add(attention + "q_norm.weight", {c_.head_dim}, 0.3, 1.2, seed);
      add(attention + "k_norm.weight", {c_.head_dim}, 0.3, 1.2, seed);
    }
    if (!is_moe(i)) {
      add_mlp(dense_names(layer), c_.ffn, seed);
      continue;
    }
    add(moe_block(layer) + "gate.weight", {c_.experts, h}, 3.0 / std::sqrt(h), 0, seed);
    if (c_.choice_bias) {
      add(moe_block(layer) + "gate.e_score_correction_bias", {c_.experts}, 0.5, 0, seed);
    }
    for (int e = 0; e < c_.experts; ++e) add_mlp(expert_names(layer, e), c_.expert_ffn, seed);
  }
}

ReferenceModel::MlpNames ReferenceModel::dense_names(const std::string& layer) {
  return {layer + "mlp.gate_proj", layer + "mlp.up_proj", layer + "mlp.down_proj"};
}

std::string ReferenceModel::moe_block(const std::string& layer) const {
  return layer + (c_.model_type == "mixtral" ? "block_sparse_moe." : "mlp.");
}

ReferenceModel::MlpNames ReferenceModel::expert_names(const std::string& layer, int expert) const {
  std::string at = moe_block(layer) + "experts." + std::to_string(expert) + ".";
  if (c_.model_type == "mixtral") return {at + "w1", at + "w3", at + "w2"};
  return {at + "gate_proj", at + "up_proj", at + "down_proj"};
}

void ReferenceModel::add_mlp(const MlpNames& names, std::int64_t width, std::uint64_t seed) {
  std::int64_t h = c_.hidden;
  add(names.gate + ".weight", {width, h}, 1.5 / std::sqrt(h), 0, seed);
  add(names.up + ".weight", {width, h}, 1.5 / std::sqrt(h), 0, seed);
  add(names.down + ".weight", {h, width}, 1.5 / std::sqrt(width), 0, seed);
  if (!c_.mlp_bias) return;
  add(names.gate + ".bias", {width}, 0.7, 0, seed);
  add(names.up + ".bias", {width}, 0.7, 0, seed);
  add(names.down + ".bias", {h}, 0.7, 0, seed);
}

ReferenceModel::ReferenceModel(const ReferenceConfig& config, const Checkpoint& checkpoint)
    : c_(config) {
  for (const std::string& name : checkpoint.names()) {
    const TensorView& view = checkpoint.tensor(name);
    Weight& w = weights_[name];
    w.shape = view.shape;
    w.values.resize(static_cast<std::size_t>(view.num_elements()));
    for (std::size_t i = 0; i < w.values.size(); ++i) {
      w.values[i] =
          static_cast<float>(load_element(view.dtype, view.data + i * size_bytes(view.dtype)));
    }
  }
}

void ReferenceModel::add(const std::string& name, std::vector<std::int64_t> shape, double scale,
                         double offset, std::uint64_t seed) {
  std::mt19937_64 random(seed + std::hash<std::string>{}(name));
  std::normal_distribution<double> normal(offset, scale);
  std::size_t count = 1;
  for (std::int64_t d : shape) count *= static_cast<std::size_t>(d);
  Weight& w = weights_[name];
  w.shape = std::move(shape);
  for (std::size_t i = 0; i < count; ++i) w.values.push_back(static_cast<float>(normal(random)));
}

const std::vector<float>& ReferenceModel::weight(const std::string& name) const {
  return weights_.at(name).values;
}

ReferenceModel::Row ReferenceModel::project(const Row& x, const std::string& name,
                                            bool bias) const {
  const std::vector<float>& w = weight(name + ".weight");
  Row y(w.size() / x.size());
  for (std::size_t row = 0; row < y.size(); ++row) {
    double sum = bias ? weight(name + ".bias")[row] : 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * w[row * x.size() + i];
    y[row] = sum;
  }
  return y;
}

ReferenceModel::Row ReferenceModel::norm(const Row& x, const std::string& weight_name) const {
  const std::vector<float>& w = weight(weight_name);
  double squares = 0;
  for (double v : x) squares += v * v;
  double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + c_.eps);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * w[i];
  return y;
}

// YaRN in terms of turns t within the original positions: frequencies with t >= beta_fast stay,
// those with t <= beta_slow are divided by the factor. In between the share changes linearly with
// the index of the dimension pair; truncation moves its ends outwards to whole pairs.
double ReferenceModel::yarn_frequency(double frequency) const {
  const YarnRope& r = *c_.yarn;
  // The index at which the frequency theta^(-2 i / head_dim) has so many turns.
  auto pair_of = [&](double f) { return -std::log(f) / std::log(c_.rope_theta) * c_.head_dim / 2; };
  auto of_turns = [&](double turns) { return pair_of(turns * 2 * std::numbers::pi / r.original); };
  double first = of_turns(r.beta_fast), last = of_turns(r.beta_slow);
  if (r.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, c_.head_dim - 1.0);
  double i = std::round(pair_of(frequency));
  double stretched = i <= first ? 0 : i >= last ? 1 : (i - first) / (last - first);
  return frequency * (1 - stretched + stretched / r.factor);
}

// The half-split form: dimension i turns with dimension i + head_dim / 2.
void ReferenceModel::rotate(double* head, int position) const {
  int half = c_.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    double frequency = std::pow(c_.rope_theta, -2.0 * i / c_.head_dim);
    if (c_.llama3) {
      const Llama3Rope& r = *c_.llama3;
      double turns = r.original * frequency / (2 * std::numbers::pi);  // within the original length
      if (turns < r.low) {
        frequency /= r.factor;
      } else if (turns <= r.high) {
        double smooth = (turns - r.low) / (r.high - r.low);
        frequency *= smooth + (1 - smooth) / r.factor;
      }
    }
    double scale = 1;
    if (c_.yarn) {
      frequency = yarn_frequency(frequency);
      scale = 1 + std::log(c_.yarn->factor) / 10;
    }
    if (c_.bf16_frequencies) frequency = bf16_to_f32(f32_to_bf16(static_cast<float>(frequency)));
    double cosine = scale * std::cos(position * frequency);
    double sine = scale * std::sin(position * frequency);
    double a = head[i], b = head[i + half];
    head[i] = a * cosine - b * sine;
    head[i + half] = b * cosine + a * sine;
  }
}

void ReferenceModel::rotate_heads(Row& x, int position, const std::string& norm_name) const {
  auto dim = static_cast<std::size_t>(c_.head_dim);
  for (std::size_t at = 0; at < x.size(); at += dim) {
    auto begin = x.begin() + static_cast<std::ptrdiff_t>(at);
    if (c_.qk_norm) {
      Row normed = norm(Row(begin, begin + c_.head_dim), norm_name);
      std::copy(normed.begin(), normed.end(), begin);
    }
    rotate(&x[at], position);
  }
}

// One query row at the last position of keys and values.
ReferenceModel::Row ReferenceModel::attend(const Row& q, const std::vector<Row>& keys,
                                           const std::vector<Row>& values, int window) const {
  auto dim = static_cast<std::size_t>(c_.head_dim);
  std::size_t first = window > 0 && keys.size() > static_cast<std::size_t>(window)
                          ? keys.size() - static_cast<std::size_t>(window)
                          : 0;
  Row out(q.size(), 0.0);
  for (int head = 0; head < c_.heads; ++head) {
    std::size_t from = static_cast<std::size_t>(head) * dim;
    std::size_t kv_from = static_cast<std::size_t>(head / (c_.heads / c_.kv_heads)) * dim;
    Row weights;
    double total = 0;
    for (std::size_t t = first; t < keys.size(); ++t) {
      double score = 0;
      for (std::size_t i = 0; i < dim; ++i) score += q[from + i] * keys[t][kv_from + i];
      weights.push_back(std::exp(score / std::sqrt(c_.head_dim)));
      total += weights.back();
    }
    for (std::size_t t = first; t < keys.size(); ++t) {
      for (std::size_t i = 0; i < dim; ++i) {
        out[from + i] += weights[t - first] / total * values[t][kv_from + i];
      }
    }
  }
  return out;
}

ReferenceModel::Row ReferenceModel::mlp(const Row& x, const MlpNames& names) const {
  Row gate = project(x, names.gate, c_.mlp_bias), up = project(x, names.up, c_.mlp_bias);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
  return project(gate, names.down, c_.mlp_bias);
}

// Softmax over all experts, then the most probable ones.
bool ReferenceModel::is_moe(int layer) const {
  bool dense = std::count(c_.dense_layers.begin(), c_.dense_layers.end(), layer) > 0;
  return c_.experts > 0 && !dense && (layer + 1) % c_.moe_step == 0;
}

// The largest ones, in order; remembers how near the next one was.
std::vector<std::size_t> ReferenceModel::best(const Row& scores, int count) const {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  auto kept = static_cast<std::size_t>(count);
  if (kept < order.size()) {
    double last = scores[order[kept - 1]], next = scores[order[kept]];
    closest_choice_ = std::min(closest_choice_, (last - next) / std::abs(last));
  }
  order.resize(kept);
  return order;
}

// Experts outside the groups whose best two are largest together become the worst of all.
void ReferenceModel::forbid_groups(Row& scores) const {
  std::size_t width = scores.size() / static_cast<std::size_t>(c_.n_group);
  Row of_group;
  for (std::size_t first = 0; first < scores.size(); first += width) {
    auto begin = scores.begin() + static_cast<std::ptrdiff_t>(first);
    Row sorted(begin, begin + static_cast<std::ptrdiff_t>(width));
    std::sort(sorted.rbegin(), sorted.rend());
    of_group.push_back(sorted[0] + sorted[1]);
  }
  std::vector<std::size_t> allowed = best(of_group, c_.topk_group);
  for (std::size_t e = 0; e < scores.size(); ++e) {
    if (std::count(allowed.begin(), allowed.end(), e / width) == 0) scores[e] = -1e9;
  }
}

ReferenceModel::Row ReferenceModel::mixture(const Row& x, const std::string& layer) const {
  Row scores = project(x, moe_block(layer) + "gate", false);
  double all = 0, chosen = 0;
  for (double& v : scores) all += v = std::exp(v);
  for (double& v : scores) v = c_.sigmoid ? v / (1 + v) : v / all;
  Row by = scores;
  if (c_.choice_bias) {
    const auto& bias = weight(moe_block(layer) + "gate.e_score_correction_bias");
    for (std::size_t e = 0; e < by.size(); ++e) by[e] += bias[e];
  }
  if (c_.topk_group < c_.n_group) forbid_groups(by);
  std::vector<std::size_t> experts = best(by, c_.top_k);
  for (std::size_t expert : experts) chosen += scores[expert];
  Row sum(x.size(), 0.0);
  for (std::size_t expert : experts) {
    Row y = mlp(x, expert_names(layer, static_cast<int>(expert)));
    double share = c_.scaling * scores[expert] / (c_.normalize ? chosen : 1);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share * y[i];
  }
  return sum;
}

void ReferenceModel::run_layer(std::vector<Row>& xs, int layer_idx) const {
  std::string layer = "model.layers." + std::to_string(layer_idx) + ".";
  std::string attention = layer + "self_attn.";
  int window = layer_idx >= c_.first_sliding_layer ? c_.window : 0;
  std::vector<Row> keys, values;
  for (Row& x : xs) {
    auto position = static_cast<int>(keys.size());
    Row normed = norm(x, layer + "input_layernorm.weight");
    Row q = project(normed, attention + "q_proj", c_.qkv_bias);
    Row k = project(normed, attention + "k_proj", c_.qkv_bias);
    rotate_heads(q, position, attention + "q_norm.weight");
    rotate_heads(k, position, attention + "k_norm.weight");
    keys.push_back(std::move(k));
    values.push_back(project(normed, attention + "v_proj", c_.qkv_bias));
    Row mixed = project(attend(q, keys, values, window), attention + "o_proj", c_.out_bias);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += mixed[i];
    normed = norm(x, layer + "post_attention_layernorm.weight");
    Row down = is_moe(layer_idx) ? mixture(normed, layer) : mlp(normed, dense_names(layer));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += down[i];
  }
}

std::vector<std::vector<double>> ReferenceModel::logits(const std::vector<int>& tokens) const {
  auto hidden = static_cast<std::size_t>(c_.hidden);
  const std::vector<float>& table = weight("model.embed_tokens.weight");
  std::vector<Row> xs;
  for (int token : tokens) {
    auto at = table.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * hidden);
    xs.emplace_back(at, at + c_.hidden);
  }
  for (int i = 0; i < c_.layers; ++i) run_layer(xs, i);
  for (Row& x : xs) {
    x = project(norm(x, "model.norm.weight"), c_.tied ? "model.embed_tokens" : "lm_head", false);
  }
  return xs;
}

std::string ReferenceModel::config_json() const {
  nlohmann::json j = {
      {"model_type", c_.model_type},     {"architectures", {c_.architecture}},
      {"vocab_size", c_.vocab},          {"hidden_size", c_.hidden},
      {"intermediate_size", c_.ffn},     {"num_hidden_layers", c_.layers},
      {"num_attention_heads", c_.heads}, {"num_key_value_heads", c_.kv_heads},
      {"head_dim", c_.head_dim},         {"max_position_embeddings", c_.max_positions},
      {"rms_norm_eps", c_.eps},          {"rope_theta", c_.rope_theta},
      {"tie_word_embeddings", c_.tied},  {"torch_dtype", "float32"}};
  if (c_.llama3) {
    j["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", c_.llama3->factor},
                         {"low_freq_factor", c_.llama3->low},
                         {"high_freq_factor", c_.llama3->high}};
    j["rope_scaling"]["original_max_position_embeddings"] = static_cast<int>(c_.llama3->original);
  }
  if (c_.yarn) {
    j["rope_scaling"] = {{"rope_type", "yarn"},
                         {"factor", c_.yarn->factor},
                         {"beta_fast", c_.yarn->beta_fast},
                         {"beta_slow", c_.yarn->beta_slow},
                         {"truncate", c_.yarn->truncate},
                         {"original_max_position_embeddings", c_.yarn->original}};
  }
  if (c_.dynamic) j["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  if (c_.experts > 0) {
    j[c_.model_type == "mixtral" ? "num_local_experts" : "num_experts"] = c_.experts;
    j["num_experts_per_tok"] = c_.top_k;
    if (c_.model_type != "mixtral") {
      j["moe_intermediate_size"] = c_.expert_ffn;
      j["norm_topk_prob"] = c_.normalize;
      j["decoder_sparse_step"] = c_.moe_step;
      j["mlp_only_layers"] = c_.dense_layers;
    }
    if (c_.sigmoid) j["scoring_func"] = "sigmoid";
    if (c_.choice_bias) j["topk_method"] = "noaux_tc";
    if (c_.n_group > 1) j["n_group"] = c_.n_group;
    if (c_.n_group > 1) j["topk_group"] = c_.topk_group;
    if (c_.scaling != 1) j["routed_scaling_factor"] = c_.scaling;
  }
  if (c_.out_bias) j["attention_bias"] = true;
  if (c_.mlp_bias) j["mlp_bias"] = true;
  if (c_.window > 0) {
    j["sliding_window"] = c_.window;
    if (c_.model_type != "mistral" && c_.model_type != "mixtral") {
      j["use_sliding_window"] = true;
      j["max_window_layers"] = c_.first_sliding_layer;
    }
  }
  return j.dump();
}

void ReferenceModel::write(const TemporaryDirectory& directory) const {
  std::vector<HonestTensor> tensors;
  for (const auto& [name, w] : weights_) {
    std::string bytes(w.values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), w.values.data(), bytes.size());
    tensors.push_back({.name = name, .dtype = "F32", .shape = w.shape, .data = std::move(bytes)});
  }
  directory.write("config.json", config_json());
  directory.write("model.safetensors", safetensors_bytes(tensors));
}

}  // namespace stretto
