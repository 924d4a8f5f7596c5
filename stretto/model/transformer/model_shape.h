// A model as it is cut over ranks: what all its steps have in common.
//
// Before: the checkpoint's config. After: model_buffers.h, step_plan.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "stretto/model/checkpoint/config.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

namespace predict {
struct Machine;
}

// Products of more rows than this take the config that is predicted to be the fastest, where a
// machine is known; fewer rows those that were measured.
constexpr std::int64_t kMostRowsOfDefaults = 256;

// A cache of pages for many sequences at once (batch_model.h).
struct PagedCache {
  std::int64_t page = 0;       // tokens
  std::int64_t num_pages = 0;  // each layer's
  std::int64_t sequences = 0;  // at most in a step
  // So many may have more rows than one; 0: all may. On GPUs attention of prompts takes a turn for
  // each that there may be (ModelShape::prompt_sequences).
  std::int64_t prompts = 0;
  static constexpr std::int64_t kPromptsOnGpus = 32;  // that servers and commands let into a step
  // Keys and values are e4m3 with a scale for each token of each head (ops/attention/cached_rows.h)
  // in place of the activations' dtype.
  bool fp8 = false;
  // Rows' bits may depend on what else is in their step, where that was measured to be faster: on
  // GPUs a single row that decodes goes through paged_decode in the order that is fastest.
  bool fastest = false;
  // On GPUs, tokens of the first run in which rows add up (ops/attention/attention_runs.h), whole
  // steps of keys; 0: as the configs of attention have it.
  std::int64_t first_run = 0;
  // What rows go through. CPU ranks compute the same each way, GPUs by the first two.
  enum class Attention : std::uint8_t {
    // paged_decode in the order of paged_attention where they are their sequence's only ones, else
    // paged_attention.
    kByKind,
    kPrompts,  // paged_attention
    kDecodes,  // paged_decode, on GPUs in the order that is fastest: steps have no other rows
  };
  Attention attention = Attention::kByKind;
};

// Whether a mixture of experts' second products and their sums are one launch
// (ModelShape::fused_expert_rows). kAuto: in steps in which that was measured to be faster
// (docs/decisions/0078-fused-experts-from-512-rows-on.md).
enum class FusedExperts : std::uint8_t { kAuto, kOn, kOff };
constexpr std::int64_t kFusedExpertRows = 512;  // of a step, from which on kAuto has it on two GPUs
constexpr std::int64_t kNoFusedExperts = std::numeric_limits<std::int64_t>::max();

// What all steps of a model have in common.
// With up to so many rows of an expert its weights are the better left factor
// (docs/decisions/0068-experts-weights-on-the-left.md).
constexpr std::int64_t kFewExpertRows = 16;

struct ModelShape {
  const ModelConfig* config = nullptr;
  int world_size = 1;                // tensor-parallel ranks
  DType dtype = DType::kF32;         // activations, and the cache unless paged.fp8
  DType weight_dtype = DType::kF32;  // weights.h: weight_dtype()
  std::int64_t max_tokens = 0;       // in a sequence
  PagedCache paged = {};
  Target target = Target::kCpu;
  // Groups of ranks in a mixture of experts: ops/moe/expert_split.h. Several divide all_ranks().
  int expert_groups = 1;
  // Groups of world_size consecutive ranks, each with sequences and a cache of its own. Where
  // experts are spread over several groups, they make their steps together, with one exchange.
  int data_groups = 1;
  // Prompts through sequence-parallel attention: the rows of steps that are not small are spread
  // over the ranks, which multiply their own ones with all of attention's weights. Every rank then
  // has these beside its share.
  bool ulysses = false;
  // Rows of a step may have tokens that an earlier one chose, so many of them at most; 0: the host
  // knows all tokens.
  std::int64_t chosen = 0;
  // On GPUs experts' products have the weights as the left factor, where they can
  // (GroupedConfig::swap_ab), in steps in which an expert has up to so many rows on average.
  std::int64_t swapped_expert_rows = kFewExpertRows;
  // In steps of so many rows and more a mixture of experts' second products and their sums over
  // experts and ranks are one launch (ops/moe/sorted_gemm_rs.h), where every rank has all tokens of
  // a layer; bits are the same.
  std::int64_t fused_expert_rows = kNoFusedExperts;
  const predict::Machine* machine = nullptr;  // that products are chosen for; null: default configs

  int all_ranks() const { return world_size * data_groups; }
  // Steps on GPUs have all rows that they are made for, some of nobody (batch_model.h).
  bool fills_steps() const { return target == Target::kCuda; }
  // And each row in them goes through attention of its kind: tables say which rows are of which,
  // since extents are at their bounds.
  bool fills_by_kind() const {
    return fills_steps() && paged.attention == PagedCache::Attention::kByKind;
  }
  // Sequences that attention of prompts is made for in a step of so many rows: those of nobody,
  // which fill it up, are such, too.
  std::int64_t prompt_sequences(std::int64_t rows) const {
    const bool some = paged.prompts > 0 && paged.attention == PagedCache::Attention::kByKind;
    const std::int64_t nobodys = (rows + max_tokens - 1) / max_tokens;
    return some ? std::min(paged.prompts + nobodys, paged.sequences) : paged.sequences;
  }
  // Whether so many rows are their sequences' only ones.
  bool only_decodes(std::int64_t rows) const { return fills_by_kind() && rows == 1; }
  bool has_whole_attention() const { return ulysses && world_size > 1; }
  // Whether tokens of different data groups meet at the experts.
  bool shares_experts() const { return data_groups > 1 && expert_groups > 1; }
  // Ranks that have all of a mixture's experts together.
  int expert_ranks() const { return expert_groups > 1 ? all_ranks() : world_size; }
};

// Those of the data group that one of shape.all_ranks() is in.
std::vector<int> ranks_of_group(const ModelShape& shape, int rank);

}  // namespace stretto
