#include "stretto/ops/norm/norm_shapes.h"

#include <algorithm>

namespace stretto {
namespace {

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 9, .n = 31, .dtype = DType::kF32},
          {.world_size = world_size, .m = 3, .n = 64, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 6, .n = 17, .dtype = DType::kF16},
          {.world_size = world_size, .m = 5, .n = 256, .dtype = DType::kF32}};  // in lines on GPUs
}

OpShape large() { return {.m = 4096, .n = 8192, .dtype = DType::kBF16}; }

}  // namespace

NormDesc norm_desc(const OpShape& s) {
  return {.dtype = s.dtype,
          .weight_dtype = s.dtype,
          .m = s.m > 0 ? s.m : 64,
          .hidden = s.n > 0 ? s.n : 256,
          .world_size = s.world_size};
}

NormConfig norm_config(const NormDesc& d, Target target) {
  if (target == Target::kCuda) return default_config(d, target);
  return {.tile_rows = d.m > 256 ? 16 : std::min<std::int64_t>(4, d.m)};
}

NormConfig all_reduce_norm_config(const NormDesc& d, Target target) {
  return target == Target::kCuda ? default_all_reduce_config(d, target) : norm_config(d, target);
}

NormConfig reduce_scatter_norm_config(const NormDesc& d, Target target) {
  if (target == Target::kCuda) return default_reduce_scatter_config(d, target);
  return {.tile_rows = 2, .num_workers = 2};
}

NormDesc columns_norm_desc(const OpShape& s) {
  NormDesc d = norm_desc(s);
  d.hidden = ceil_div(d.hidden, std::int64_t{d.world_size});
  d.add_residual = s.m % 2 == 1;
  return d;
}

NormConfig columns_norm_config(const NormDesc& d, Target target) {
  if (target == Target::kCuda) return default_columns_config(d, target);
  return {.tile_rows = d.m > 256 ? 16 : 2, .num_workers = 2, .packets = true};
}

NormDesc with_residual(NormDesc d) {
  d.add_residual = true;
  return d;
}

OperatorInfo rms_norm_info() {
  return {.name = "rms_norm",
          .summary = "residual addition and RMSNorm of [m, n]",
          .program =
              [](const OpShape& s) {
                NormDesc d = with_residual(norm_desc(s));
                return rms_norm(d, norm_config(d, s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo all_reduce_add_rms_norm_info() {
  return {.name = "all_reduce_add_rms_norm",
          .summary = "sum over ranks of [m, n], residual addition, RMSNorm, in one program",
          .program =
              [](const OpShape& s) {
                return all_reduce_add_rms_norm(norm_desc(s),
                                               all_reduce_norm_config(norm_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo reduce_scatter_add_rms_norm_info() {
  return {.name = "reduce_scatter_add_rms_norm",
          .summary = "sum over ranks of [m, n] by runs of rows, residual addition, RMSNorm",
          .program =
              [](const OpShape& s) {
                NormDesc d = norm_desc(s);
                return reduce_scatter_add_rms_norm(d, reduce_scatter_norm_config(d, s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo rms_norm_columns_info() {
  return {.name = "rms_norm_columns",
          .summary =
              "RMSNorm of [m, n] whose columns are spread over the ranks, of odd m with a "
              "residual addition before it",
          .program =
              [](const OpShape& s) {
                NormDesc d = columns_norm_desc(s);
                return rms_norm_columns(d, columns_norm_config(d, s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo swiglu_info() {
  return {.name = "swiglu",
          .summary = "silu(gate) * up of [m, 2n]",
          .program =
              [](const OpShape& s) {
                return swiglu(norm_desc(s), norm_config(norm_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo add_row_info() {
  return {.name = "add_row",
          .summary = "a bias [n] added to every row of [m, n]",
          .program =
              [](const OpShape& s) {
                return add_row(norm_desc(s), norm_config(norm_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

}  // namespace stretto
