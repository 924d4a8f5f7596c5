// Which products are measured, and the configs of ours that compete for each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ops/gemm/gemm.h"

namespace stretto::bench {

// c[m,n] = a[m,k] * b[n,k]^T.
struct GemmShape {
  std::string label;  // "llama3-8b/gate_up"
  std::int64_t m = 0, n = 0, k = 0;
};

// What one of `tp` ranks computes in a layer of Llama-3-8B, Llama-3-70B and Qwen3-32B with
// Megatron's split (the q, k and v projections as one product, gate and up as one), at m = 1024,
// 4096 and 8192; and 8192^3. Sorted so that those of one n and k stand together.
std::vector<GemmShape> tensor_parallel_shapes(int tp);

GemmDesc gemm_desc(const GemmShape& shape, DType dtype);

// Configs for 16-bit products on a GPU of `num_sms`: tiles of one and two blocks, in raster orders.
// `quick`: one raster order each.
std::vector<GemmConfig> gpu_gemm_configs(int num_sms, bool quick);

// "256x256x64 stages 4 cluster 2 raster 8", every part after the tile optional.
GemmConfig parse_gemm_config(const std::string& text, int num_sms);

}  // namespace stretto::bench
