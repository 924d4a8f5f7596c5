// The parts of config.json that are read in files of their own; private to config*.cc.
#pragma once

#include "stretto/base/json_fields.h"
#include "stretto/base/sources.h"
#include "stretto/model/checkpoint/config.h"

namespace stretto {

// Bounds generous for any model of these families and small enough that every product of two or
// three of them, in bytes, stays inside 63 bits.
inline constexpr std::int64_t kMaxVocab = 1 << 24;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxHeadDim = 1 << 13;
inline constexpr std::int64_t kMaxExperts = 1 << 14;
inline constexpr std::int64_t kMaxPositions = 1 << 30;

// Newer files have rope_parameters with the base inside, older ones rope_theta beside an optional
// rope_scaling, and some both.
RopeConfig read_rope(const JsonFields& config, const FamilyTraits& traits,
                     std::int64_t max_positions, Warnings& warnings);

// What quantization_config says of the weights; UserError that names what is not read, and what is.
ProductWeights read_quantization(const JsonFields& config);

// Sets config.moe, and which layers have experts. `object` is what `fields` reads.
void read_moe(const Json& object, const JsonFields& fields, ModelConfig& config);

}  // namespace stretto
