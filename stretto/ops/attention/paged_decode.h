// Attention of one new token a sequence, for several sequences over a cache of pages: a decoding
// step of a batch. It does what paged_attention does for prompts, but a tile has all query heads of
// a KV head, so that the cache is read once. Where sequences alone are too few, their tokens are
// cut into runs that different workers read at the same time (split-KV, Dao et al., Flash-Decoding,
// 2023). A second role adds the runs up in their order, in the same launch. Runs are equal shares
// of a sequence, or lie where attention_runs.h has them, and then how they are read changes no bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct PagedDecodeDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;           // bound of the sequences; a launch has 0 <= m <= this
  std::int64_t page = 1;        // tokens of a page
  std::int64_t num_pages = 1;   // the cache's
  std::int64_t max_tokens = 1;  // a sequence's, the new one included
  int num_heads = 1;            // this rank's
  int num_kv_heads = 1;         // this rank's; divides num_heads
  std::int64_t head_dim = 2;
  std::int64_t window = 0;           // the last `window` tokens, the new one included; 0: all
  std::optional<double> scale = {};  // for scores; none: 1 / sqrt(head_dim)
  bool fp8 = false;                  // the cache is e4m3 with scales (cached_rows.h)
  bool lse = false;                  // also the logarithm of each row's sum of weights
  int world_size = 1;

  std::int64_t pages_per_sequence() const;  // columns of the table of pages
  friend bool operator==(const PagedDecodeDesc&, const PagedDecodeDesc&) = default;
};

struct PagedDecodeConfig {
  std::int64_t tile_kv = 64;  // tokens per step; divides the page
  // Tokens of the first run, whole steps (attention_runs.h); 0: runs are equal shares.
  std::int64_t first_run = 0;
  // Parts of a sequence that are read by themselves: a share each or, with a first_run, every
  // splits-th run.
  std::int64_t splits = 1;
  int num_workers = 1;    // that read runs
  int num_combiners = 1;  // that add them up, where there are several
  int num_stages = 0;     // blocks of keys and of values loaded ahead; 0: none
  // Rows of a tile, the query heads of a KV head and others that nobody stores; 0: the heads alone.
  std::int64_t tile_rows = 0;
  bool sums_by_product = false;  // weights add up beside values (online_softmax.h)
  friend bool operator==(const PagedDecodeConfig&, const PagedDecodeConfig&) = default;
};
NamedFields fields_of(PagedDecodeConfig& config);

NamedFields fields_of(PagedDecodeDesc& desc);
// docs/performance/attention.md, 'Why the defaults are what they are', has what was measured.
PagedDecodeConfig default_config(const PagedDecodeDesc& desc, Target target);
// The config by which a row adds up in the order of paged_attention with its default config, bit by
// bit: the same blocks of keys one after the other, through the same products, in the same runs.
// None where there is none: on GPUs where the tensor core does not take the heads.
// With a first_run both programs' runs begin with that.
std::optional<PagedDecodeConfig> prompt_order_config(const PagedDecodeDesc& desc, Target target,
                                                     std::int64_t first_run = 0);

// Extent m. q [m, num_heads, head_dim] -> out as q; with lse also lse [m, num_heads] f32.
// k_pages, v_pages [num_pages * num_kv_heads, page, head_dim] and the tables pages
// [m, pages_per_sequence] and tokens [m] as paged_attention has them (packed_attention.h); tokens
// counts the new one, whose key and value are in the cache. With a window, pages before it are not
// read. Sequences without any give no numbers, and -inf as lse.
// With fp8 the cache is that of cached_rows.h, and its numbers take part as their dtype has them.
// An entry that names no page is a Fault with its table and place. UserError naming a bad field.
// The interface is that of flash_attn_with_kvcache with a block_table.
Program paged_decode(const PagedDecodeDesc& desc, const PagedDecodeConfig& config);

// m: sequences, n: most tokens of one, k: head size.
OperatorInfo paged_decode_info();
OperatorInfo paged_decode_fp8_info();

}  // namespace stretto
