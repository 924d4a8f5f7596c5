#include "stretto/executor/product.h"

#include <algorithm>

#include "stretto/executor/kernels/dot.h"

namespace stretto {
namespace {

// out = acc + product * scale_a * scale_b, rows scaled by one and columns by the other.
void add_scaled(const DotCode& code, std::span<Register> regs, const TileRef& product) {
  Register& out = regs[static_cast<std::size_t>(code.result)];
  const auto* row_scale = regs[static_cast<std::size_t>(code.scale_a)].as<float>();
  const auto* col_scale = regs[static_cast<std::size_t>(code.scale_b)].as<float>();
  const auto* acc = code.zero_acc ? nullptr : regs[static_cast<std::size_t>(code.acc)].as<float>();
  const auto* p = static_cast<const float*>(product.data);
  auto* to = out.as<float>();
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t c = 0; c < out.cols; ++c) {
      std::int64_t i = r * out.cols + c;
      to[i] = (acc == nullptr ? 0.0f : acc[i]) + p[i] * row_scale[r] * col_scale[c];
    }
  }
}

}  // namespace

void multiply(const Product& p, std::span<Register> regs, std::byte* scratch) {
  // Where either factor is masked the product adds nothing.
  std::int64_t k0 = std::max(p.left.c0, p.right.r0), k1 = std::min(p.left.c1, p.right.r1);
  std::int64_t m = p.left.r1 - p.left.r0, n = p.right.c1 - p.right.c0;
  bool none = k0 >= k1 || m <= 0 || n <= 0;
  bool scaled = p.code.scale_a >= 0;
  Register& out = writable(regs[static_cast<std::size_t>(p.code.result)]);
  TileRef whole = tile_of(out);
  bool partial = none || m < out.rows || n < out.cols;
  if (scaled) {
    Register product = out;
    product.data = scratch;
    whole = tile_of(product);
  } else if (!p.code.zero_acc && p.code.result != p.code.acc) {
    copy_tile(whole, tile_of(regs[static_cast<std::size_t>(p.code.acc)]));
  }
  bool overwrite = scaled || p.code.zero_acc;
  if (overwrite && partial) zero_tile(whole);
  if (!none) {
    kernels::dot({.acc = sub_tile(whole, p.left.r0, p.right.c0, m, n),
                  .a = sub_tile(p.left.tile, 0, k0 - p.left.c0, m, k1 - k0),
                  .b = sub_tile(p.right.tile, k0 - p.right.r0, 0, k1 - k0, n),
                  .accumulate = !overwrite});
  }
  if (scaled) add_scaled(p.code, regs, whole);
  std::int64_t width = p.left.c1 - p.left.c0;
  if (p.code.sums_from < 0 || m <= 0 || width <= 0) return;
  static const float one = 1;
  kernels::dot({.acc = sub_tile(whole, p.left.r0, p.code.sums_from, m, kSumColumns),
                .a = p.left.tile,
                .b = {DType::kF32, width, kSumColumns, &one, 0, 0},
                .accumulate = true});
}

}  // namespace stretto
