// Losing any of this, a model directory with a wrong or missing shard would load and speak
// nonsense.
#include "stretto/model/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "stretto/base/test_errors.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/model/checkpoint/generation_config.h"
#include "stretto/model/checkpoint/test_files.h"

namespace stretto::checkpoint_test {
namespace {

// Two shards and their index; tests break one thing.
class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    dir_.write("s1.safetensors",
               safetensors_bytes({{"a", "F32", {1}, "aaaa"}, {"b", "BF16", {2}, "bbbb"}}));
    dir_.write("s2.safetensors",
               safetensors_bytes({{"ids", "I64", {1}, "iiiiiiii"}, {"c", "F16", {1, 2}, "cccc"}}));
    index(
        R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors","ids":"s2.safetensors"})");
  }
  void index(const std::string& weight_map) {
    dir_.write("model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":1},\"weight_map\":" + weight_map + "}");
  }
  void refuse_checkpoint(const std::vector<std::string>& parts) {
    expect_user_error([&] { Checkpoint checkpoint(dir_.path()); }, parts);
  }
  TemporaryDirectory dir_;
};

TEST_F(Sharded, ShardsAreOneSetOfTensors) {
  Checkpoint opened(dir_.path());
  Checkpoint checkpoint = std::move(opened);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c", "ids"}));
  EXPECT_TRUE(checkpoint.contains("b"));
  EXPECT_FALSE(checkpoint.contains("d"));
  EXPECT_EQ(std::memcmp(checkpoint.tensor("a").data, "aaaa", 4), 0);
  EXPECT_EQ(checkpoint.tensor("b").dtype, DType::kBF16);
  EXPECT_EQ(checkpoint.tensor("c").shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(std::memcmp(checkpoint.tensor("c").data, "cccc", 4), 0);
  expect_user_error([&] { checkpoint.tensor("d"); },
                    {dir_.path().string(), "tensor 'd'", "missing"});
  expect_user_error([&] { checkpoint.tensor("ids"); },
                    {"tensor 'ids'", "int64", "need float32, float16 or bfloat16"});
}

TEST_F(Sharded, ASingleFileGoesFirst) {
  dir_.write("model.safetensors", safetensors_bytes({{"only", "F32", {1}, "1234"}}));
  EXPECT_EQ(Checkpoint(dir_.path()).names(), (std::vector<std::string>{"only"}));
}

TEST_F(Sharded, MissingShard) {
  std::filesystem::remove(dir_.path() / "s2.safetensors");
  refuse_checkpoint({"model.safetensors.index.json", "weight_map", "'s2.safetensors' is missing"});
}

TEST_F(Sharded, TruncatedShard) {
  std::filesystem::resize_file(dir_.path() / "s2.safetensors", 100);
  refuse_checkpoint({"s2.safetensors", "header length"});
}

TEST_F(Sharded, TensorListedInAShardThatLacksIt) {
  index(
      R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s1.safetensors","ids":"s2.safetensors"})");
  refuse_checkpoint({"s1.safetensors", "tensor 'c'", "not there"});
  index(R"({"a":"s1.safetensors","nowhere":"s1.safetensors","c":"s2.safetensors"})");
  refuse_checkpoint({"s1.safetensors", "tensor 'nowhere'", "not there"});
}

TEST_F(Sharded, NameInTwoShards) {
  dir_.write("s2.safetensors",
             safetensors_bytes({{"a", "F32", {1}, "xxxx"}, {"c", "F16", {2}, "cccc"}}));
  index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  refuse_checkpoint({"s2.safetensors", "tensor 'a'", "is also in", "s1.safetensors", "differs"});
  dir_.write("s2.safetensors",
             safetensors_bytes({{"a", "I32", {1}, "aaaa"}, {"c", "F16", {2}, "cccc"}}));
  refuse_checkpoint({"s2.safetensors", "tensor 'a'", "differs"});
  index(R"({"a":"s1.safetensors","c":"s2.safetensors","a":"s2.safetensors"})");
  refuse_checkpoint({"index.json", "duplicate key 'a'"});
}

// As savers of shared tensors leave them; it does not matter which of the two the index means.
TEST_F(Sharded, TheSameTensorInTwoShards) {
  dir_.write("s2.safetensors",
             safetensors_bytes({{"a", "F32", {1}, "aaaa"}, {"c", "F16", {2}, "cccc"}}));
  for (const char* shard : {"s1", "s2"}) {
    index(std::string(R"({"b":"s1.safetensors","c":"s2.safetensors","a":")") + shard +
          ".safetensors\"}");
    Checkpoint checkpoint(dir_.path());
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(std::memcmp(checkpoint.tensor("a").data, "aaaa", 4), 0);
  }
}

TEST_F(Sharded, TensorsThatTheIndexDoesNotList) {
  index(R"({"a":"s1.safetensors","c":"s2.safetensors"})");
  Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c", "ids"}));
  EXPECT_FALSE(checkpoint.is_unlisted("a"));
  EXPECT_TRUE(checkpoint.is_unlisted("b") && checkpoint.is_unlisted("ids"));
  EXPECT_EQ(std::memcmp(checkpoint.tensor("b").data, "bbbb", 4), 0);
  checkpoint.drop("ids");
  EXPECT_FALSE(checkpoint.contains("ids") || checkpoint.is_unlisted("ids"));
}

TEST_F(Sharded, AnAdapterBesideTheWeightsIsTold) {
  EXPECT_TRUE(Checkpoint(dir_.path()).warnings().empty());
  dir_.write("adapter_config.json", "{}");
  Checkpoint checkpoint(dir_.path());
  ASSERT_EQ(checkpoint.warnings().size(), 1u);
  EXPECT_NE(checkpoint.warnings()[0].find("adapter_config.json"), std::string::npos);
}

TEST_F(Sharded, ShardNamesThatLeaveTheDirectory) {
  for (const char* name : {"../s1.safetensors", "/etc/s1.safetensors", "x/s1.safetensors", "..", "",
                           ".", ".hidden.safetensors", "s1.bin", "..\\\\s1.safetensors",
                           "s\\u00001.safetensors", "s\\n1.safetensors"}) {
    index(std::string("{\"a\":\"") + name + "\"}");
    refuse_checkpoint({"index.json", "weight_map", "tensor 'a'", "same directory"});
  }
  index("{\"a\":\"" + std::string(300, 's') + ".safetensors\"}");
  refuse_checkpoint({"same directory"});
}

TEST_F(Sharded, IndexThatIsNotOne) {
  for (const char* weight_map :
       {"{}", "[]", "null", "\"s1.safetensors\"", "{\"a\":1}", "{\"a\":{}}"}) {
    index(weight_map);
    refuse_checkpoint({"index.json", "weight_map"});
  }
  dir_.write("model.safetensors.index.json", "[]");
  refuse_checkpoint({"index.json", "need a JSON object"});
  dir_.write("model.safetensors.index.json", "{\"weight_map\":");
  refuse_checkpoint({"index.json", "not valid JSON"});
}

TEST(Checkpoint, DirectoryWithoutWeights) {
  TemporaryDirectory dir;
  expect_user_error([&] { Checkpoint checkpoint(dir.path()); },
                    {dir.path().string(), "neither model.safetensors nor"});
  std::filesystem::path missing = dir.path() / "no";
  expect_user_error([&] { Checkpoint checkpoint(missing); },
                    {missing.string(), "not a readable directory"});
  expect_user_error([&] { Checkpoint checkpoint(dir.write("f", "x")); },
                    {"not a readable directory"});
}

struct Bundled {
  const char* name;
  Family family;
  std::size_t num_tensors;
  std::int64_t hidden_size;
  std::int64_t num_layers;
  double embedding_sum;  // of absolute values, computed independently from the files
};

class BundledCheckpoint : public testing::TestWithParam<Bundled> {};

TEST_P(BundledCheckpoint, LoadsAndFitsItsConfig) {
  std::filesystem::path dir = std::filesystem::path("checkpoints") / GetParam().name;
  ModelConfig config = read_config(dir);
  EXPECT_EQ(config.traits->family, GetParam().family);
  EXPECT_EQ(config.hidden_size, GetParam().hidden_size);
  EXPECT_EQ(config.num_layers(), GetParam().num_layers);
  EXPECT_EQ(config.vocab_size, 4096);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.max_positions, 1024);
  Checkpoint checkpoint(dir);
  EXPECT_EQ(checkpoint.names().size(), GetParam().num_tensors);
  EXPECT_NO_THROW(config.check_against(checkpoint));
  const TensorView& embedding = checkpoint.tensor("model.embed_tokens.weight");
  double sum = 0;
  for (std::int64_t i = 0; i < embedding.num_elements(); ++i) {
    sum += std::abs(load_element(embedding.dtype, embedding.data + 2 * i));
  }
  EXPECT_NEAR(sum, GetParam().embedding_sum, 1e-9 * sum);
  GenerationConfig generation = read_generation_config(dir, config);
  EXPECT_EQ(generation.eos_token_ids, (std::vector<int>{1}));
  EXPECT_EQ(generation.bos_token_id, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, BundledCheckpoint,
    testing::Values(Bundled{"debian-llama-8m", Family::kLlama, 56, 256, 6, 64647.272718248656},
                    Bundled{"debian-llama-draft-1m", Family::kLlama, 20, 128, 2, 41644.76927239029},
                    Bundled{"debian-qwen3moe-18m", Family::kQwen3Moe, 230, 256, 4,
                            55840.466641121544}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace stretto::checkpoint_test
