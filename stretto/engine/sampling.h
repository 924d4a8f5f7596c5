// From the logits of one step to the next token: penalties, temperature, the cuts by top-k, top-p
// and min-p, and a seeded draw. Follows the model's LM head; its token goes to the tokenizer and
// StopMatcher (stop_matcher.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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
  std::uint32_t choice = 0;  // of several with one seed, which draw differently

  // UserError naming the parameter and its bounds.
  void validate() const;
};

// What may not be drawn goes first, then bias. The transforms after that are those of Hugging Face
// transformers in its order: repetition penalty (once per distinct token of the history), presence
// and frequency penalties as the OpenAI API has them, temperature, top-k, top-p, min-p, each on
// what the one before left. Draws come from a counter-based generator (philox.h): the n-th call
// with a seed and choice sees the same random number on every platform.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);

  // `logits` [vocab] is overwritten: dropped tokens become -inf. `history` holds the prompt and
  // what was generated, which are its last `num_generated` tokens. -inf logits are never chosen.
  // Ties of the greedy choice go to the lowest id. UserError when a logit is NaN or +inf or when
  // all are -inf (broken weights, or a dtype that overflows); InternalError when `logits` is empty
  // or `history` leaves the vocabulary.
  int sample(std::span<float> logits, std::span<const int> history, std::size_t num_generated = 0);

  const SamplingParams& params() const { return params_; }

 private:
  void restrict_to_allowed(std::span<float> logits, std::size_t num_generated);
  void penalize(std::span<float> logits, std::span<const int> history);
  void penalize_generated(std::span<float> logits, std::span<const int> generated) const;
  void keep_top_k(std::span<float> logits);
  void keep_top_p(std::span<float> logits);
  int draw(std::span<const float> logits);

  SamplingParams params_;
  std::uint64_t num_draws_ = 0;
  std::vector<bool> seen_;     // [vocab], all false between calls
  std::vector<float> values_;  // scratch of keep_top_k
  std::vector<int> ids_;       // scratch of keep_top_p
};

// Drops tokens whose bit is 0: token t has bit t % 32 of word t / 32.
void keep_allowed(std::span<float> logits, std::span<const std::uint32_t> bits);

// Index of the largest value, the lowest one among equals. Errors as Sampler::sample.
int argmax(std::span<const float> logits);

// log(softmax(logits)) in double; `out` has the size of `logits`. Errors as Sampler::sample.
void log_softmax(std::span<const float> logits, std::span<double> out);
// One element of it.
double log_probability(std::span<const float> logits, int token_id);

}  // namespace stretto
