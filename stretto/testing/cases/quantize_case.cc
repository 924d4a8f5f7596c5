// Plain reference of activations in e4m3 with scales of blocks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "stretto/base/at.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/quantize_fp8.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

// Makes e4m3 of a block, in the floats that the program computes with; its scale.
double scale(std::span<double> block) {
  auto largest = 0x1p-100F;
  for (double v : block) largest = std::max(largest, std::abs(static_cast<float>(v)));
  float times = 448.0F / largest;
  for (double& v : block) v = static_cast<float>(v) * times;
  return largest * static_cast<float>(1.0 / 448);
}

OpCase quantize_case(const OpShape& s, std::uint64_t seed) {
  QuantizeDesc d = quantize_desc(s);
  OpCase c;
  c.program = quantize_fp8(d, default_config(d, s.target));
  std::int64_t m = s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m);
  c.extents = {m};
  c.config = fmt::format("quantize_fp8 {} m={}", to_string(d), m);
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  c.exact = {"out", "scales"};
  auto tensor = [&](const char* name) { return at(c.program.find_tensor(name)); };
  const std::int64_t rows = d.m * d.rows_per_token, blocks = ceil_div(d.k, kScaleBlock);
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    Values x = random_values(at(rows * d.k), d.dtype, seed * 131 + 1000 * (r + 1));
    // Blocks of all sizes, and of zeros.
    for (std::int64_t i = 0; i < rows * d.k; ++i) {
      auto kind = static_cast<int>((at(i / d.k) * 7 + at(i % d.k / kScaleBlock) + seed) % 9);
      x[at(i)] = kind == 0 ? 0 : std::ldexp(x[at(i)], kind - 4);
    }
    x = round_to(x, d.dtype);
    Values out(x.size(), kUnchecked), scales(at(rows * blocks), kUnchecked);
    for (std::int64_t row = 0; row < m * d.rows_per_token; ++row) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        std::int64_t first = row * d.k + b * kScaleBlock;
        std::int64_t count = std::min(kScaleBlock, d.k - b * kScaleBlock);
        Values block(x.begin() + first, x.begin() + first + count);
        scales[at(row * blocks + b)] = scale(block);
        block = round_to(block, DType::kF8E4M3);
        std::copy(block.begin(), block.end(), out.begin() + first);
      }
    }
    c.inputs[r][tensor("x")] = std::move(x);
    c.expected[r][tensor("out")] = std::move(out);
    c.expected[r][tensor("scales")] = std::move(scales);
  }
  return c;
}

}  // namespace

std::vector<OperatorCase> quantize_cases() { return {{"quantize_fp8", quantize_case}}; }

}  // namespace stretto
