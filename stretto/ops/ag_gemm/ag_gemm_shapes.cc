#include "stretto/ops/ag_gemm/ag_gemm_shapes.h"

namespace stretto {
namespace {

// `form` has what a shape does not say.
AgGemmOperator row(const char* name, const char* summary, Gather gather,
                   const AgGemmDesc& form = {}) {
  auto desc = [form](const OpShape& s) {
    AgGemmDesc d = form;
    d.world_size = s.world_size;
    d.m = row_bucket(s.m);
    d.n = ceil_div(s.n, std::int64_t{s.world_size});
    d.k = s.k;
    d.a_dtype = d.b_dtype = form.scaling == Scaling::kNone ? s.dtype : DType::kF8E4M3;
    d.c_dtype = s.dtype;
    return d;
  };
  auto config = [gather](const AgGemmDesc& d, Target target) {
    return default_config(d, target, gather);
  };
  return {.name = name, .summary = summary, .desc = desc, .config = config, .program = ag_gemm};
}

}  // namespace

AgGemmOperator ag_gemm_operator() {
  return row("ag_gemm",
             "c[m,n/P] = all_gather(a[m/P,k]) * b[n/P,k]^T, copy engines pull the peers' rows",
             Gather::kPull);
}

AgGemmOperator ag_gemm_push_operator() {
  return row("ag_gemm_push",
             "c[m,n/P] = all_gather(a[m/P,k]) * b[n/P,k]^T, SMs push the own rows to the peers",
             Gather::kPush);
}

AgGemmOperator ag_gemm_fp8_operator() {
  return row("ag_gemm_fp8",
             "ag_gemm of fp8 factors with a scale for each row of both, those of a gathered too",
             Gather::kPull, {.scaling = Scaling::kRowWise});
}

AgGemmOperator ag_gemm_fp8_block_operator() {
  return row("ag_gemm_fp8_block",
             "ag_gemm of fp8 factors, scales for 1 x 128 of a, gathered too, and 128 x 128 of b",
             Gather::kPull, {.scaling = Scaling::kBlock});
}

AgGemmOperator ag_gemm_gathered_operator() {
  return row("ag_gemm_gathered",
             "ag_gemm of weights [k,n/P] that gives the gathered a[m,k], too: what gradients take",
             Gather::kSend, {.b_kn = true, .gathered = true});
}

OperatorInfo ag_gemm_info() { return ag_gemm_operator().info(); }
OperatorInfo ag_gemm_push_info() { return ag_gemm_push_operator().info(); }
OperatorInfo ag_gemm_fp8_info() { return ag_gemm_fp8_operator().info(); }
OperatorInfo ag_gemm_fp8_block_info() { return ag_gemm_fp8_block_operator().info(); }
OperatorInfo ag_gemm_gathered_info() { return ag_gemm_gathered_operator().info(); }

}  // namespace stretto
