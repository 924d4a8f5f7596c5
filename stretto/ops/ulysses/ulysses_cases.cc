// Plain fp64 references of the products around attention with spread heads.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "stretto/ops/gemm/gemm_case.h"
#include "stretto/ops/ulysses/ulysses_case.h"

namespace stretto {
namespace {

constexpr double kUnchecked = std::numeric_limits<double>::quiet_NaN();

using Default = UlyssesConfig (*)(const UlyssesDesc&, Target);

UlyssesConfig config_of(const UlyssesDesc& d, Target target, Default default_of) {
  UlyssesConfig c = default_of(d, target);
  if (target == Target::kCuda || d.n >= 64) return c;
  c.tile = {.bm = 2, .bn = 3, .bk = 4};
  c.num_compute_sms = 2;
  if (c.comm_rows > 0) c.comm_rows = 4, c.num_queues = 2;
  return c;
}

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 4 * world_size + 3, .n = 5 * world_size, .k = 9},
          {.world_size = world_size, .m = 10, .n = 16, .k = 16, .dtype = DType::kBF16}};
}

// Rows of `a` and weights of `rank`, in fp64.
Values product(const OpCase& c, const UlyssesDesc& d, int rank, const Values& a,
               std::int64_t rows) {
  return linear_reference(c, rank, a, {.m = rows, .n = d.n, .k = d.k});
}

struct UlyssesCase {
  OpCase c;
  UlyssesDesc d;
  std::int64_t m, run;  // tokens of all ranks, and of one

  UlyssesCase(Program program, const UlyssesDesc& desc, std::int64_t m, std::uint64_t seed)
      : d(desc), m(m), run(ceil_div(m, std::int64_t{desc.world_size})) {
    c.program = std::move(program);
    c.extents = {m};
    c.config = fmt::format("{} {} m={}", c.program.name, to_string(d), m);
    c.inputs = no_values(c.program);
    c.expected = no_values(c.program);
    c.tolerance = sum_tolerance(d.dtype, d.k);
    c.scale = static_cast<double>(d.k);
    fill_inputs(c, seed);
    for (int r = 0; r < d.world_size; ++r) {
      auto count = num_elements(bound_shape(c.program, c.program.find_tensor("c")));
      out(r).assign(at(count), kUnchecked);
    }
  }

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  Values& out(int rank) { return c.expected[at(rank)][at(c.program.find_tensor("c"))]; }
  std::int64_t first(int rank) const { return std::min(rank * run, m); }
  std::int64_t rows(int rank) const { return std::min((rank + 1) * run, m) - first(rank); }
};

// The whole operator, of a shape with a number of tokens that depends on the seed.
template <typename MakeCase>
OpCase case_of(const OpShape& s, std::uint64_t seed, const UlyssesDesc& d, Default default_of,
               MakeCase make_case) {
  std::int64_t m = s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
  return make_case(d, config_of(d, s.target, default_of), m, seed);
}

OpShape large() { return {.m = 16384, .n = 6144, .k = 4096, .dtype = DType::kBF16}; }

}  // namespace

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

OpCase gemm_a2a_case(const UlyssesDesc& d, const UlyssesConfig& config, std::int64_t m,
                     std::uint64_t seed) {
  UlyssesCase u(gemm_a2a(d, config), d, m, seed);
  std::int64_t cols = d.n / d.world_size;
  for (int source = 0; source < d.world_size; ++source) {
    Values a = input_of(u.c, source, "a");
    a.resize(UlyssesCase::at(u.rows(source) * d.k));
    Values made = product(u.c, d, source, a, u.rows(source));
    for (std::int64_t row = 0; row < u.rows(source); ++row) {
      for (std::int64_t col = 0; col < d.n; ++col) {
        auto to = static_cast<int>(col / cols);
        u.out(to)[UlyssesCase::at((u.first(source) + row) * cols + col % cols)] =
            made[UlyssesCase::at(row * d.n + col)];
      }
    }
  }
  return std::move(u.c);
}

OpCase a2a_gemm_case(const UlyssesDesc& d, const UlyssesConfig& config, std::int64_t m,
                     std::uint64_t seed) {
  UlyssesCase u(a2a_gemm(d, config), d, m, seed);
  std::int64_t cols = d.k / d.world_size;
  for (int rank = 0; rank < d.world_size; ++rank) {
    Values a(UlyssesCase::at(u.rows(rank) * d.k));
    for (std::int64_t row = 0; row < u.rows(rank); ++row) {
      for (std::int64_t col = 0; col < d.k; ++col) {
        a[UlyssesCase::at(row * d.k + col)] =
            input_of(u.c, static_cast<int>(col / cols),
                     "a")[UlyssesCase::at((u.first(rank) + row) * cols + col % cols)];
      }
    }
    Values made = product(u.c, d, rank, a, u.rows(rank));
    if (d.residual) {
      const Values& residual = input_of(u.c, rank, "residual");
      for (std::size_t i = 0; i < made.size(); ++i) made[i] += residual[i];
    }
    std::copy(made.begin(), made.end(), u.out(rank).begin());
    // Padding up to ceil(m/P) holds nothing that is compared.
  }
  return std::move(u.c);
}

OperatorInfo gemm_a2a_info() {
  return {.name = "gemm_a2a",
          .summary =
              "m tokens spread over the ranks times n weights, whose columns go to the ranks "
              "of their heads; k summed",
          .program =
              [](const OpShape& s) {
                UlyssesDesc d = gemm_a2a_desc(s);
                return gemm_a2a(d, config_of(d, s.target, default_gemm_a2a_config));
              },
          .make_case =
              [](const OpShape& s, std::uint64_t seed) {
                return case_of(s, seed, gemm_a2a_desc(s), default_gemm_a2a_config, gemm_a2a_case);
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
                return a2a_gemm(d, config_of(d, s.target, default_a2a_gemm_config));
              },
          .make_case =
              [](const OpShape& s, std::uint64_t seed) {
                return case_of(s, seed, a2a_gemm_desc(s), default_a2a_gemm_config, a2a_gemm_case);
              },
          .shapes = shapes,
          .large = large()};
}

}  // namespace stretto
