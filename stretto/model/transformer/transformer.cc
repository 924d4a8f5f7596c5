#include "stretto/model/transformer/transformer.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/ops/greedy/greedy.h"

namespace stretto {

void check_groups(const ModelConfig& config, int num_ranks, int data_groups, int expert_groups) {
  if (data_groups < 1 || num_ranks % data_groups != 0) {
    throw UserError(fmt::format("{}: {} data-parallel groups do not divide {} ranks", config.where,
                                data_groups, num_ranks));
  }
  if (expert_groups == 1) return;
  if (!config.moe) throw UserError(fmt::format("{}: has no experts to spread", config.where));
  check_split(config.where, expert_split(config, num_ranks, expert_groups));
}

ModelShape model_shape(const ModelConfig& config, int num_ranks,
                       const TransformerOptions& options) {
  check_groups(config, num_ranks, options.data_groups, options.expert_groups);
  check_blocks(config, num_ranks / options.data_groups);
  if (config.has_fp8_products() && options.ulysses) {
    throw UserError(fmt::format(
        "{}: e4m3 weights are not spread by heads (sequence-parallel prompts)", config.where));
  }
  return {.config = &config,
          .world_size = num_ranks / options.data_groups,
          .dtype = options.dtype,
          .max_tokens = options.max_tokens > 0 ? std::min(options.max_tokens, config.max_positions)
                                               : config.max_positions,
          .target = options.plan_for,
          .expert_groups = options.expert_groups,
          .data_groups = options.data_groups,
          .ulysses = options.ulysses};
}

Transformer::Transformer(std::unique_ptr<ModelRunner> runner) : runner_(std::move(runner)) {
  for (std::int64_t bound : step_bounds(runner_->shape())) {
    bounds_.push_back(std::min(bound, max_tokens()));
    if (bound >= max_tokens()) break;
  }
}

// The smallest that holds the chunk.
ForwardStep& Transformer::step_for(std::int64_t count) {
  std::int64_t bound = *std::lower_bound(bounds_.begin(), bounds_.end() - 1, count);
  std::unique_ptr<ForwardStep>& step = steps_[bound];
  if (!step) step = runner_->make_step(bound);
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
  std::int64_t most = runner_->most_rows(count);
  ForwardStep& step = step_for(most);
  step.run(chunk, past_, most);
  past_ += count;
  return step;
}

bool Transformer::step_with_others() {
  std::int64_t most = runner_->most_rows(0);
  if (most > 0) step_for(most).run({}, past_, most);
  return most > 0;
}

std::span<const float> Transformer::forward(std::span<const int> tokens) {
  check_tokens(tokens);
  auto largest = static_cast<std::size_t>(bounds_.back());
  while (tokens.size() > largest) {
    append(tokens.first(largest));
    tokens = tokens.subspan(largest);
  }
  ForwardStep& step = append(tokens);
  const float* row = step.logits(static_cast<std::int64_t>(tokens.size()) - 1, 1);
  return {row, static_cast<std::size_t>(vocab())};
}

void ForwardStep::run_greedy(int, std::int64_t, std::int64_t, const Visit&) {
  throw InternalError("this machine leaves the choice of tokens to the host");
}

void Transformer::greedy(int token, std::int64_t count, const ForwardStep::Visit& visit) {
  check_tokens({&token, 1});
  if (count < 1 || past_ + count > max_tokens()) {
    throw UserError(
        fmt::format("{} tokens after {} do not fit the context of {}", count, past_, max_tokens()));
  }
  step_for(1).run_greedy(token, past_, count, [&](int choice) {
    if (choice == kNoToken) {
      throw UserError(
          "the model computed logits that are no distribution: its weights are broken or overflow "
          "this dtype");
    }
    ++past_;
    return visit(choice);
  });
}

void Transformer::forward_each(std::span<const int> tokens, const Visit& visit) {
  check_tokens(tokens);
  auto largest = static_cast<std::size_t>(bounds_.back());
  auto width = static_cast<std::size_t>(vocab());
  while (!tokens.empty()) {
    std::span<const int> chunk = tokens.first(std::min(largest, tokens.size()));
    tokens = tokens.subspan(chunk.size());
    std::int64_t first = past_;
    ForwardStep& step = append(chunk);
    auto count = static_cast<std::int64_t>(chunk.size());
    for (std::int64_t row = 0; row < count; row += step.head_rows()) {
      std::int64_t rows = std::min(step.head_rows(), count - row);
      const float* logits = step.logits(row, rows);
      for (std::int64_t i = 0; i < rows; ++i) {
        visit(first + row + i, {logits + static_cast<std::size_t>(i) * width, width});
      }
    }
  }
}

}  // namespace stretto
