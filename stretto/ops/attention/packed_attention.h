// Causal or full attention of several sequences at once, one after another in the rows of one
// tensor, each of a length of its own, none at all among them. Their keys and values lie like the
// queries (packed_attention), or in a cache of pages that tables hand out to the sequences
// (paged_attention: prompts that go on with what is cached, and decoding of a batch).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct PackedAttentionDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;           // bound of the query tokens of all sequences
  std::int64_t sequences = 1;   // some may be empty
  std::int64_t page = 0;        // tokens of a page of the cache; 0: keys lie like queries
  std::int64_t num_pages = 0;   // the cache's
  std::int64_t max_tokens = 0;  // a sequence's in the cache, this launch's included
  int num_heads = 1;            // this rank's
  int num_kv_heads = 1;         // this rank's; divides num_heads
  std::int64_t head_dim = 2;
  bool causal = true;       // false: every token sees all of its sequence; not with a window
  std::int64_t window = 0;  // the last `window` tokens, the own one included; 0: all
  std::optional<double> scale = {};  // for scores; none: 1 / sqrt(head_dim)
  bool fp8 = false;                  // the pages are e4m3 with scales (cached_rows.h)
  bool lse = false;                  // also the logarithm of each row's sum of weights
  // The rows before the first sequence's are others', which this launch neither reads nor writes.
  bool behind_others = false;
  int world_size = 1;

  std::int64_t pages_per_sequence() const;  // columns of the table of pages
  friend bool operator==(const PackedAttentionDesc&, const PackedAttentionDesc&) = default;
};

struct PackedAttentionConfig {
  std::int64_t tile_rows = 32;  // queries
  std::int64_t tile_kv = 64;    // keys and values per step; divides the page
  // Over pages, tokens of the first run, whole steps: keys add up in runs (attention_runs.h); 0:
  // all are one.
  std::int64_t first_run = 0;
  std::int64_t blocks = 1;  // tiles of rows of a sequence; longer ones take turns in them
  int num_workers = 1;
  int num_stages = 0;    // blocks of keys and of values loaded ahead; 0: none
  bool tickets = false;  // tiles to whichever worker is free
  friend bool operator==(const PackedAttentionConfig&, const PackedAttentionConfig&) = default;
};
NamedFields fields_of(PackedAttentionConfig& config);

NamedFields fields_of(PackedAttentionDesc& desc);
// docs/performance/attention.md, 'Why the defaults are what they are', has what was measured.
PackedAttentionConfig default_config(const PackedAttentionDesc& desc, Target target);

// Extent m. Table starts [sequences + 1], a partition of [0, m): sequence s has the rows starts[s]
// .. starts[s + 1] of q [m, num_heads * head_dim] -> out as q; with lse also lse [num_heads, m]
// f32. k, v [m, num_kv_heads * head_dim]. UserError naming a bad field. The interface is that of
// FlashAttention's varlen functions (cu_seqlens).
Program packed_attention(const PackedAttentionDesc& desc, const PackedAttentionConfig& config);
// The same with k_pages, v_pages [num_pages * num_kv_heads, page, head_dim]: token t of sequence s
// is row t % page of page pages[s, t / page], KV head h of page i is entry i * num_kv_heads + h.
// Tables pages [sequences, pages_per_sequence] and tokens [sequences], how many a sequence has in
// the cache, those of its queries included and last. Rows that see nothing have -inf as lse, and
// nothing that counts as out. An entry that names no page is a Fault with its table and place.
// With fp8 the cache is that of cached_rows.h, and its numbers take part as their dtype has them.
// With behind_others the table starts has one entry more, the first, and out is a state; no lse.
// After PagedAttention (Kwon et al. 2023). With a window, pages that no query sees are not read.
Program paged_attention(const PackedAttentionDesc& desc, const PackedAttentionConfig& config);

OperatorInfo packed_attention_info();
OperatorInfo paged_attention_info();
OperatorInfo paged_attention_fp8_info();

}  // namespace stretto
