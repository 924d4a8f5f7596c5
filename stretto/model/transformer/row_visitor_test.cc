// Who gets which row of a step, where the machine chooses tokens and where it does not. If this
// fails, a request gets another one's token, or none when the machine could not choose one.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/model/transformer/batch_model.h"

namespace stretto {
namespace {

constexpr const char* kRowConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1})";
constexpr std::int64_t kHeadRows = 2;

// A machine whose row r has logits r and the token r; of every fourth row it says that it could not
// choose.
class FakeStep : public BatchStep {
 public:
  explicit FakeStep(bool chooses) : chooses_(chooses) {}
  std::int64_t head_rows() const override { return kHeadRows; }
  std::byte* input(const std::string& name) override {
    auto& bytes = inputs_[name];
    bytes.resize(1 << 20);
    return bytes.data();
  }
  void run(const StepRows&) override {}
  const float* logits(std::span<const std::int64_t> rows) override {
    EXPECT_LE(std::ssize(rows), kHeadRows);
    logits_.clear();
    for (std::int64_t row : rows) logits_.insert(logits_.end(), 64, static_cast<float>(row));
    return logits_.data();
  }
  bool chooses() const override { return chooses_; }
  std::span<const ChoiceResult> choose(std::span<const std::int64_t> rows,
                                       std::span<const ChoiceWish> wishes) override {
    EXPECT_LE(std::ssize(rows), kHeadRows);
    EXPECT_EQ(rows.size(), wishes.size());
    results_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(wishes[i].row.random, static_cast<std::uint64_t>(rows[i])) << "another's wish";
      const auto status = rows[i] % 4 == 3 ? ChoiceStatus::kNothing : ChoiceStatus::kChosen;
      results_.push_back({.status = status, .token = static_cast<unsigned>(rows[i])});
    }
    return results_;
  }

 private:
  bool chooses_;
  std::map<std::string, std::vector<std::byte>> inputs_;
  std::vector<float> logits_;
  std::vector<ChoiceResult> results_;
};

class Runner : public BatchRunner {
 public:
  Runner(const ModelShape& shape, bool chooses) : shape_(shape), chooses_(chooses) {}
  const ModelShape& shape() const override { return shape_; }
  std::unique_ptr<BatchStep> make_step(const BatchBounds&) override {
    return std::make_unique<FakeStep>(chooses_);
  }

 private:
  ModelShape shape_;
  bool chooses_;
};

// Pieces of one row each; piece i is row i. Of every fifth nothing is wanted, of every third its
// logits.
class Visitor : public RowVisitor {
 public:
  Want want(std::size_t piece, std::int64_t, ChoiceWish& wish) override {
    wish.row.random = piece;
    return piece % 5 == 0 ? Want::kNothing : piece % 3 == 0 ? Want::kLogits : Want::kToken;
  }
  void take_choice(std::size_t piece, std::int64_t, const ChoiceResult& result) override {
    EXPECT_EQ(result.token, piece);
    EXPECT_EQ(result.status, ChoiceStatus::kChosen);
    tokens.push_back(piece);
  }
  void take(std::size_t piece, std::int64_t, std::span<const float> row) override {
    ASSERT_EQ(row.size(), 64u);
    EXPECT_EQ(row[0], static_cast<float>(piece));
    logits.push_back(piece);
  }
  std::vector<std::size_t> tokens, logits;
};

std::unique_ptr<Visitor> visited(bool chooses) {
  const ModelConfig config = parse_config(kRowConfig, "config");
  const ModelShape shape = batch_shape(
      config, 1, {.max_rows = 16, .cache = {.page = 64, .num_pages = 16, .sequences = 16}});
  BatchModel model(std::make_unique<Runner>(shape, chooses), 16);
  const int token = 1, page = 0;
  const std::vector<BatchPiece> pieces(13,
                                       {.tokens = {&token, 1}, .pages = {&page, 1}, .wanted = 1});
  auto out = std::make_unique<Visitor>();
  model.step(pieces, *out);
  return out;
}

}  // namespace

TEST(RowVisitor, GetsTokensWhereTheMachineChoosesAndLogitsElsewhere) {
  const std::unique_ptr<Visitor> v = visited(true);
  EXPECT_EQ(v->tokens, (std::vector<std::size_t>{1, 2, 4, 8}));
  // Wanted so, and then what the machine could not choose.
  EXPECT_EQ(v->logits, (std::vector<std::size_t>{3, 6, 9, 12, 7, 11}));
}

TEST(RowVisitor, GetsAllLogitsOfOtherMachines) {
  const std::unique_ptr<Visitor> v = visited(false);
  EXPECT_TRUE(v->tokens.empty());
  EXPECT_EQ(v->logits.size(), 13u);
}

}  // namespace stretto
