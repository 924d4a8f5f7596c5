#include "stretto/model/transformer/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

// A chunk runs in the smallest bucket that holds it; longer prompts run in several chunks.
constexpr std::array<std::int64_t, 4> kBuckets = {1, 16, 64, 256};

}  // namespace

Transformer::Transformer(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
                         const TransformerOptions& options)
    : rank_(rank), state_(std::make_unique<ModelState>()) {
  ModelState& s = *state_;
  s.config = &config;
  s.spec = {.rank = rank.index(), .world_size = rank.size(), .dtype = options.dtype};
  s.max_tokens = options.max_tokens > 0 ? std::min(options.max_tokens, config.max_positions)
                                        : config.max_positions;
  s.weights = load_weights(checkpoint, config, s.spec);
  s.rope = make_rope_table(config.rope, config.head_dim, s.max_tokens);
  std::int64_t kv_heads = split_heads(attention_desc(config, rank.size())).kv_heads_per_rank;
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    s.k_cache.emplace_back(options.dtype, kv_heads * s.max_tokens, config.head_dim);
    s.v_cache.emplace_back(options.dtype, kv_heads * s.max_tokens, config.head_dim);
  }
}

ForwardStep& Transformer::step_for(std::int64_t count) {
  std::int64_t bound = kBuckets.back();
  for (std::int64_t bucket : kBuckets) {
    if (bucket >= count) {
      bound = bucket;
      break;
    }
  }
  bound = std::min(bound, state_->max_tokens);
  std::unique_ptr<ForwardStep>& step = steps_[bound];
  if (!step) step = std::make_unique<ForwardStep>(rank_, *state_, bound);
  return *step;
}

void Transformer::check_tokens(std::span<const int> tokens) const {
  if (tokens.empty()) throw UserError("the prompt has no tokens");
  auto count = static_cast<std::int64_t>(tokens.size());
  if (past_ + count > max_tokens()) {
    throw UserError(
        fmt::format("{} tokens after {} do not fit the context of {}", count, past_, max_tokens()));
  }
  for (int token : tokens) {
    if (token < 0 || token >= vocab()) {
      throw UserError(fmt::format("token {} is outside the vocabulary of {}", token, vocab()));
    }
  }
}

ForwardStep& Transformer::append(std::span<const int> chunk) {
  auto count = static_cast<std::int64_t>(chunk.size());
  ForwardStep& step = step_for(count);
  step.run(chunk.data(), count, past_);
  past_ += count;
  return step;
}

std::span<const float> Transformer::forward(std::span<const int> tokens) {
  check_tokens(tokens);
  auto largest = static_cast<std::size_t>(std::min(kBuckets.back(), max_tokens()));
  while (tokens.size() > largest) {
    append(tokens.first(largest));
    tokens = tokens.subspan(largest);
  }
  ForwardStep& step = append(tokens);
  const float* row = step.logits(static_cast<std::int64_t>(tokens.size()) - 1, 1);
  return {row, static_cast<std::size_t>(vocab())};
}

void Transformer::forward_each(std::span<const int> tokens, const Visit& visit) {
  check_tokens(tokens);
  auto largest = static_cast<std::size_t>(std::min(kBuckets.back(), max_tokens()));
  auto width = static_cast<std::size_t>(vocab());
  while (!tokens.empty()) {
    std::span<const int> chunk = tokens.first(std::min(largest, tokens.size()));
    tokens = tokens.subspan(chunk.size());
    std::int64_t first = past_;
    ForwardStep& step = append(chunk);
    auto count = static_cast<std::int64_t>(chunk.size());
    for (std::int64_t row = 0; row < count; row += ForwardStep::kHeadRows) {
      std::int64_t rows = std::min(ForwardStep::kHeadRows, count - row);
      const float* logits = step.logits(row, rows);
      for (std::int64_t i = 0; i < rows; ++i) {
        visit(first + row + i, {logits + static_cast<std::size_t>(i) * width, width});
      }
    }
  }
}

}  // namespace stretto
