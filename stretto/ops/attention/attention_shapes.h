// What the rows of the catalog make of a shape: descs and configs of attention in all its forms.
// k: head size.
#pragma once

#include <string>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/decode_attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/paged_write.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

// m: new tokens; n: cache.
AttentionDesc attention_desc(const OpShape& shape);
// Several sequences of one length in one of the shapes.
AttentionDesc attention_batch_desc(const OpShape& shape);
AttentionDesc decode_desc(OpShape shape);
AttentionConfig rope_config(const AttentionDesc& desc, Target target);
AttentionConfig attention_config(const AttentionDesc& desc, Target target);
DecodeAttentionConfig decode_config(const AttentionDesc& desc, Target target);

// m: query tokens; n: tokens of the cache.
FlashDecodeDesc flash_decode_desc(const OpShape& shape);
FlashDecodeConfig flash_decode_config(const FlashDecodeDesc& desc, Target target);

// m: query tokens of all sequences; n: sequences, or with pages tokens of one in the cache.
enum class PackedKeys { kLikeQueries, kPaged, kPagedFp8 };
PackedAttentionDesc packed_desc(const OpShape& shape, PackedKeys keys);
Program packed_program(const OpShape& shape, PackedKeys keys);

// m: sequences; n: tokens of one in the cache.
PagedDecodeDesc paged_decode_desc(const OpShape& shape, bool fp8);
Program paged_decode_program(const OpShape& shape, bool fp8);

// m: new tokens; n: tokens that the cache has room for.
PagedWriteDesc paged_write_desc(const OpShape& shape, bool fp8);
Program paged_write_program(const OpShape& shape, bool fp8);

// m: tokens of all ranks; n: heads of queries.
SequenceAttentionDesc sequence_desc(const OpShape& shape);
// name: sequence_attention or token_ring.
Program sequence_program(const std::string& name, const SequenceAttentionDesc& desc, Target target);
// What the row has for ring_attention: the default, or in tests another number.
int ring_slots(const SequenceAttentionDesc& desc, const OpShape& shape);
Program ring_program(const SequenceAttentionDesc& desc, Target target, int num_slots);

}  // namespace stretto
