// What a user loses when these fail: a model that ends its texts elsewhere than it should, or that
// is refused for a field which nobody uses.
#include "stretto/model/checkpoint/generation_config.h"

#include <gtest/gtest.h>

#include "stretto/base/test_errors.h"
#include "stretto/model/checkpoint/test_files.h"

namespace stretto::generation_config_test {
namespace {

ModelConfig model_with(const std::string& fields) {
  return parse_config(R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 8,
      "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, )" +
                          fields + "}",
                      "config.json");
}

TEST(GenerationConfig, FieldsAreReadAndFallBackToTheModel) {
  ModelConfig model = model_with(R"("eos_token_id": [1, 2], "bos_token_id": 0)");
  GenerationConfig empty = parse_generation_config("{}", "generation_config.json", model);
  EXPECT_EQ(empty.eos_token_ids, (std::vector<int>{1, 2}));
  EXPECT_EQ(empty.bos_token_id, 0);
  GenerationConfig full = parse_generation_config(R"({"eos_token_id": [5, 6], "bos_token_id": 4})",
                                                  "generation_config.json", model);
  EXPECT_EQ(full.eos_token_ids, (std::vector<int>{5, 6}));
  EXPECT_EQ(full.bos_token_id, 4);
  for (const char* bad : {"{\"eos_token_id\": 10}", "{\"eos_token_id\": [1, \"x\"]}",
                          "{\"bos_token_id\": -2}", "[]", "{"}) {
    SCOPED_TRACE(bad);
    expect_user_error([&] { parse_generation_config(bad, "generation_config.json", model); },
                      {"generation_config.json: "});
  }
}

// A model that is asked for greedy text must not be refused for a field that it does not use.
TEST(GenerationConfig, SamplingIsCheckedByThoseWhoFollowIt) {
  ModelConfig model = model_with(R"("eos_token_id": 3)");
  for (const char* odd :
       {"{\"temperature\": -1}", "{\"top_k\": -7}", "{\"top_p\": 1.5}", "{\"min_p\": 2}",
        "{\"repetition_penalty\": 0}", "{\"top_k\": 1.5}", "{\"top_p\": \"high\"}"}) {
    SCOPED_TRACE(odd);
    EXPECT_EQ(parse_generation_config(odd, "generation_config.json", model).eos_token_ids,
              (std::vector<int>{3}));
    expect_user_error([&] { parse_sampling_defaults(odd, "generation_config.json"); },
                      {"generation_config.json: "});
  }
  SamplingDefaults full = parse_sampling_defaults(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0,
          "repetition_penalty": 1.05, "max_new_tokens": null, "num_beams": "many"})",
      "generation_config.json");
  EXPECT_EQ(full.temperature, 0.6);
  EXPECT_EQ(full.top_k, 20);
  EXPECT_EQ(full.top_p, 0.95);
  EXPECT_EQ(full.min_p, 0.0);
  EXPECT_EQ(full.repetition_penalty, 1.05);
  EXPECT_EQ(parse_sampling_defaults("{\"top_k\": -1}", "g").top_k, 0) << "off, as vLLM spells it";
  EXPECT_EQ(parse_sampling_defaults("{}", "g").temperature, std::nullopt);
}

TEST(GenerationConfig, OnlyAnAbsentFileIsIgnored) {
  ModelConfig model = model_with(R"("eos_token_id": 3)");
  TemporaryDirectory dir;
  EXPECT_EQ(read_generation_config(dir.path(), model).eos_token_ids, (std::vector<int>{3}));
  dir.write("generation_config.json", "{\"eos_token_id\": 4}");
  EXPECT_EQ(read_generation_config(dir.path(), model).eos_token_ids, (std::vector<int>{4}));
  dir.write("generation_config.json", "");
  expect_user_error([&] { read_generation_config(dir.path(), model); },
                    {"generation_config.json", "not valid JSON"});
  std::filesystem::remove(dir.path() / "generation_config.json");
  std::filesystem::create_directory(dir.path() / "generation_config.json");
  expect_user_error([&] { read_generation_config(dir.path(), model); },
                    {"generation_config.json", "is a directory"});
  TemporaryDirectory bare;
  expect_user_error([&] { read_config(bare.path()); }, {"config.json", "is missing"});
}

}  // namespace
}  // namespace stretto::generation_config_test
