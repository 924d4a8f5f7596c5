// Token embedding and LM head over a vocabulary split by rows: rank r holds rows [r * V', (r + 1) *
// V') of the table, V' = ceil(V / P). Rows past the vocabulary are padding. m is a run-time extent
// up to desc.m.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

struct VocabDesc {
  DType dtype = DType::kF32;         // activations
  DType weight_dtype = DType::kF32;  // table
  std::int64_t m = 1;
  std::int64_t hidden = 1;
  std::int64_t vocab = 1;
  bool sequence_parallel = false;  // embedding: a rank keeps its ceil(m / P) rows only
  std::int64_t chosen = 0;         // embedding: tokens that were chosen before; 0: none
  int world_size = 1;
  friend bool operator==(const VocabDesc&, const VocabDesc&) = default;
};

struct VocabConfig {
  std::int64_t tile_rows = 16;
  std::int64_t tile_vocab = 512;
  std::int64_t tile_k = 0;  // lm_head: hidden columns of one step; 0: all
  int num_stages = 0;       // lm_head: steps loaded ahead; 0: none
  int num_workers = 1;      // in each role
  friend bool operator==(const VocabConfig&, const VocabConfig&) = default;
};
NamedFields fields_of(VocabConfig& config);

NamedFields fields_of(VocabDesc& desc);
VocabConfig default_config(const VocabDesc& desc);
VocabConfig embedding_gpu_config(const VocabDesc& desc, const GpuTarget& gpu);
VocabConfig lm_head_gpu_config(const VocabDesc& desc, const GpuTarget& gpu);
std::int64_t vocab_per_rank(const VocabDesc& desc);

// tokens [m] i32 in 0..vocab-1 (contract), table [V', hidden] -> out [m, hidden], or [ceil(m/P),
// hidden] when sequence-parallel: each rank looks up the tokens it holds, the others contribute
// zeros, and the sum is exact. With desc.chosen also chosen [desc.chosen, 1] i32, tokens that a
// kernel has left on every rank, and sources [m] i32 in -1..chosen-1 (contract): a row's token is
// tokens[row] where its source is -1, else chosen[source], beside which tokens[row] is 0.
Program embedding(const VocabDesc& desc, const VocabConfig& config);
// x [m, hidden], the same on every rank, table [V', hidden] -> logits [m, vocab] f32, symmetric:
// each rank stores its columns to every rank as it computes them.
Program lm_head(const VocabDesc& desc, const VocabConfig& config);

OperatorInfo embedding_info();
OperatorInfo lm_head_info();

}  // namespace stretto
