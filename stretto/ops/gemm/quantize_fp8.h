// What products of e4m3 with scales of blocks (gemm.h: Scaling::kBlock) take of activations: each
// row in blocks of 128 columns, each block with a scale of its own. A scale comes from its block
// alone, so what a row becomes depends on no row beside it.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

struct QuantizeDesc {
  DType dtype = DType::kF32;        // x's
  std::int64_t m = 1;               // bound of the run-time extent `m`
  std::int64_t rows_per_token = 1;  // x has m times as many rows, as experts of m tokens have
  std::int64_t k = 1;               // columns
  bool symmetric_output = false;    // for an all-gather of both outputs that follows
  int world_size = 1;
  friend bool operator==(const QuantizeDesc&, const QuantizeDesc&) = default;
};

struct QuantizeConfig {
  std::int64_t tile_rows = 16;
  int num_workers = 1;
  friend bool operator==(const QuantizeConfig&, const QuantizeConfig&) = default;
};
NamedFields fields_of(QuantizeConfig& config);

NamedFields fields_of(QuantizeDesc& desc);
QuantizeConfig default_config(const QuantizeDesc& desc, Target target = Target::kCpu);

// x [R, k] -> out [R, k] e4m3, scales [R, ceil(k/128)] f32, of which the product stands for x. The
// largest number of a block becomes 448, the largest of e4m3; blocks of zeros stay zeros. UserError
// naming the bad field.
Program quantize_fp8(const QuantizeDesc& desc, const QuantizeConfig& config);

QuantizeDesc quantize_desc(const OpShape& shape);
OperatorInfo quantize_fp8_info();  // m: rows, or tokens with two rows where it is odd; k: columns

}  // namespace stretto
