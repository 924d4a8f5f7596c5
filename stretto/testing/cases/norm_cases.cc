// Plain fp64 references of the normalisations.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ops/norm/norm.h"
#include "stretto/ops/norm/norm_shapes.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

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
          c.expected[r][t].assign(count, kUnchecked);
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

OpCase rms_norm_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = with_residual(norm_desc(s));
  NormCase nc(d, rms_norm(d, norm_config(d, s.target)), s, seed);
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
  NormDesc d = norm_desc(s);
  NormConfig config = all_reduce_norm_config(d, s.target);
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

// x of all ranks, rows of the own run alone.
OpCase reduce_scatter_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = norm_desc(s);
  NormConfig config = reduce_scatter_norm_config(d, s.target);
  if (s.target == Target::kCpu) config.packets = seed % 2 == 1;
  NormCase nc(d, reduce_scatter_add_rms_norm(d, config), s, seed);
  nc.c.tolerance *= 3;  // the sum is rounded twice before it is normalised
  const std::int64_t run = ceil_div(nc.m, std::int64_t{d.world_size});
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    const std::int64_t rows = std::clamp<std::int64_t>(nc.m - rank * run, 0, run);
    Values sum = nc.in(r, "residual");
    sum.resize(static_cast<std::size_t>(rows * d.hidden));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      for (std::size_t peer = 0; peer < nc.c.inputs.size(); ++peer) {
        sum[i] += nc.in(peer, "x")[static_cast<std::size_t>(rank * run * d.hidden) + i];
      }
    }
    std::copy(sum.begin(), sum.end(), nc.out(r, "sum").begin());
    norm_rows(d, rows, sum, nc.in(r, "weight"), nc.out(r, "out"));
  }
  return std::move(nc.c);
}

// The ranks' columns side by side, in fp64.
OpCase rms_norm_columns_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = columns_norm_desc(s), whole = d;
  whole.hidden = d.hidden * d.world_size;
  NormCase nc(d, rms_norm_columns(d, columns_norm_config(d, s.target)), s, seed);
  nc.c.tolerance = sum_tolerance(d.dtype, whole.hidden) * 3;
  auto joined = [&](const char* name, std::int64_t rows) {
    Values all(static_cast<std::size_t>(rows * whole.hidden));
    for (std::int64_t i = 0; i < rows * whole.hidden; ++i) {
      std::int64_t row = i / whole.hidden, col = i % whole.hidden;
      const Values& own = nc.in(static_cast<std::size_t>(col / d.hidden), name);
      all[static_cast<std::size_t>(i)] =
          own[static_cast<std::size_t>(row * d.hidden + col % d.hidden)];
    }
    return all;
  };
  Values x = joined("x", nc.m);
  if (d.add_residual) {
    Values residual = joined("residual", nc.m);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += residual[i];
    x = round_to(x, d.dtype);
  }
  Values normed(x.size());
  norm_rows(whole, nc.m, x, joined("weight", 1), normed);
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    for (std::int64_t i = 0; i < nc.m * d.hidden; ++i) {
      std::int64_t from =
          i / d.hidden * whole.hidden + static_cast<std::int64_t>(r) * d.hidden + i % d.hidden;
      auto at = static_cast<std::size_t>(i), of = static_cast<std::size_t>(from);
      nc.out(r, "out")[at] = normed[of];
      if (d.add_residual) nc.out(r, "sum")[at] = x[of];
    }
  }
  return std::move(nc.c);
}

OpCase swiglu_case(const OpShape& s, std::uint64_t seed) {
  NormDesc d = norm_desc(s);
  NormCase nc(d, swiglu(d, norm_config(d, s.target)), s, seed);
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
  NormDesc d = norm_desc(s);
  NormCase nc(d, add_row(d, norm_config(d, s.target)), s, seed);
  auto hidden = static_cast<std::size_t>(d.hidden);
  for (std::size_t r = 0; r < nc.c.inputs.size(); ++r) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(nc.m) * hidden; ++i) {
      nc.out(r, "out")[i] = nc.in(r, "x")[i] + nc.in(r, "row")[i % hidden];
    }
  }
  return std::move(nc.c);
}

}  // namespace

std::vector<OperatorCase> norm_cases() {
  return {{"rms_norm", rms_norm_case},
          {"all_reduce_add_rms_norm", all_reduce_add_rms_norm_case},
          {"reduce_scatter_add_rms_norm", reduce_scatter_case},
          {"rms_norm_columns", rms_norm_columns_case},
          {"swiglu", swiglu_case},
          {"add_row", add_row_case}};
}

}  // namespace stretto
