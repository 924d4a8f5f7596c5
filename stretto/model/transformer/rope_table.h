// Cosines and sines of the rotary embedding for every position, with the rescaling of wavelengths
// that long-context checkpoints ask for.
#pragma once

#include "stretto/model/checkpoint/config.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {

struct RopeTable {
  Matrix cos, sin;  // [max_tokens, head_dim / 2] f32
};

// inv_freq[i] = theta^(-2i / head_dim), rescaled: linear divides it by `factor`; llama3 (Llama 3.1)
// divides low frequencies, keeps high ones and blends between, and so does yarn by its own rule;
// dynamic is the default within the positions that a run may have. Then rounded to
// rope.frequency_dtype. Cosines and sines are multiplied by rope.attention_factor.
RopeTable make_rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_tokens);

}  // namespace stretto
