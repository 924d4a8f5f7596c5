// Shapes drawn by lot, of which no rule, default or machine file was made: layers of published
// models, by rows that a seed picks. What is judged on them is not judged on what it was fitted to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/gpu/overlap/overlap_shapes.h"

namespace stretto::bench {

// The sizes of a dense model's layers, as its published config has them.
struct LotModel {
  const char* name;
  std::int64_t hidden, wide;   // wide: of the feed-forward layer
  std::int64_t queries, keys;  // columns of all query heads, and of the keys; values as keys
  bool gated = true;           // gate and up are one product of 2 * wide columns
};
std::span<const LotModel> lot_models();

// Rows and columns of a weight [n, k] of all ranks that rules, defaults or machine files were made
// from: gpu_bench sweep, overlap and points measured products with it.
struct SeenWeight {
  std::int64_t n, k;
};
std::span<const SeenWeight> seen_weights();

// `count` different layers of a seed: a model; AG+GEMM, GEMM+RS or GEMM+AR; attention's projection
// or the feed-forward layer's; 1 to 32768 rows, as many between 1 and 2 as between 16384 and 32768,
// half of them powers of two and the others as they fall. Up to 256 rows in graphs. AG+GEMM and
// GEMM+RS have rows that the ranks share evenly, as NCCL wants. The same of a seed everywhere.
std::vector<OverlapShape> drawn_shapes(int world_size, std::uint64_t seed, int count);

}  // namespace stretto::bench
