#include "stretto/ops/ulysses/ulysses_shapes.h"

#include "stretto/ops/gemm/gemm_shapes.h"

namespace stretto {
namespace {

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 4 * world_size + 3, .n = 5 * world_size, .k = 9},
          {.world_size = world_size, .m = 10, .n = 16, .k = 16, .dtype = DType::kBF16}};
}

OpShape large() { return {.m = 16384, .n = 6144, .k = 4096, .dtype = DType::kBF16}; }

}  // namespace

UlyssesConfig ulysses_config(const UlyssesDesc& d, Target target, UlyssesDefault default_of) {
  UlyssesConfig c = default_of(d, target);
  if (target == Target::kCuda || d.n >= 64) return c;
  c.loop.tile = {.bm = 2, .bn = 3, .bk = 4};
  c.loop.num_compute_sms = 2;
  if (c.comm_rows > 0) c.comm_rows = 4, c.num_queues = 2;
  return c;
}

UlyssesDesc gemm_a2a_desc(const OpShape& shape) {
  OpShape s = with_defaults(shape);
  std::int64_t world = s.world_size;
  bool small = s.n < 64;
  return {.world_size = s.world_size,
          .m = s.m,
          .n = ceil_div(s.n, world) * world,
          .k = ceil_div(s.k, world * (small ? 4 : 64)) * world * (small ? 4 : 64),
          .dtype = s.dtype,
          .weight_dtype = s.dtype,
          .bias = s.m % 2 == 1};
}

UlyssesDesc a2a_gemm_desc(const OpShape& s) {
  UlyssesDesc d = gemm_a2a_desc(s);
  d.residual = d.bias;
  return d;
}

OperatorInfo gemm_a2a_info() {
  return {.name = "gemm_a2a",
          .summary =
              "m tokens spread over the ranks times n weights, whose columns go to the ranks "
              "of their heads; k summed",
          .program =
              [](const OpShape& s) {
                UlyssesDesc d = gemm_a2a_desc(s);
                return gemm_a2a(d, ulysses_config(d, s.target, default_gemm_a2a_config));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo a2a_gemm_info() {
  return {.name = "a2a_gemm",
          .summary =
              "m tokens, k columns of heads spread over the ranks, exchanged so that each "
              "rank has its tokens, times n weights, + residual",
          .program =
              [](const OpShape& s) {
                UlyssesDesc d = a2a_gemm_desc(s);
                return a2a_gemm(d, ulysses_config(d, s.target, default_a2a_gemm_config));
              },
          .shapes = shapes,
          .large = large()};
}

}  // namespace stretto
