// Plain fp64 references of the products around attention with spread heads.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/ulysses/ulysses_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/cases/ulysses_case.h"

namespace stretto {
namespace {

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
OpCase case_of(const OpShape& s, std::uint64_t seed, const UlyssesDesc& d,
               UlyssesDefault default_of, MakeCase make_case) {
  std::int64_t m = s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
  return make_case(d, ulysses_config(d, s.target, default_of), m, seed);
}

}  // namespace

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
    a.resize(UlyssesCase::at(u.run * d.k));  // padding is what tokens of zeros make
    Values made = product(u.c, d, rank, a, u.run);
    if (d.residual) {
      const Values& residual = input_of(u.c, rank, "residual");
      for (std::size_t i = 0; i < made.size(); ++i) made[i] += residual[i];
    }
    std::copy(made.begin(), made.end(), u.out(rank).begin());
  }
  return std::move(u.c);
}

std::vector<OperatorCase> ulysses_cases() {
  return {{"gemm_a2a",
           [](const OpShape& s, std::uint64_t seed) {
             return case_of(s, seed, gemm_a2a_desc(s), default_gemm_a2a_config, gemm_a2a_case);
           }},
          {"a2a_gemm", [](const OpShape& s, std::uint64_t seed) {
             return case_of(s, seed, a2a_gemm_desc(s), default_a2a_gemm_config, a2a_gemm_case);
           }}};
}

}  // namespace stretto
