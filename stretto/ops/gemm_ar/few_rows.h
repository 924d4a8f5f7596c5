// The programs of gemm_ar in which a tile has the rows of all ranks, and whoever multiplied it
// takes part in its sum: one shot, with signals or packets, and two shots that share each tile.
#pragma once

#include <cstdint>

#include "stretto/ops/gemm_ar/gemm_ar.h"

namespace stretto::few_rows {

std::int64_t num_tiles(const GemmArDesc& desc, const GemmTile& tile);
// Tiles of the largest m that share a channel, so that each launch notifies alike. A tile whose
// epilogue waited for later ones of the same SM would wait for ever.
std::int64_t tiles_per_channel(const GemmArDesc& desc, const GemmArConfig& config);
// Sums with the weights as the left factor are turned in two pieces beyond so many rows, which then
// are a multiple of 16: all of them, their sum and what others sent would not fit the registers.
inline constexpr std::int64_t kMostTurnedRows = 104;
// Rows of a tile that a rank sums where ranks share it.
std::int64_t shared_rows(const GemmArDesc& desc, const GemmTile& tile);

Program one_shot(const GemmArDesc& desc, const GemmArConfig& config);
// One shot whose partial sums carry their own flags: one way over the link, no signal after it, for
// twice the bytes. Every launch exchanges at least a row, so that no rank runs two launches ahead.
Program packets(const GemmArDesc& desc, const GemmArConfig& config);
// Of each tile every rank sums a share of the rows, which the others send it, and sends the sums to
// all: two hops of 1/P of the bytes in place of one. By signals, or in packets as above.
Program shared_tiles(const GemmArDesc& desc, const GemmArConfig& config);

}  // namespace stretto::few_rows
