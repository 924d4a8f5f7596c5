// The steps that a model is made with. If these fail, some number of rows has no step, or many
// rows of a step are nobody's.
#include "stretto/model/transformer/batch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/model/transformer/batch_model.h"
#include "stretto/step/text.h"

namespace stretto {
namespace {

constexpr const char* kConfig = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
  "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
  "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1})";

ModelShape shape_for(const ModelConfig& config, Target target) {
  return batch_shape(config, 1,
                     {.max_tokens = 256,
                      .cache = {.page = 64, .num_pages = 8, .sequences = 100},
                      .plan_for = target});
}

const BatchBounds& holding(const std::vector<BatchBounds>& all, std::int64_t rows) {
  return *std::ranges::find_if(all, [&](const BatchBounds& b) { return b.rows >= rows; });
}

TEST(BatchBoundsTest, EveryStepOnGpusHasFewRowsOfNobody) {
  const ModelConfig config = parse_config(kConfig, "config");
  const ModelShape shape = shape_for(config, Target::kCuda);
  for (std::int64_t most : {1, 2, 3, 17, 24, 64, 100, 256, 1000, 2048, 8192}) {
    std::vector<BatchBounds> all = batch_bounds(shape, most);
    EXPECT_EQ(all.back().rows, most);
    std::int64_t before = 0;
    for (const BatchBounds& b : all) {
      ASSERT_FALSE(b.counts.empty());
      EXPECT_EQ(b.counts.back(), b.rows);
      EXPECT_LE(b.counts.size(), 4u);
      for (std::int64_t count : b.counts) {
        EXPECT_GT(count, before);
        before = count;
      }
    }
    for (std::int64_t rows = 1; rows <= most; ++rows) {
      const BatchBounds& b = holding(all, rows);
      const std::int64_t filled = b.filled(rows);
      EXPECT_GE(filled, rows);
      EXPECT_TRUE(std::ranges::count(b.counts, filled) == 1) << filled;
      // As many are nobody's as a quarter of the way from the power of two below; of one tile's
      // rows all that the step has beside.
      if (b.rows <= 128) {
        EXPECT_EQ(filled, b.rows);
      } else {
        EXPECT_LT(filled - rows, std::max<std::int64_t>(16, rows / 4 + 16))
            << rows << " of " << most;
      }
    }
  }
}

TEST(BatchBoundsTest, OnCpuRanksAStepHasTheRowsThatItIsGiven) {
  const ModelConfig config = parse_config(kConfig, "config");
  for (const BatchBounds& b : batch_bounds(shape_for(config, Target::kCpu), 256)) {
    EXPECT_TRUE(b.counts.empty());
    for (std::int64_t rows : {std::int64_t{1}, b.rows}) EXPECT_EQ(b.filled(rows), rows);
  }
}

// --fastest: a row that is alone is added up otherwise, every other step as ever.
TEST(BatchBoundsTest, OnlyARowAloneIsFaster) {
  ModelConfig config = parse_config(kConfig, "config");
  config.head_dim = 64;  // which the tensor core takes
  BatchOptions options{.dtype = DType::kBF16,
                       .max_tokens = 256,
                       .cache = {.page = 64, .num_pages = 8, .sequences = 100},
                       .plan_for = Target::kCuda};
  const ModelShape kept = batch_shape(config, 1, options);
  options.cache.fastest = true;
  const ModelShape fastest = batch_shape(config, 1, options);
  for (const BatchBounds& b : batch_bounds(kept, 64)) {
    auto plan_of = [&](ModelShape shape) {
      shape.paged.sequences = b.sequences;
      return step::print(plan_step(shape, b.rows).plan);
    };
    EXPECT_EQ(plan_of(kept) == plan_of(fastest), b.rows > 1) << b.rows;
  }
  options.plan_for = Target::kCpu;  // the same each way
  options.dtype = DType::kF32;
  const ModelShape on_cpus = batch_shape(config, 1, options);
  options.cache.fastest = false;
  EXPECT_EQ(step::print(plan_step(on_cpus, 1).plan),
            step::print(plan_step(batch_shape(config, 1, options), 1).plan));
}

}  // namespace
}  // namespace stretto
