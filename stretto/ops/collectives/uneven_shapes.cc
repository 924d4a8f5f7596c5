#include <algorithm>
#include <vector>

#include "stretto/ops/collectives/uneven.h"

namespace stretto {
namespace {

constexpr std::int64_t kManyOfUneven = 100'000;

std::vector<OpShape> uneven_shapes(int world_size) {
  return {{.world_size = world_size, .m = 16, .n = 32, .dtype = DType::kF32},
          {.world_size = world_size, .m = 5, .n = 29, .k = 7, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 37, .n = 7, .k = 50, .dtype = DType::kF16},
          {.world_size = world_size, .m = 11, .n = 24, .sizes = {{"wide_sizes", 1}}},
          {.world_size = world_size, .m = 1, .n = 40, .dtype = DType::kBF16}};
}

// As many rows to each rank, the first ones one more.
std::vector<std::int32_t> even_split(std::int64_t rows, int ranks) {
  std::vector<std::int32_t> out;
  for (int r = 0; r < ranks; ++r) {
    out.push_back(static_cast<std::int32_t>(rows / ranks + (r < rows % ranks ? 1 : 0)));
  }
  return out;
}

// Of rows that fit into the room of every rank.
predict::LaunchTables even_sizes(const UnevenDesc& d, bool gathers) {
  return [d, gathers](const std::vector<std::int64_t>& extents) {
    std::int64_t most = extents[1] / d.world_size, m = extents[0];
    auto ranks = static_cast<std::size_t>(d.world_size);
    auto all = even_split(std::min(m, most * d.world_size), d.world_size);
    auto length = static_cast<std::int32_t>(std::min(m, most));
    std::vector<std::int32_t> firsts(ranks, 0);
    for (std::size_t r = 1; r < ranks; ++r) firsts[r] = firsts[r - 1] + all[r - 1];
    std::vector<std::int32_t> told, first_told;  // by source and reader
    for (std::size_t r = 0; r < ranks; ++r) {
      told.insert(told.end(), all.begin(), all.end());
      first_told.insert(first_told.end(), firsts.begin(), firsts.end());
    }
    if (gathers) told.assign(ranks, length);
    std::vector<predict::TableValues> out;
    for (std::size_t r = 0; r < ranks; ++r) {
      out.push_back({{"input_split_sizes", all},
                     {"input_size", {length}},
                     {"rows_of_rank", told},
                     {"first_row_of_rank", first_told},
                     {"rows_sent", {firsts.back() + all.back()}},
                     {"rows_for_max_rows", {(gathers ? length : all[r]) * d.world_size}}});
    }
    return out;
  };
}

// 4096 tokens a rank, 32 MB, and room for as many again.
OpShape large_uneven() { return {.m = 4096, .n = 4096, .k = 8192, .dtype = DType::kBF16}; }

}  // namespace

UnevenDesc uneven_desc(const OpShape& s) {
  std::int64_t m = s.m > 0 ? s.m : 64;
  return {.dtype = s.dtype,
          .m = m,
          .room = s.k > 0 ? s.k : m * s.world_size,
          .n = s.n > 0 ? s.n : 96,
          .world_size = s.world_size,
          .wide_sizes = s.sizes.contains("wide_sizes")};
}

UnevenConfig uneven_config(const UnevenDesc& d, Target target) {
  UnevenConfig c = default_config(d, target);
  if (d.m * d.n >= kManyOfUneven) return c;
  c.tile_rows = std::min<std::int64_t>(c.tile_rows, 3);
  c.piece_rows = std::min<std::int64_t>(c.piece_rows, 2);
  c.piece_cols = std::min<std::int64_t>(c.piece_cols, 16);
  c.num_workers = 2;
  return c;
}

OperatorInfo all_to_all_v_info() {
  return {.name = "all_to_all_v",
          .summary = "rows of [m, n] to every rank, as many as a tensor says, into room for k",
          .program =
              [](const OpShape& s) {
                UnevenDesc d = uneven_desc(s);
                return all_to_all_v(d, uneven_config(d, s.target));
              },
          .shapes = uneven_shapes,
          .large = large_uneven(),
          .tables = [](const OpShape& s) { return even_sizes(uneven_desc(s), false); }};
}

OperatorInfo all_gather_v_info() {
  return {.name = "all_gather_v",
          .summary = "every rank gets the first rows of all [m, n], as many as a tensor says",
          .program =
              [](const OpShape& s) {
                UnevenDesc d = uneven_desc(s);
                return all_gather_v(d, uneven_config(d, s.target));
              },
          .shapes = uneven_shapes,
          .large = large_uneven(),
          .tables = [](const OpShape& s) { return even_sizes(uneven_desc(s), true); }};
}

}  // namespace stretto
