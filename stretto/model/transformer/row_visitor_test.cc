// Who gets which row of a step, where the device chooses tokens and where it does not. If this
// fails, a request gets another one's token, or none when the device could not choose one.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
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
constexpr std::size_t kRows = 37;  // more than two launches of the head take

// A runner that computes nothing, and whose row r has logits r.
class FakeRunner : public step::Runner {
 public:
  explicit FakeRunner(const step::Plan& plan) : Runner(plan, step::Sharing::kNone, false) {}
  std::byte* input(const std::string& name) override {
    auto& bytes = inputs_[name];
    bytes.resize(1 << 20);
    return bytes.data();
  }
  void copy_rows(const std::string& from, std::span<const std::int64_t> rows,
                 const std::string& to) override {
    EXPECT_EQ(from, step_buffer::kHidden);
    EXPECT_EQ(to, step_buffer::kWanted);
    copied_.assign(rows.begin(), rows.end());
  }
  const std::byte* read(const std::string& output, std::size_t bytes) override {
    EXPECT_EQ(output, step_buffer::kLogits);
    EXPECT_EQ(bytes, logits_.size() * sizeof(float));
    return reinterpret_cast<const std::byte*>(logits_.data());
  }

 private:
  void run_section(const step::Section& section, const std::vector<std::int64_t>& values) override {
    if (section.name != kHeadSection) return;
    auto count = [&](const char* extent) {
      return values[static_cast<std::size_t>(plan().find_extent(extent))];
    };
    EXPECT_TRUE(count("wanted") == 0 || count("wanted") == std::ssize(copied_));
    EXPECT_NE(count("wanted") == 0, count("first") == 0);
    logits_.clear();
    for (std::int64_t i = 0; i < count("first"); ++i) add_logits(i);
    for (std::int64_t i = 0; i < count("wanted"); ++i) add_logits(copied_[std::size_t(i)]);
  }
  void add_logits(std::int64_t row) { logits_.insert(logits_.end(), 64, static_cast<float>(row)); }

  std::map<std::string, std::vector<std::byte>> inputs_;
  std::vector<std::int64_t> copied_;
  std::vector<float> logits_;
};

// Chooses the token r for row r; of every fourth row it says that it could not choose.
class FakeStep : public BatchStep {
 public:
  FakeStep(const ModelShape& shape, std::int64_t bound, bool chooses)
      : BatchStep(shape, std::make_unique<FakeRunner>(plan_step(shape, bound).plan)),
        chooses_(chooses) {}
  bool chooses() const override { return chooses_; }
  void choose(std::span<const std::int64_t> rows, std::span<const ChoiceWish> wishes,
              std::int64_t /*first*/) override {
    EXPECT_LE(std::ssize(rows), head_rows());
    EXPECT_EQ(rows.size(), wishes.size());
    results_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(wishes[i].row.random, static_cast<std::uint64_t>(rows[i])) << "another's wish";
      const auto status = rows[i] % 4 == 3 ? ChoiceStatus::kNothing : ChoiceStatus::kChosen;
      results_.push_back({.status = status, .token = static_cast<unsigned>(rows[i])});
    }
  }
  std::span<const ChoiceResult> choices() override { return results_; }

 private:
  bool chooses_;
  std::vector<ChoiceResult> results_;
};

class Runner : public BatchRunner {
 public:
  Runner(const ModelShape& shape, bool chooses) : shape_(shape), chooses_(chooses) {}
  const ModelShape& shape() const override { return shape_; }
  std::unique_ptr<BatchStep> make_step(const BatchBounds& bounds) override {
    ModelShape shape = shape_;
    shape.paged.sequences = bounds.sequences;
    return std::make_unique<FakeStep>(shape, bounds.rows, chooses_);
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
      config, 1, {.max_rows = kRows, .cache = {.page = 64, .num_pages = 16, .sequences = kRows}});
  BatchModel model(std::make_unique<Runner>(shape, chooses), kRows);
  const int token = 1, page = 0;
  const std::vector<BatchPiece> pieces(kRows,
                                       {.tokens = {&token, 1}, .pages = {&page, 1}, .wanted = 1});
  auto out = std::make_unique<Visitor>();
  model.step(pieces, *out);
  return out;
}

}  // namespace

TEST(RowVisitor, GetsTokensWhereTheDeviceChoosesAndLogitsElsewhere) {
  const std::unique_ptr<Visitor> v = visited(true);
  std::vector<std::size_t> tokens, logits, not_chosen;
  for (std::size_t i = 0; i < kRows; ++i) {
    if (i % 5 == 0) continue;
    (i % 3 == 0 ? logits : i % 4 == 3 ? not_chosen : tokens).push_back(i);
  }
  EXPECT_EQ(v->tokens, tokens);
  // Wanted so, and then what the device could not choose.
  logits.insert(logits.end(), not_chosen.begin(), not_chosen.end());
  EXPECT_EQ(v->logits, logits);
}

TEST(RowVisitor, GetsAllLogitsOfOtherDevices) {
  const std::unique_ptr<Visitor> v = visited(false);
  EXPECT_TRUE(v->tokens.empty());
  std::vector<std::size_t> all(kRows);
  std::iota(all.begin(), all.end(), 0u);
  EXPECT_EQ(v->logits, all);
}

}  // namespace stretto
