// A request's parameters and what was generated so far, as the wish by which the next token is
// chosen (model/choice/token_choice.h): penalties, bias, what may not be drawn, temperature, the
// cuts by top-k, top-p and min-p, and a seeded draw. Follows the model's LM head; its token goes to
// the tokenizer and StopMatcher (stop_matcher.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/model/choice/token_choice.h"

namespace stretto {

struct SamplingParams {
  double temperature = 0.0;  // 0: greedy, the cuts below are then without effect; at most 1000
  std::int64_t top_k = 0;    // keep the k best and whatever ties with the last; 0: off
  double top_p = 1.0;        // keep the best tokens until their probabilities reach p; 1: off
  double min_p = 0.0;        // drop tokens below min_p times the best probability; 0: off
  double repetition_penalty = 1.0;  // above 1 makes tokens of the history less likely; 1: off
  // Taken from the logits of tokens that were generated: once, and for each time. -2 to 2; 0: off.
  double presence_penalty = 0.0, frequency_penalty = 0.0;
  std::vector<std::pair<int, float>> logit_bias;  // added to those tokens' logits
  std::vector<int> allowed_tokens;                // no others are drawn; empty: all
  // Until so many tokens are there, those of `ends` are not drawn.
  std::int64_t min_tokens = 0;
  std::vector<int> ends;
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;  // which one of several with one seed, which draw differently

  // UserError naming the parameter and its bounds.
  void validate() const;
};

// What may not be drawn goes first, then bias. The transforms after that are those of Hugging Face
// transformers in its order: repetition penalty (once per distinct token of the history), presence
// and frequency penalties as the OpenAI API has them, temperature, top-k, top-p, min-p, each on
// what the one before left. Draws come from a counter-based generator (philox.h): the n-th draw
// with a seed and choice sees the same random number on every platform.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);

  // How the next of `vocab` tokens is to be chosen. `history` holds the prompt and what was
  // generated, which are its last `num_generated` tokens; `allowed` as in ChoiceWish. Valid until
  // the next call. InternalError when `history` leaves the vocabulary. Whoever has chosen by it
  // says so with count_draw().
  ChoiceWish wish(std::size_t vocab, std::span<const int> history, std::size_t num_generated,
                  std::span<const std::uint32_t> allowed = {});
  void count_draw() { num_draws_ += params_.temperature != 0 ? 1 : 0; }

  // Draws the next token and counts it. `logits` [vocab] is overwritten as by choose_token().
  // Tokens of logit -inf are not there. Where no allowed token is, all may be drawn. Where only
  // `ends` are, they may be drawn before min_tokens. UserError when a logit is NaN or +inf or all
  // are -inf (broken weights, a dtype that overflows); InternalError when `logits` is empty.
  int sample(std::span<float> logits, std::span<const int> history, std::size_t num_generated = 0,
             std::span<const std::uint32_t> allowed = {});

  const SamplingParams& params() const { return params_; }

 private:
  using IsThere = std::function<bool(std::size_t token)>;
  ChoiceWish wish(std::size_t vocab, std::span<const int> history, std::size_t num_generated,
                  std::span<const std::uint32_t> allowed, const IsThere& is_there);
  void start_over(std::size_t prompt);
  ChoiceEdit& edit_of(int token);
  void count(std::span<const int> history, std::size_t prompt);
  std::span<const std::uint32_t> mask_of(std::size_t vocab, std::span<const std::uint32_t> allowed,
                                         const IsThere& is_there);
  void drop_ends(std::size_t vocab, std::span<const std::uint32_t> mask, bool too_early,
                 const IsThere& is_there);

  SamplingParams params_;
  std::uint64_t num_draws_ = 0;
  std::vector<ChoiceEdit> edits_;
  std::unordered_map<int, std::size_t> edit_at_;  // by token
  std::vector<int> counted_;                      // the history that edits_ tell of
  std::size_t prompt_ = 0;                        // tokens of it
  std::vector<int> times_;                        // that a token was generated, as edits_
  std::vector<std::uint32_t> mask_;
  ChoiceScratch scratch_;
};

// Index of the largest value, the lowest one among equals. Errors as Sampler::sample.
int argmax(std::span<const float> logits);

// log(softmax(logits)) in double; `out` has the size of `logits`. Errors as Sampler::sample.
void log_softmax(std::span<const float> logits, std::span<double> out);
// One element of that result.
double log_probability(std::span<const float> logits, int token_id);

}  // namespace stretto
