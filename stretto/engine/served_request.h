// One answer that is asked of an engine: what goes in, and who hears what comes out. serving.h
// takes them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/engine/sampling.h"
#include "stretto/engine/token_constraint.h"

namespace stretto {

// A token with its logarithm of probability (natural, of what the model computed before sampling
// changes it), and the most likely ones beside it.
struct TokenLogprob {
  int token = 0;
  double logprob = 0;
  std::int64_t rank = 1;                         // among all, 1 for the most likely
  std::vector<std::pair<int, double>> top = {};  // most likely first, of equals the lowest id
};

// `token` with its `num_top` alternatives; `scratch` is overwritten. Errors as log_softmax.
TokenLogprob logprob_of(int token, std::span<const float> logits, int num_top,
                        std::vector<double>& scratch);

// The same of a choice that the device made and told of: as near as whole weights are, 5e-7.
TokenLogprob logprob_of(const ChoiceResult& result);

// Its functions are called on the engine's thread and must not block.
struct ServedRequest {
  std::vector<int> prompt;
  std::int64_t max_tokens = 16;
  SamplingParams sampling;
  std::shared_ptr<TokenConstraint> constraint;  // null: any token may come
  int priority = 0;                             // higher ones come in first
  std::string salt;  // only requests with the same one share pages of the cache
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // How many alternatives each logprob has; -1: no logprobs.
  int num_logprobs = -1, num_prompt_logprobs = -1;

  // Before the prompt is run.
  std::function<void()> on_start;
  // Of the prompt's tokens from the second on, in order, all before the first token.
  std::function<void(const TokenLogprob&)> on_prompt;
  // What the next token is chosen from, as the model computed it; may be empty.
  std::function<void(std::span<const float> logits)> on_logits;
  // False: that was the last one that anybody wants. Without logprobs only `token` is set.
  std::function<bool(const TokenLogprob&)> on_token;
  enum class End : std::uint8_t {
    kEnough,     // on_token said so
    kLength,     // max_tokens
    kComplete,   // the constraint lets nothing follow, and the model has no token that ends
    kCancelled,  // cancel()
    kRefused,    // the constraint cannot be kept: `what` says why
    kLate,       // the deadline passed: `what` says so
    kFailed,     // the model could not go on: `what` says why
    kDied,       // the engine cannot: `what` says why
  };
  // Exactly once, after everything else: by tell_end().
  std::function<void(End, const std::string& what)> on_end;
  // Of several calls the first one counts: of what a fault ends some may have heard already.
  void tell_end(End end, const std::string& what);

  // What became of it, told by the engine before on_start and kept up to date; for its functions.
  std::int64_t cached_tokens = 0;  // of the prompt, found in the cache when it first came in
  std::int64_t preemptions = 0;    // times that it gave its pages back

  std::atomic<bool> cancelled{false};
  std::atomic<bool> has_ended{false};
  std::int64_t came_at_step = 0;  // steps that the engine had made

  bool is_late() const { return deadline && std::chrono::steady_clock::now() >= *deadline; }
};

}  // namespace stretto
