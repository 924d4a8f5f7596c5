// Plain fp64 references of the normalisations.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "stretto/ops/norm/norm.h"

namespace stretto {
namespace {

NormDesc desc_of(const OpShape& s) {
  return {.dtype = s.dtype,
          .weight_dtype = s.dtype,
          .m = s.m > 0 ? s.m : 64,
          .hidden = s.n > 0 ? s.n : 256,
          .world_size = s.world_size};
}

NormConfig config_of(const NormDesc& d, Target target) {
  if (target == Target::kCuda) return default_config(d, target);
  return {.tile_rows = d.m > 256 ? 16 : std::min<std::int64_t>(4, d.m)};
}

NormConfig all_reduce_config_of(const NormDesc& d, Target target) {
  return target == Target::kCuda ? default_all_reduce_config(d, target) : config_of(d, target);
}

// y[row] = x[row] / rms(x[row]) * weight
void norm_rows(const NormDesc& d, std::int64_t m, const Values& x, const Values& weight,
               Values& y) {
  for (std::int64_t row = 0; row < m; ++row) {
    auto at = [&](std::int64_t col) { return static_cast<std::size_t>(row * d.hidden + col); };
    double squares = 0;
    for (std::int64_t col = 0; col < d.hidden; ++col) squares += x[at(col)] * x[at(col)];
    double scale = 1 / std::sqrt(squares / static_cast<double>(d.hidden) + d.eps);
    for (std::int64_t col = 0; col < d.hidden; ++col) {
      y[at(col)] = x[at(col)] * scale * weight[static_cast<std::size_t>(col)];
    }
  }
}

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 9, .n = 31, .dtype = DType::kF32},
          {.world_size = world_size, .m = 3, .n = 64, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 6, .n = 17, .dtype = DType::kF16},
          {.world_size = world_size, .m = 5, .n = 256, .dtype = DType::kF32}};  // in lines on GPUs
}

OpShape large() { return {.m = 4096, .n = 8192, .dtype = DType::kBF16}; }

struct NormCase {
  OpCase c;
  std::int64_t m;

  NormCase(const NormDesc& d, Program program, const OpShape& s, std::uint64_t seed)
      : m(s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m)) {
    c.program = std::move(program);
    c.extents = {m};
    c.config = fmt::format("{} {} m={}", c.program.name, to_string(d), m);
    c.inputs = no_values(c.program);
    c.expected = no_values(c.program);
    c.tolerance = sum_tolerance(d.dtype, d.hidden) * 3;
    for (std::size_t r = 0; r < c.inputs.size(); ++r) {
      for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
        auto count =
            static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(t))));
        const Tensor& tensor = c.program.tensors[t];
        if (tensor.kind == TensorKind::kInput) {
          bool shared = tensor.name != "x";  // by all ranks
          c.inputs[r][t] = random_values(count, tensor.dtype,
                                         seed * 131 + 7 * t + (shared ? 0 : 1000 * (r + 1)));
        } else if (tensor.kind == TensorKind::kOutput) {
          c.expected[r][t].assign(count, std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
  }

  Values& in(std::size_t r, const char* name) {
    return c.inputs[r][static_cast<std::size_t>(c.program.find_tensor(name))];
  }
  Values& out(std::size_t r, const char* name) {
    return c.expected[r][static_cast<std::size_t>(c.program.find_tensor(name))];
  }
};

NormDesc with_residual(NormDesc d) {
  d.add_residual = true;
  return d;
}

OpCase rms_norm_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = with_residual(desc_of(s));
  NormCase nc(d, rms_norm(d, config_of(d, s.target)), s, seed);
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    Values sum = nc.in(r, "x");
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += nc.in(r, "residual")[i];
    sum = round_to(sum, d.dtype);
    std::copy_n(sum.begin(), nc.m * d.hidden, nc.out(r, "sum").begin());
    norm_rows(d, nc.m, sum, nc.in(r, "weight"), nc.out(r, "out"));
  }
  return std::move(nc.c);
}

OpCase all_reduce_add_rms_norm_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = desc_of(s);
  NormConfig config = all_reduce_config_of(d, s.target);
  if (s.target == Target::kCpu) {
    config.packets = seed % 2 == 1;
    config.two_shot = config.packets && d.m > 4;
  }
  NormCase nc(d, all_reduce_add_rms_norm(d, config), s, seed);
  nc.c.tolerance *= 3;  // the sum is rounded twice before it is normalised
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    Values sum = nc.in(r, "residual");
    for (std::size_t i = 0; i < sum.size(); ++i) {
      for (std::size_t peer = 0; peer < nc.c.inputs.size(); ++peer) sum[i] += nc.in(peer, "x")[i];
    }
    std::copy_n(sum.begin(), nc.m * d.hidden, nc.out(r, "sum").begin());
    norm_rows(d, nc.m, sum, nc.in(r, "weight"), nc.out(r, "out"));
  }
  return std::move(nc.c);
}

OpCase swiglu_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = desc_of(s);
  NormCase nc(d, swiglu(d, config_of(d, s.target)), s, seed);
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    const Values& in = nc.in(r, "gate_up");
    for (std::int64_t row = 0; row < nc.m; ++row) {
      for (std::int64_t col = 0; col < d.hidden; ++col) {
        double gate = in[static_cast<std::size_t>(row * 2 * d.hidden + col)];
        double up = in[static_cast<std::size_t>(row * 2 * d.hidden + d.hidden + col)];
        nc.out(r, "out")[static_cast<std::size_t>(row * d.hidden + col)] =
            gate / (1 + std::exp(-gate)) * up;
      }
    }
  }
  return std::move(nc.c);
}

OpCase add_row_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = desc_of(s);
  NormCase nc(d, add_row(d, config_of(d, s.target)), s, seed);
  auto hidden = static_cast<std::size_t>(d.hidden);
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(nc.m) * hidden; ++i) {
      nc.out(r, "out")[i] = nc.in(r, "x")[i] + nc.in(r, "row")[i % hidden];
    }
  }
  return std::move(nc.c);
}

}  // namespace

OperatorInfo rms_norm_info() {
  return {.name = "rms_norm",
          .summary = "residual addition and RMSNorm of [m, n]",
          .program =
              [](const OpShape& s) {
                NormDesc d = with_residual(desc_of(s));
                return rms_norm(d, config_of(d, s.target));
              },
          .make_case = rms_norm_case,
          .shapes = shapes,
          .large = large()};
}

OperatorInfo all_reduce_add_rms_norm_info() {
  return {.name = "all_reduce_add_rms_norm",
          .summary = "sum over ranks of [m, n], residual addition, RMSNorm, in one program",
          .program =
              [](const OpShape& s) {
                return all_reduce_add_rms_norm(desc_of(s),
                                               all_reduce_config_of(desc_of(s), s.target));
              },
          .make_case = all_reduce_add_rms_norm_case,
          .shapes = shapes,
          .large = large()};
}

OperatorInfo swiglu_info() {
  return {.name = "swiglu",
          .summary = "silu(gate) * up of [m, 2n]",
          .program =
              [](const OpShape& s) { return swiglu(desc_of(s), config_of(desc_of(s), s.target)); },
          .make_case = swiglu_case,
          .shapes = shapes,
          .large = large()};
}

OperatorInfo add_row_info() {
  return {.name = "add_row",
          .summary = "a bias [n] added to every row of [m, n]",
          .program =
              [](const OpShape& s) { return add_row(desc_of(s), config_of(desc_of(s), s.target)); },
          .make_case = add_row_case,
          .shapes = shapes,
          .large = large()};
}

}  // namespace stretto
