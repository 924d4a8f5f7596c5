// Tokens to the ranks that have their experts, each token once per rank: from routing (route.h) to
// the rows that grouped products read (grouped_gemm.h, by the tables of ep_place.h). What comes
// back goes through ep_return.h. Whoever has a token stores it at every rank that has experts of
// it, in the row that the token has in any case: nothing is counted, listed or fetched. Rows of
// tokens that go elsewhere are left alone, and ep_place.h passes them over. Tokens go straight into
// the caller's tensors, once their rank says that its launch has begun; or, with two slots, at once
// into buffers that launches use in turn, out of which their rank copies.
#pragma once

#include "stretto/ops/moe/ep_desc.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct SendConfig {
  int num_workers = 1;
  int threads = 0;               // in a worker's GPU block; 0: by the resource
  std::int64_t tile_tokens = 1;  // that a worker sends one after the other, and then says so
  int num_slots = 1;             // 2: all tokens travel to all ranks, none of which is asked first
  friend bool operator==(const SendConfig&, const SendConfig&) = default;
};
NamedFields fields_of(SendConfig& config);

// `private_results`: what comes is in memory that other ranks do not reach. Short steps have two
// slots then, as something has to copy anyway. docs/performance/exchange.md, 'Why the defaults are
// what they are', has what was measured.
SendConfig default_send_config(const EpDesc& desc, Target target = Target::kCpu,
                               bool private_results = false);

// Extent m. Inputs for own tokens: x [ceil(m / P), hidden]; experts [ceil(m / P), top_k] i32 in
// 0..num_experts-1; weights [ceil(m / P), top_k] f32. With row s * S + t of token t of rank s:
// recv [P * S, hidden]           state: rows of tokens with an expert here are replaced
// recv_experts [P * S, top_k]    i32, the experts of all tokens; -1 past the tokens
// recv_weights [P * S, top_k]    f32, their weights; 0 past the tokens
// positions [S, P] i32           t where token t goes to a rank, or -1
// ep_place.h, grouped products and ep_return.h read these. With one slot all but
// positions are symmetric, and all ranks are given the same tensors. UserError naming the field of
// a bad desc or config; at a launch, the table and entry that break their contract.
Program ep_send(const EpDesc& desc, const SendConfig& config);

// The same, but tokens travel as e4m3, a scale for every 128 elements of a token (DeepEP's
// low-latency dispatch): x [ceil(m / P), B, 128] with B = hidden / 128; in place of recv
// recv [P * S, B, 128]           e4m3, each block over its scale, rounded to nearest
// recv_scales [P * S, B, 1]      f32 state, as recv: the block's largest magnitude / 448, of a
//   magnitude below 1e-4 (zeros among them) as of 1e-4
// which grouped products with block scales read as they are. UserError also where 128 does not
// divide hidden.
Program ep_send_fp8(const EpDesc& desc, const SendConfig& config);

// m: tokens of all ranks with three of 5 experts each, n: hidden size.
OperatorInfo ep_send_info();
OperatorInfo ep_send_fp8_info();

}  // namespace stretto
