// RMSNorm (Zhang and Sennrich, 2019) with the residual addition before it, alone and fused with the
// all-reduce or reduce-scatter that produces what is added, or of rows that are spread over the
// ranks by columns; and the other elementwise steps of a transformer block:
// SwiGLU (Shazeer, 2020), and the addition of a bias to all rows. Rows are tokens; m is a run-time
// extent up to desc.m. Sums of squares are fp32; the normalised value is rounded to the activation
// dtype before it is multiplied by the weight, as the published models do.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

struct NormDesc {
  DType dtype = DType::kF32;         // activations
  DType weight_dtype = DType::kF32;  // weight
  std::int64_t m = 1;                // bound of the run-time extent `m`
  std::int64_t hidden = 1;
  double eps = 1e-5;
  bool add_residual = false;      // sum = x + residual is normalised, and returned
  bool symmetric_output = false;  // `out` on the symmetric heap, for an all-gather that follows
  int world_size = 1;
  friend bool operator==(const NormDesc&, const NormDesc&) = default;
};

struct NormConfig {
  std::int64_t tile_rows = 16;
  int num_workers = 1;
  // The rest is of what is summed over ranks.
  int threads = 0;       // on an SM; 0: as the code generator has it
  bool packets = false;  // pushed as packets, where few bytes are reduced
  // With packets: one rank sums each tile's rows, ranks in turn, and sends the sum to all. That is
  // 2 (P - 1) / P times a message's bytes instead of P - 1 times, and a hop more.
  bool two_shot = false;
  friend bool operator==(const NormConfig&, const NormConfig&) = default;
};
NamedFields fields_of(NormConfig& config);

NamedFields fields_of(NormDesc& desc);
// UserError naming the bad field.
void check_norm(const NormDesc& desc, const NormConfig& config);
// docs/performance/collectives.md, 'Why the defaults are what they are', has what was measured.
NormConfig default_config(const NormDesc& desc, Target target = Target::kCpu);
NormConfig default_all_reduce_config(const NormDesc& desc, Target target = Target::kCpu);
NormConfig default_reduce_scatter_config(const NormDesc& desc, Target target = Target::kCpu);
NormConfig default_columns_config(const NormDesc& desc, Target target = Target::kCpu);

// x [m, hidden], weight [1, hidden] (, residual [m, hidden]) -> out [m, hidden] (, sum [m, hidden])
Program rms_norm(const NormDesc& desc, const NormConfig& config);
// x [m, hidden] symmetric (local with packets): this rank's part of a sum over ranks, reduced
// in rank order, rounded, then added to residual: -> out [m, hidden], sum [m, hidden], the same
// bits on every rank and by every way.
Program all_reduce_add_rms_norm(const NormDesc& desc, const NormConfig& config);
// x [m, hidden], as all_reduce_add_rms_norm has it; residual [ceil(m/P), hidden] and weight
// [1, hidden] -> out, sum [ceil(m/P), hidden]: of rank r the rows [r * ceil(m/P), ...) of m, to the
// bit what all_reduce_add_rms_norm makes of them. What
// is written to rows past m means nothing.
Program reduce_scatter_add_rms_norm(const NormDesc& desc, const NormConfig& config);
// Rows whose columns are spread over the ranks, `hidden` of them on each: x [m, hidden], weight
// [1, hidden] (, residual [m, hidden]) -> out [m, hidden] (, sum [m, hidden]). Sums of squares are
// added in rank order. Not of f64, which no packet holds.
Program rms_norm_columns(const NormDesc& desc, const NormConfig& config);
// gate_up [m, 2 * hidden], gate first -> out [m, hidden] = silu(gate) * up
Program swiglu(const NormDesc& desc, const NormConfig& config);
// x [m, hidden], row [1, hidden] of weight_dtype -> out [m, hidden] = x + row, in fp32, rounded
// once
Program add_row(const NormDesc& desc, const NormConfig& config);

OperatorInfo rms_norm_info();
OperatorInfo all_reduce_add_rms_norm_info();
OperatorInfo reduce_scatter_add_rms_norm_info();
OperatorInfo rms_norm_columns_info();
OperatorInfo swiglu_info();
OperatorInfo add_row_info();

}  // namespace stretto
