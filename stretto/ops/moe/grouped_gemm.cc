#include "stretto/ops/moe/grouped_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

void check(const GroupedDesc& d, const GroupedConfig& c) {
  check_sizes("grouped_gemm", {{"world_size", d.world_size},
                               {"m", d.m},
                               {"rows_per_token", d.rows_per_token},
                               {"num_experts", d.num_experts},
                               {"n", d.n},
                               {"k", d.k},
                               {"tile.bm", c.tile.bm},
                               {"tile.bn", c.tile.bn},
                               {"tile.bk", c.tile.bk},
                               {"num_compute_sms", c.num_compute_sms}});
  check_split("grouped_gemm", split_of(d));
  check_dtype("grouped_gemm", "a_dtype", d.a_dtype);
  check_dtype("grouped_gemm", "b_dtype", d.b_dtype);
  check_dtype("grouped_gemm", "c_dtype", d.c_dtype);
}

std::int64_t rows_of(const GroupedDesc& d) { return d.m * d.rows_per_token; }

// Rows that an expert has if all get the same.
std::int64_t mean_rows(const GroupedDesc& d) { return ceil_div(rows_of(d), d.num_experts); }

}  // namespace

ExpertSplit split_of(const GroupedDesc& d) {
  return {.num_experts = d.num_experts, .world_size = d.world_size, .groups = d.expert_groups};
}

std::string to_string(const GroupedDesc& d) {
  return fmt::format("P={} m={} rows={} experts={}{} n={} k={} a={} b={} c={}{}{}", d.world_size,
                     d.m, rows_of(d), d.num_experts,
                     d.expert_groups > 1 ? fmt::format(" in {} groups", d.expert_groups) : "", d.n,
                     d.k, short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.c_dtype),
                     d.gathered ? " gathered" : "", d.swiglu ? " swiglu" : "");
}

GroupedConfig default_config(const GroupedDesc& d, Target target) {
  if (target == Target::kCpu) {
    GemmTile tile = default_tile(d.m, d.n, d.k);
    constexpr std::int64_t kMaxRows = 128;
    std::int64_t rows =
        std::clamp<std::int64_t>(ceil_div(mean_rows(d), std::int64_t{16}) * 16, 16, kMaxRows);
    tile.bm = std::min(rows, d.m);
    return {.tile = tile};
  }
  GpuLoop loop = gpu_loop({.m = d.m,
                           .n = d.n,
                           .k = d.k,
                           .a_dtype = d.a_dtype,
                           .b_dtype = d.b_dtype,
                           .swiglu = d.swiglu});
  // Bounds of a part beside the sums: half the columns of a dense product keep to the registers.
  if (loop.tile.bm > 64) loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, d.swiglu ? 64 : 128);
  std::int64_t tiles = split_of(d).share() * ceil_div(d.n, loop.tile.bn);
  return {.tile = loop.tile, .num_compute_sms = gpu_workers(tiles), .num_stages = loop.num_stages};
}

Program grouped_gemm(const GroupedDesc& d, const GroupedConfig& cfg) {
  check(d, cfg);
  const auto& [bm, bn, bk] = cfg.tile;
  ProgramBuilder p(d.swiglu ? "grouped_swiglu" : "grouped_gemm", d.world_size);
  Index m = p.extent("m", d.m);
  Index rows = m * d.rows_per_token;
  auto offsets = p.table("offsets", {d.num_experts + (d.spare_rows ? 2 : 1)},
                         {ContractKind::kPartition, 0, rows + 1});
  TensorRef tokens;
  if (d.gathered) tokens = p.table("tokens", {rows, 1}, {ContractKind::kRange, 0, m});
  auto a = p.input("a", d.a_dtype, {d.gathered ? m : rows, d.k});
  ExpertSplit split = split_of(d);
  std::vector<TensorRef> weights;  // [share, n, k]
  for (const char* name : d.swiglu ? std::vector{"b_gate", "b_up"} : std::vector{"b"}) {
    weights.push_back(p.input(name, d.b_dtype, {split.share(), d.n, d.k}));
  }
  auto c = d.expert_groups > 1 || d.spare_rows ? p.state("c", d.c_dtype, {rows, d.n})
                                               : p.output("c", d.c_dtype, {rows, d.n});
  std::int64_t col_tiles = ceil_div(d.n, bn);

  // A tile is a column of one expert's product: its weights are read again for each bm rows.
  Resource sms = Resource::sms(cfg.num_compute_sms).pipelined(cfg.num_stages);
  auto multiply = [&](const Index& own, const Index& expert, const Index& col) {
    Index first = p.read(offsets, {expert}), end = p.read(offsets, {expert + 1});
    p.loop(ceil_div(rows, bm), [&](const Index& i) {
      Index row = p.let("row", first + i * bm);
      p.when(row < end, [&] {
        Value picked;
        if (d.gathered) picked = p.load(tokens.tile({row, 0}, bm, 1).until_row(end));
        std::vector<Value> sums;
        for (std::size_t w = 0; w < weights.size(); ++w) {
          sums.push_back(p.zeros(DType::kF32, bm, bn));
        }
        p.loop(ceil_div(d.k, bk), [&](const Index& step) {
          Index k = step * bk;
          Value x = d.gathered ? p.load_rows(a.tile({0, k}, bm, bk), picked)
                               : p.load(a.tile({row, k}, bm, bk).until_row(end));
          for (std::size_t w = 0; w < weights.size(); ++w) {
            sums[w] = dot(sums[w], x, p.load(weights[w].tile({own, col, k}, bn, bk)).T());
          }
        });
        Value out = d.swiglu ? silu(sums[0]) * sums[1] : sums[0];
        p.store(c.tile({row, col}, bm, bn).until_row(end), cast(out, d.c_dtype));
      });
    });
  };
  p.role("gemm", sms, p.range(split.share() * col_tiles), [&](const Tile& t) {
    Index own = p.let("own", t.index / col_tiles);
    Index expert = p.let("expert", split.first(p.rank()) + own);
    Index col = p.let("col", t.index % col_tiles * bn);
    bool all_exist = split.share() * split.groups == split.num_experts;
    if (all_exist) return multiply(own, expert, col);
    p.when(expert < split.num_experts, [&] { multiply(own, expert, col); });
  });
  return p.finish();
}

}  // namespace stretto
