#include "stretto/ops/gemm/gemm_shapes.h"

#include <algorithm>

namespace stretto {
namespace {

GemmDesc desc_of(const OpShape& s) {
  return {.world_size = s.world_size,
          .m = row_bucket(s.m),
          .n = s.n,
          .k = s.k,
          .a_dtype = s.dtype,
          .b_dtype = s.dtype,
          .c_dtype = s.dtype};
}

GemmDesc swiglu_of(const OpShape& s) {
  GemmDesc d = desc_of(s);
  d.b_dtype = DType::kBF16;
  d.swiglu = true;
  return d;
}

GemmDesc fp8_of(const OpShape& s) {
  GemmDesc d = desc_of(s);
  d.a_dtype = d.b_dtype = DType::kF8E4M3;
  d.scaling = Scaling::kRowWise;
  return d;
}

GemmDesc fp8_block_of(const OpShape& s) {
  GemmDesc d = fp8_of(s);
  d.scaling = Scaling::kBlock;
  return d;
}

using MakeConfig = GemmConfig (*)(const GemmDesc&, Target);

// Several workers to every tile, with short steps.
GemmConfig split_config(const GemmDesc& d, Target target) {
  GemmConfig cfg = default_config(d, target);
  cfg.loop.tile.bk = std::min<std::int64_t>(cfg.loop.tile.bk, 64);
  cfg.loop.tile.bn =
      std::min<std::int64_t>(cfg.loop.tile.bn, 128);  // beside the sums, a part of them
  cfg.split_k = static_cast<int>(std::min<std::int64_t>(3, ceil_div(d.k, cfg.loop.tile.bk)));
  cfg.loop.num_compute_sms =
      gpu_workers(ceil_div(d.m, cfg.loop.tile.bm) * ceil_div(d.n, cfg.loop.tile.bn) * cfg.split_k,
                  target == Target::kCpu ? 4 : target.sms());
  return cfg;
}

GemmOperator row(const char* name, const char* summary, GemmDesc (*desc)(const OpShape&),
                 MakeConfig config = default_config) {
  return {.name = name, .summary = summary, .desc = desc, .config = config, .program = gemm};
}

}  // namespace

std::int64_t row_bucket(std::int64_t m) { return ceil_div(m, std::int64_t{8}) * 8; }

OpShape with_defaults(OpShape s) {
  if (s.m == 0) s.m = 512;
  if (s.n == 0) s.n = 512;
  if (s.k == 0) s.k = 512;
  return s;
}

OpShape large_gemm() { return {.m = 4096, .n = 4096, .k = 4096, .dtype = DType::kBF16}; }

std::vector<OpShape> gemm_shapes(int world_size) {
  return {{.world_size = world_size, .m = 32, .n = 32, .k = 64, .dtype = DType::kF32},
          {.world_size = world_size, .m = 21, .n = 29, .k = 51, .dtype = DType::kF32},
          {.world_size = world_size, .m = 13, .n = 37, .k = 35, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 3, .n = 19, .k = 70, .dtype = DType::kF16}};
}

GemmOperator gemm_operator() {
  return row("gemm", "c[m,n] = a[m,k] * b[n,k]^T on every rank by itself", desc_of);
}

GemmOperator gemm_swiglu_operator() {
  return row("gemm_swiglu", "c[m,n] = silu(a * b_gate^T) * (a * b_up^T), bfloat16 weights [n,k]",
             swiglu_of);
}

GemmOperator gemm_fp8_operator() {
  return row("gemm_fp8",
             "c[m,n] = a[m,k] * b[n,k]^T of fp8 factors with a scale for each row of both", fp8_of);
}

GemmOperator gemm_fp8_block_operator() {
  return row("gemm_fp8_block",
             "c[m,n] = a[m,k] * b[n,k]^T of fp8 factors, scales for 1 x 128 of a, 128 x 128 of b",
             fp8_block_of);
}

GemmOperator gemm_split_k_operator() {
  return row("gemm_split_k", "c[m,n] = a[m,k] * b[n,k]^T, k in parts that different workers sum",
             desc_of, split_config);
}

OperatorInfo gemm_info() { return gemm_operator().info(); }
OperatorInfo gemm_swiglu_info() { return gemm_swiglu_operator().info(); }
OperatorInfo gemm_fp8_info() { return gemm_fp8_operator().info(); }
OperatorInfo gemm_fp8_block_info() { return gemm_fp8_block_operator().info(); }

OperatorInfo gemm_split_k_info() {
  OperatorInfo split = gemm_split_k_operator().info();
  split.shapes = [](int world_size) {
    std::vector<OpShape> shapes = gemm_shapes(world_size);
    for (OpShape& s : shapes) s.k += 130;  // three steps and more
    return shapes;
  };
  return split;
}

}  // namespace stretto
