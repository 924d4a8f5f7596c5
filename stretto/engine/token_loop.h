// One request on a model, token by token: the prompt goes in, choices come out until somebody has
// enough. What becomes of the tokens (text_stream.h: text; serving.h: a client's answer) is the
// visitor's business. On CPU ranks every rank runs the same loop.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stretto/engine/sampling.h"
#include "stretto/model/transformer/transformer.h"

namespace stretto {

class TokenVisitor {
 public:
  virtual ~TokenVisitor() = default;

  // Whether on_token gets logits; where nobody needs them a machine may choose by itself.
  virtual bool needs_logits() const { return false; }
  // Whether on_prompt is called.
  virtual bool needs_prompt_logits() const { return false; }
  // After each piece of a prompt, before the next one. False ends the request.
  virtual bool go_on() { return true; }
  // The logits [vocab] after the prompt's token at `position`, in order.
  virtual void on_prompt(std::int64_t position, std::span<const float> logits) {
    (void)position, (void)logits;
  }
  // Before the first token.
  virtual void on_prompt_done() {}
  // A choice, and the logits [vocab] it was made from, as the model computed them; none where it
  // chose by itself. False ends the request.
  virtual bool on_token(int token, std::span<const float> logits) = 0;
};

struct TokenLoopOptions {
  std::int64_t max_tokens = 1;
  // Of prompts, after which go_on() is asked; 0: whole ones.
  std::int64_t prompt_piece = 0;
};

// `prompt` and the tokens fit the cache. Errors as Sampler::sample and Transformer::forward; the
// model may be used for the next request after them.
void run_tokens(Transformer& model, std::span<const int> prompt, const SamplingParams& sampling,
                const TokenLoopOptions& options, TokenVisitor& visitor);

}  // namespace stretto
