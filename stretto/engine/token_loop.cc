#include "stretto/engine/token_loop.h"

#include <algorithm>

namespace stretto {
namespace {

// Whether the largest logit is the choice, whatever was there before.
bool is_plainly_greedy(const SamplingParams& p) {
  return p.temperature == 0 && p.repetition_penalty == 1 && p.presence_penalty == 0 &&
         p.frequency_penalty == 0 && p.logit_bias.empty() && p.allowed_tokens.empty() &&
         (p.min_tokens == 0 || p.ends.empty());
}

// The logits after the last token; empty where the visitor had enough before.
std::span<const float> run_prompt(Transformer& model, std::span<const int> prompt,
                                  const TokenLoopOptions& options, TokenVisitor& visitor) {
  const std::size_t piece =
      options.prompt_piece > 0 ? static_cast<std::size_t>(options.prompt_piece) : prompt.size();
  std::span<const float> logits;
  for (std::size_t from = 0; from < prompt.size(); from += piece) {
    if (from > 0 && !visitor.go_on()) return {};
    std::span<const int> tokens = prompt.subspan(from, std::min(piece, prompt.size() - from));
    if (!visitor.needs_prompt_logits()) {
      logits = model.forward(tokens);
      continue;
    }
    model.forward_each(tokens, [&](std::int64_t position, std::span<const float> after) {
      visitor.on_prompt(position, after);
      logits = after;
    });
  }
  return logits;
}

}  // namespace

void run_tokens(Transformer& model, std::span<const int> prompt, const SamplingParams& sampling,
                const TokenLoopOptions& options, TokenVisitor& visitor) {
  model.reset();
  Sampler sampler(sampling);
  std::vector<int> history(prompt.begin(), prompt.end());
  std::vector<float> scratch;
  std::span<const float> logits = run_prompt(model, prompt, options, visitor);
  if (logits.empty()) return;
  visitor.on_prompt_done();
  const bool leaves_choice =
      is_plainly_greedy(sampling) && !visitor.needs_logits() && model.chooses_tokens();
  for (std::int64_t taken = 0; taken < options.max_tokens;) {
    scratch.assign(logits.begin(), logits.end());
    int token = sampler.sample(scratch, history, history.size() - prompt.size());
    history.push_back(token);
    ++taken;
    if (!visitor.on_token(token, logits) || taken == options.max_tokens) return;
    if (leaves_choice) {
      return model.greedy(token, options.max_tokens - taken,
                          [&](int choice) { return visitor.on_token(choice, {}); });
    }
    logits = model.forward({&token, 1});
  }
}

}  // namespace stretto
