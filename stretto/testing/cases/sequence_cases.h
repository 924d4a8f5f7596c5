// The cases of attention over ranks, for the catalog and for tests of what the catalog's shapes do
// not ask for. Of a shape they take target and rows, and whether the config is the tests' own.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// name: sequence_attention, ring_attention or token_ring.
OpCase sequence_case(const std::string& name, const SequenceAttentionDesc& desc,
                     const OpShape& shape, std::uint64_t seed);
// ring_attention with another number of slots than its default.
OpCase ring_case(const SequenceAttentionDesc& desc, int num_slots, const OpShape& shape,
                 std::uint64_t seed);
OpCase flash_decode_case(const FlashDecodeDesc& desc, const OpShape& shape, std::uint64_t seed);

}  // namespace stretto
