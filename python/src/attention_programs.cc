#include "attention_programs.h"

#include "fields.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// What attention of every kind has.
template <typename Desc>
Desc heads(Fields& fields) {
  Desc d;
  fields.take({{"dtype", d.dtype},
               {"m", d.m},
               {"num_heads", d.num_heads},
               {"num_kv_heads", d.num_kv_heads},
               {"head_dim", d.head_dim},
               {"scale", d.scale}});
  return d;
}

AttentionDesc cached(Fields& fields) {
  auto d = heads<AttentionDesc>(fields);
  fields.take({{"batch", d.batch},
               {"max_tokens", d.max_tokens},
               {"window", d.window},
               {"causal", d.causal},
               {"lse", d.lse}});
  return d;
}

SequenceAttentionDesc sequence(Fields& fields) {
  auto d = heads<SequenceAttentionDesc>(fields);
  fields.take({{"world_size", d.world_size},
               {"causal", d.causal},
               {"window", d.window},
               {"lse", d.lse},
               {"contiguous", d.contiguous}});
  return d;
}

FlashDecodeDesc spread_cache(Fields& fields) {
  auto d = heads<FlashDecodeDesc>(fields);
  fields.take({{"world_size", d.world_size},
               {"max_tokens", d.max_tokens},
               {"window", d.window},
               {"block", d.block},
               {"lse", d.lse}});
  return d;
}

PackedAttentionDesc packed(Fields& fields) {
  auto d = heads<PackedAttentionDesc>(fields);
  fields.take(
      {{"sequences", d.sequences}, {"causal", d.causal}, {"window", d.window}, {"lse", d.lse}});
  return d;
}

template <typename Desc>
void take_pages(Fields& fields, Desc& d) {
  fields.take(
      {{"page", d.page}, {"num_pages", d.num_pages}, {"max_tokens", d.max_tokens}, {"fp8", d.fp8}});
}

PackedAttentionDesc packed_with_pages(Fields& fields) {
  PackedAttentionDesc d = packed(fields);
  take_pages(fields, d);
  return d;
}

PagedDecodeDesc decoded_pages(Fields& fields) {
  auto d = heads<PagedDecodeDesc>(fields);
  fields.take({{"window", d.window}, {"lse", d.lse}});
  take_pages(fields, d);
  return d;
}

UlyssesDesc projection(Fields& fields) {
  UlyssesDesc d;
  fields.take({{"world_size", d.world_size},
               {"dtype", d.dtype},
               {"m", d.m},
               {"n", d.n},
               {"k", d.k},
               {"bias", d.bias}});
  d.weight_dtype = d.dtype;
  return d;
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_operator(m, "attention", cached, attention, default_config);
  bind_operator(m, "sequence_attention", sequence, sequence_attention, default_config);
  bind_operator(m, "ring_attention", sequence, ring_attention, default_ring_config);
  bind_operator(m, "token_ring", sequence, token_ring, default_token_ring_config);
  bind_operator(m, "flash_decode", spread_cache, flash_decode, default_config);
  bind_operator(m, "packed_attention", packed, packed_attention, default_config);
  bind_operator(m, "paged_attention", packed_with_pages, paged_attention, default_config);
  bind_operator(m, "paged_decode", decoded_pages, paged_decode, default_config);
  bind_operator(m, "gemm_a2a", projection, gemm_a2a, default_gemm_a2a_config);
  bind_operator(m, "a2a_gemm", projection, a2a_gemm, default_a2a_gemm_config);
}

}  // namespace stretto::python
