#include "stretto/ops/gemm/linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/harness/target.h"

namespace stretto {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

// Narrow tiles and many stages: what is under way of a row of weights then lies in one stretch of
// 1 to 2 KB, which HBM gives faster than many short ones.
GpuLoop streaming_loop(const GpuLoopDesc& d) {
  constexpr std::int64_t kStageBytes = std::int64_t{200} * 1024, kMostStages = 24;
  constexpr std::int64_t kLeastCols = 32, kStep = 8;
  const std::int64_t weights = d.swiglu ? 2 : 1, most_cols = 128 / weights;
  // Rows that are loaded; past 8, a slot has room for kFewRows all the same, which the tensor core
  // reads.
  GemmTile tile{.bm = std::min(round_up(std::max<std::int64_t>(d.m, 1), 8), kFewRows),
                .bn = kLeastCols,
                .bk = 64};
  auto columns_of_a_worker = [&](std::int64_t bn) {
    return ceil_div(ceil_div(d.n, bn), std::int64_t{kGpuSms}) * bn;
  };
  for (std::int64_t bn = kLeastCols; bn <= most_cols; bn += kStep) {
    if (columns_of_a_worker(bn) < columns_of_a_worker(tile.bn)) tile.bn = bn;
  }
  std::int64_t slot_rows = tile.bm > 8 ? kFewRows : 8;
  std::int64_t slice = (slot_rows + tile.bn * weights) * tile.bk * 2;
  return {.tile = tile, .num_stages = static_cast<int>(std::min(kStageBytes / slice, kMostStages))};
}

}  // namespace

Linear::Linear(ProgramBuilder& p, const LinearDesc& desc) : p_(&p), desc_(desc) {
  std::vector<std::string> suffixes = {""};
  if (desc.swiglu) suffixes = {"_gate", "_up"};
  for (const std::string& suffix : suffixes) {
    weights_.push_back(p.input("b" + suffix, desc.dtype, {desc.n, desc.k}));           // [n, k]
    if (desc.bias) biases_.push_back(p.input("bias" + suffix, desc.dtype, {desc.n}));  // [n]
  }
}

Value Linear::product(const GemmTile& tile, const Index& col,
                      const std::function<Slice(const Index& k)>& a) const {
  std::vector<Value> acc = sums(tile);
  accumulate(acc, tile, col, a);
  return finish(std::move(acc), tile, col);
}

std::vector<Value> Linear::sums(const GemmTile& tile) const {
  std::vector<Value> acc;  // [bm, bn] each
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    acc.push_back(p_->zeros(DType::kF32, tile.bm, tile.bn));
  }
  return acc;
}

void Linear::accumulate(std::vector<Value>& sums, const GemmTile& tile, const Index& col,
                        const std::function<Slice(const Index& k)>& a) const {
  p_->loop(ceil_div(desc_.k, tile.bk), [&](const Index& step) {
    Index k = step * tile.bk;
    Value rows = p_->load(a(k));  // [bm, bk]
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      sums[i] = dot(sums[i], rows, p_->load(weights_[i].tile({col, k}, tile.bn, tile.bk)).T());
    }
  });
}

Value Linear::finish(std::vector<Value> sums, const GemmTile& tile, const Index& col) const {
  for (std::size_t i = 0; i < biases_.size(); ++i) {
    sums[i] = sums[i] + cast(p_->load(biases_[i].tile({col}, 1, tile.bn)), DType::kF32);
  }
  return desc_.swiglu ? silu(sums[0]) * sums[1] : std::move(sums[0]);
}

GemmTile default_tile(std::int64_t m, std::int64_t n, std::int64_t k) {
  // Each tile packs its operands anew: at 1024^3 tiles of 256 x 512 reach 0.97 (f32) and 0.91
  // (bf16) of one call for the whole product, tiles of 128 x 256 only 0.88 and 0.80 (AMD EPYC Zen 3
  // with AVX2, 2026-11-21, gemm_bench).
  constexpr std::int64_t kMaxRows = 256, kMaxCols = 512;
  GemmTile tile;
  bool decode = m <= 16;
  tile.bm = decode ? m : std::min(round_up(ceil_div(m, std::int64_t{4}), 16), kMaxRows);
  tile.bn = std::min(round_up(ceil_div(n, std::int64_t{2}), 16), kMaxCols);
  tile.bk = k <= 64 ? 32 : std::min<std::int64_t>(round_up(k, 64), 512);
  return tile;
}

GpuLoop gpu_loop(const GpuLoopDesc& d) {
  bool matrix = d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2;
  if (!matrix) return {.tile = {.bm = 64, .bn = 64, .bk = 32}, .num_stages = 2};
  if (d.m <= kFewRows) return streaming_loop(d);
  constexpr std::int64_t kMaxRows = 128;  // two warpgroups of 64 rows
  constexpr std::int64_t kStageBytes = std::int64_t{192} * 1024;
  std::int64_t max_cols = d.swiglu ? 128 : 256;  // accumulators fill half the registers
  GemmTile tile{.bm = kMaxRows, .bn = 64, .bk = 64};
  // The width that keeps the SMs busiest: waves of tiles times the time of one, which is that of
  // its columns and of kTileCost more. On an H200, 2026-11-21, widths of 96, 160 and 224 made m =
  // 1024 up to 1.2 times faster where wide tiles left SMs idle (docs/performance.md).
  constexpr std::int64_t kTileCost = 16;
  auto waves = [&](std::int64_t bn) {
    std::int64_t tiles = ceil_div(d.m, tile.bm) * ceil_div(d.n, bn);
    return ceil_div(tiles, std::int64_t{kGpuSms}) * (bn + kTileCost);
  };
  for (std::int64_t bn : {96, 128, 160, 192, 224, 256}) {
    if (bn <= max_cols && waves(bn) <= waves(tile.bn)) tile.bn = bn;
  }
  std::int64_t slice = (tile.bm + tile.bn * (d.swiglu ? 2 : 1)) * tile.bk * 2;
  return {.tile = tile,
          .num_stages = static_cast<int>(std::min<std::int64_t>(kStageBytes / slice, 6))};
}

void check_sizes(const std::string& op, std::initializer_list<NamedSize> sizes,
                 std::int64_t least) {
  for (const NamedSize& size : sizes) {
    if (size.value < least) {
      throw UserError(
          fmt::format("{}: {} is {}, must be at least {}", op, size.name, size.value, least));
    }
  }
}

void check_dtype(const std::string& op, const char* field, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  throw UserError(
      fmt::format("{}: {} is {}, must be float32, bfloat16 or float16", op, field, name(dtype)));
}

}  // namespace stretto
