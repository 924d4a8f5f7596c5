// What config.json and the tensors beside it both tell. Losing any of this, one of two tellings
// would be taken without a word.
#include <gtest/gtest.h>

#include "stretto/base/json.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/model/checkpoint/test_files.h"

namespace stretto::settled_test {
namespace {

Json small_config(const Json& more = {}) {
  Json config = {{"model_type", "llama"},    {"vocab_size", 10},
                 {"hidden_size", 8},         {"intermediate_size", 12},
                 {"num_hidden_layers", 1},   {"num_attention_heads", 2},
                 {"num_key_value_heads", 1}, {"tie_word_embeddings", true}};
  for (const auto& [key, value] : more.items()) config[key] = value;
  return config;
}

// A directory with that config and the weights it implies, each in the dtype that `dtype_of` says.
class Settled {
 public:
  template <typename DTypeOf>
  Settled(const Json& config, DTypeOf dtype_of) {
    dir_.write("config.json", config.dump());
    std::vector<HonestTensor> tensors;
    read_config(dir_.path()).for_each_weight([&](const std::string& name, const auto& shape) {
      std::string dtype = dtype_of(name);
      std::size_t bytes = dtype == "F32" ? 4 : 2;
      for (std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
      tensors.push_back({name, dtype, shape, std::string(bytes, 'x')});
    });
    dir_.write("model.safetensors", safetensors_bytes(tensors));
    Checkpoint checkpoint(dir_.path());
    config_ = read_config(dir_.path());
    config_.settle_with(checkpoint);
  }
  const ModelConfig& operator*() const { return config_; }
  const ModelConfig* operator->() const { return &config_; }

 private:
  TemporaryDirectory dir_;
  ModelConfig config_;
};

// As huggingface/transformers#34743 and #36686: which of the two counts must not be a surprise.
TEST(Settled, DtypeOfConfigAndTensors) {
  const std::pair<const char*, const char*> kSpellings[] = {
      {"float32", "F32"}, {"float16", "F16"}, {"bfloat16", "BF16"}};
  for (const auto& [told, told_stored] : kSpellings) {
    for (const auto& [other, stored] : kSpellings) {
      SCOPED_TRACE(std::string(told) + " beside " + stored);
      Settled model(small_config({{"dtype", told}}), [&](const auto&) { return stored; });
      EXPECT_EQ(name(*model->dtype), told);
      if (std::string(told) == other) {
        EXPECT_TRUE(model->warnings.empty());
        continue;
      }
      ASSERT_EQ(model->warnings.size(), 1u);
      for (const std::string& part : {std::string("config.json: dtype is ") + told,
                                      std::string("dtype of most weights is ") + other}) {
        EXPECT_NE(model->warnings[0].find(part), std::string::npos) << model->warnings[0];
      }
    }
  }
}

TEST(Settled, WithoutDtypeTheWeightsTell) {
  Settled model(small_config(), [](const auto&) { return "BF16"; });
  EXPECT_EQ(model->dtype, DType::kBF16);
  EXPECT_TRUE(model->warnings.empty());
}

TEST(Settled, WiderNormsContradictNothing) {
  const auto dtype_of = [](const std::string& name) {
    return name.ends_with("norm.weight") ? "F32" : "BF16";
  };
  Settled model(small_config({{"dtype", "bfloat16"}}), dtype_of);
  EXPECT_TRUE(model->warnings.empty());
}

}  // namespace
}  // namespace stretto::settled_test
