#include "stretto/ops/embedding/embedding_shapes.h"

#include <algorithm>

namespace stretto {
namespace {

VocabConfig config_of(const VocabDesc& d) {
  VocabConfig c = default_config(d);
  c.tile_rows = std::min<std::int64_t>(c.tile_rows, 4);
  c.tile_vocab = std::min<std::int64_t>(c.tile_vocab, 64);
  return c;
}

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 6, .n = 50, .k = 16, .dtype = DType::kF32},
          {.world_size = world_size, .m = 9, .n = 101, .k = 13, .dtype = DType::kBF16}};
}

// With tokens that were chosen before.
std::vector<OpShape> lookup_shapes(int world_size) {
  std::vector<OpShape> out = shapes(world_size);
  for (OpShape s : shapes(world_size)) {
    s.m += 4;
    s.sizes = {{"chosen", 5}};
    out.push_back(s);
  }
  return out;
}

OpShape large() { return {.m = 64, .n = 128256, .k = 4096, .dtype = DType::kBF16}; }

}  // namespace

// m: tokens; n: vocabulary; k: hidden size.
VocabDesc vocab_desc(const OpShape& s) {
  return {.dtype = s.dtype,
          .weight_dtype = s.dtype,
          .m = s.m > 0 ? s.m : 16,
          .hidden = s.k > 0 ? s.k : 128,
          .vocab = s.n > 0 ? s.n : 1000,
          .sequence_parallel = s.m % 2 == 1,
          .chosen = s.sizes.contains("chosen") ? s.sizes.at("chosen") : 0,
          .world_size = s.world_size};
}

VocabConfig lookup_config(const VocabDesc& d, Target target) {
  return target == Target::kCuda ? embedding_gpu_config(d, target.gpu()) : config_of(d);
}

VocabConfig head_config(const VocabDesc& d, Target target) {
  return target == Target::kCuda ? lm_head_gpu_config(d, target.gpu()) : config_of(d);
}

OperatorInfo embedding_info() {
  return {.name = "embedding",
          .summary = "m tokens looked up in a table of n rows of k, split over the ranks",
          .program =
              [](const OpShape& s) {
                return embedding(vocab_desc(s), lookup_config(vocab_desc(s), s.target));
              },
          .shapes = lookup_shapes,
          .large = large()};
}

OperatorInfo lm_head_info() {
  return {.name = "lm_head",
          .summary = "[m, k] times a table of n rows, split over the ranks; logits on every rank",
          .program =
              [](const OpShape& s) {
                return lm_head(vocab_desc(s), head_config(vocab_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

}  // namespace stretto
