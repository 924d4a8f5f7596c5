#include "stretto/ops/moe/sorted_gemm_rs.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/moe/expert_products.h"
#include "stretto/ops/moe/fused_layers.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

GroupedRsDesc sums_of(const SortedRsDesc& d) {
  const GroupedDesc& p = d.products;
  return {.shape = d.shape(),
          .n = p.n,
          .k = p.k,
          .a_dtype = p.c_dtype,  // of the sums alone, which read no factors
          .b_dtype = p.c_dtype,
          .out_dtype = p.c_dtype,
          .residual = d.residual,
          .all_reduce = d.all_reduce};
}

GroupedConfig products_of(const SortedRsConfig& c) {
  return {.loop = c.sums.loop, .row_parts = c.row_parts, .swap_ab = c.swap_ab};
}

void check(const SortedRsDesc& d, const SortedRsConfig& c) {
  if (d.products.masked() || d.products.gathered || d.products.swiglu || d.products.spare_rows ||
      d.products.bias) {
    throw UserError(
        fmt::format("sorted_gemm_rs: products are {}, must be contiguous, of whole rows,"
                    " without gate and biases",
                    to_string(d.products)));
  }
  check(d.products, products_of(c));
  check(sums_of(d), c.sums);
  SortedRsConfig will_run = c;
  FieldFit::refusing(to_string(d))
      .only("num_products", will_run.sums.num_products, 1, "a tile has one product");
}

}  // namespace

NamedFields fields_of(SortedRsDesc& d) {
  return joined(
      {NamedField("all_reduce", d.all_reduce).as_either("sorted_gemm_ar", "sorted_gemm_rs")},
      joined(fields_of(d.products), {{"residual", d.residual}}));
}

NamedFields fields_of(SortedRsConfig& c) {
  return joined(fields_of(c.sums), {{"row_parts", c.row_parts, 1}, {"swap_ab", c.swap_ab}});
}

SortedRsConfig default_config(const SortedRsDesc& d, Target target, bool swap_ab) {
  const GroupedConfig products =
      swap_ab ? swapped_config(d.products, target) : default_config(d.products, target);
  const GroupedRsDesc sums = sums_of(d);
  SortedRsConfig c{.sums = {.loop = products.loop, .reduce_cols = products.loop.tile.bn},
                   .row_parts = products.row_parts,
                   .swap_ab = products.swap_ab};
  sum_at_end(sums, c.sums);
  return c;
}

Program sorted_gemm_rs(const SortedRsDesc& d, const SortedRsConfig& c) {
  check(d, c);
  const GroupedRsDesc sums = sums_of(d);
  const GroupedConfig config = products_of(c);
  const ExpertSplit split = split_of(d.products);
  const std::int64_t parts = c.row_parts, bn = c.sums.loop.tile.bn, tiles = c.sums.block_tiles;
  ProgramBuilder p(d.all_reduce ? "sorted_gemm_ar" : "sorted_gemm_rs", d.products.world_size);
  Index m = p.extent("m", d.products.m);
  const ExpertProducts products(p, d.products, config, m);
  SortedRows sorted{.parts = split.share() * parts, .rows = products.all_rows()};
  sorted.slots =
      p.table("slots", {m, d.products.rows_per_token}, {ContractKind::kRange, 0, sorted.rows});
  sorted.weights = p.input("weights", DType::kF32, {m, d.products.rows_per_token});
  sorted.multiply = [&](const TensorRef& to, const Index& first_col, const Index& index) {
    Index own = p.let("own", index / (parts * tiles));
    products.multiply_into(to, {.own = own,
                                .expert = p.let("expert", split.first(p.rank()) + own),
                                .part = p.let("part", index % parts),
                                .col = p.let("col", first_col + index / parts % tiles * bn)});
  };
  if (split.groups > 1) {
    sorted.own = [&](const Value& slots) {
      auto first_row = [&](const Index& expert) {
        return p.splat(DType::kI32, p.read(products.offsets(), {expert}));
      };
      Value is_own =
          slots >= first_row(split.first(p.rank())) && slots < first_row(split.end(p.rank()));
      return where(is_own, slots, p.splat(DType::kI32, -1));
    };
  }
  GroupedRs op(p, sums, c.sums, m, sorted);
  op.add_roles();
  return p.finish();
}

}  // namespace stretto
