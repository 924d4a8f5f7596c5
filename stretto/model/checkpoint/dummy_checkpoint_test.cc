// Random weights: were they zero, not a number or all alike, what is measured with them would not
// be what a model does.
#include "stretto/model/checkpoint/dummy_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "stretto/base/errors.h"

namespace stretto::dummy_checkpoint_test {
namespace {

ModelConfig config_with(const std::string& dtype, const std::string& sizes) {
  return parse_config(
      R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 500,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "tie_word_embeddings": true, "torch_dtype": ")" +
          dtype + "\", " + sizes + "}",
      "a test");
}

const char* const kSmall = R"("hidden_size": 64, "intermediate_size": 128)";

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};

Moments moments_of(const TensorView& view) {
  Moments m;
  double squares = 0;
  auto count = view.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    double x =
        load_element(view.dtype, view.data + static_cast<std::size_t>(i) * size_bytes(view.dtype));
    m.mean += x / static_cast<double>(count);
    squares += x * x / static_cast<double>(count);
    m.largest = std::max(m.largest, std::abs(x));
  }
  m.deviation = std::sqrt(squares - m.mean * m.mean);
  return m;
}

TEST(DummyCheckpoint, HasEveryWeightOfTheConfigWithTheSpreadOfAFreshModel) {
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    SCOPED_TRACE(dtype);
    ModelConfig config = config_with(dtype, kSmall);
    Checkpoint checkpoint = dummy_checkpoint(config);
    config.check_against(checkpoint);
    for (const std::string& name : checkpoint.names()) {
      SCOPED_TRACE(name);
      const TensorView& view = checkpoint.tensor(name);
      EXPECT_EQ(view.dtype, parse_dtype(dtype));
      Moments m = moments_of(view);
      if (name.ends_with("norm.weight")) {
        EXPECT_EQ(m.mean, 1);
        EXPECT_EQ(m.deviation, 0);
      } else {
        EXPECT_NEAR(m.mean, 0, 2e-3);
        EXPECT_NEAR(m.deviation, 0.02, 2e-3);
        EXPECT_LT(m.largest, 0.036);
      }
    }
  }
}

TEST(DummyCheckpoint, ASeedGivesTheSameWeightsAndTensorsDiffer) {
  ModelConfig config = config_with("bfloat16", kSmall);
  Checkpoint a = dummy_checkpoint(config, 1), b = dummy_checkpoint(config, 1),
             c = dummy_checkpoint(config, 2);
  auto same = [](const TensorView& x, const TensorView& y) {
    return std::memcmp(x.data, y.data, std::min(x.size_bytes, y.size_bytes)) == 0;
  };
  const char* up = "model.layers.0.mlp.up_proj.weight";
  EXPECT_TRUE(same(a.tensor(up), b.tensor(up)));
  EXPECT_FALSE(same(a.tensor(up), c.tensor(up)));
  EXPECT_FALSE(same(a.tensor(up), a.tensor("model.layers.1.mlp.up_proj.weight")));
  EXPECT_FALSE(same(a.tensor(up), a.tensor("model.layers.0.mlp.gate_proj.weight")));
}

}  // namespace
}  // namespace stretto::dummy_checkpoint_test
