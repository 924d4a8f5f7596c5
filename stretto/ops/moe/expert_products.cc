#include "stretto/ops/moe/expert_products.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/lang/column_dot.h"
#include "stretto/ops/moe/expert_biases.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {

void check(const GroupedDesc& d, const GroupedConfig& c) {
  check_sizes("grouped_gemm", {{"world_size", d.world_size},
                               {"m", d.m},
                               {"rows_per_token", d.rows_per_token},
                               {"num_experts", d.num_experts},
                               {"n", d.n},
                               {"k", d.k},
                               {"tile.bm", c.loop.tile.bm},
                               {"tile.bn", c.loop.tile.bn},
                               {"tile.bk", c.loop.tile.bk},
                               {"row_parts", c.row_parts},
                               {"num_compute_sms", c.loop.num_compute_sms}});
  check_split("grouped_gemm", split_of(d));
  check("grouped_gemm", d.gate, d.swiglu);
  GroupedConfig will_run = c;
  FieldFit::refusing(to_string(d))
      .only("raster", will_run.loop.raster, 1, "an expert's tiles follow one another");
  check_factors("grouped_gemm", {d.a_dtype, d.b_dtype, d.scaling, c.loop.tile});
  check_dtype("grouped_gemm", "c_dtype", d.c_dtype);
  if (d.scaling == Scaling::kRowWise) {
    throw UserError("grouped_gemm: scaling is row-wise, must be none or block");
  }
  if (c.swap_ab && (d.bias || d.scaling != Scaling::kNone)) {
    throw UserError("grouped_gemm: swap_ab is for products without bias and scaling");
  }
  if (!d.masked()) return;
  if (d.gathered || d.spare_rows || d.rows_per_token != 1) {
    throw UserError(
        "grouped_gemm: layout is masked, with gathered or spare rows or several of a token");
  }
}

ExpertProducts::ExpertProducts(ProgramBuilder& p, const GroupedDesc& d, const GroupedConfig& c,
                               const Index& m)
    : p_(p), d_(d), cfg_(c), split_(split_of(d)), m_(m) {
  Index rows = all_rows();
  if (d.masked()) {
    counts_ = p.table("counts", {split_.share()}, {ContractKind::kRange, 0, m_ + 1});
  } else {
    counts_ = p.table("offsets", {d.num_experts + (d.spare_rows ? 2 : 1)},
                      {ContractKind::kPartition, 0, rows + 1});
  }
  if (d.gathered) tokens_ = p.table("tokens", {rows, 1}, {ContractKind::kRange, 0, m_});
  Index rows_of_a = d.gathered ? m_ : rows;
  a_ = p.input("a", d.a_dtype, {rows_of_a, d.k});
  scale_a_ = scale_input(p, d.scaling, rows_of_a, d.k);
  for (const char* suffix : d.swiglu ? std::vector{"_gate", "_up"} : std::vector{""}) {
    weights_.push_back(p.input(fmt::format("b{}", suffix), d.b_dtype,
                               {split_.share(), d.n, d.k}));  // [share, n, k]
    if (d.scaling == Scaling::kNone) continue;
    scales_.push_back(p.input(fmt::format("scale_b{}", suffix), DType::kF32,
                              {split_.share(), ceil_div(d.n, kScaleBlock),
                               ceil_div(d.k, kScaleBlock)}));  // [share, n/128, k/128]
  }
  biases_ = bias_inputs(p, d.bias, d.swiglu, d.c_dtype, {split_.share(), d.n});
}

ExpertProducts::Rows ExpertProducts::rows_of(const Index& own, const Index& expert) const {
  if (!d_.masked()) return {p_.read(counts_, {expert}), p_.read(counts_, {expert + 1})};
  Index first = p_.let("first", own * m_);
  return {first, first + p_.read(counts_, {own})};
}

void ExpertProducts::multiply_into(const TensorRef& c, const Part& at) const {
  bool all_exist = split_.share() * split_.groups == split_.num_experts;
  if (all_exist) return multiply_all(c, at);
  p_.when(at.expert < split_.num_experts, [&] { multiply_all(c, at); });
}

void ExpertProducts::multiply_all(const TensorRef& c, const Part& at) const {
  const std::int64_t bm = cfg_.loop.tile.bm, bn = cfg_.loop.tile.bn, parts = cfg_.row_parts;
  auto [first, end] = rows_of(at.own, at.expert);
  p_.loop(ceil_div(most_rows(), bm * parts), [&, first = first, end = end](const Index& i) {
    Index row = p_.let("row", first + (i * parts + at.part) * bm);
    p_.when(row < end, [&] {
      Value out = cast(tile(at.own, row, end, at.col), d_.c_dtype);
      p_.store(c.tile({row, at.col}, bm, bn).until_row(end), cfg_.swap_ab ? out.T() : out);
    });
  });
}

Value ExpertProducts::tile(const Index& own, const Index& row, const Index& end,
                           const Index& col) const {
  const auto& [bm, bn, bk] = cfg_.loop.tile;
  const bool swap_ab = cfg_.swap_ab;
  Value picked;
  if (d_.gathered) picked = p_.load(tokens_.tile({row, 0}, bm, 1).until_row(end));
  auto rows = [&, rows = bm](const TensorRef& x, const Index& first, std::int64_t cols) {
    return d_.gathered ? p_.load_rows(x.tile({0, first}, rows, cols), picked)
                       : p_.load(x.tile({row, first}, rows, cols).until_row(end));
  };
  std::vector<Value> sums;
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    sums.push_back(swap_ab ? p_.zeros(DType::kF32, bn, bm) : p_.zeros(DType::kF32, bm, bn));
  }
  p_.loop(ceil_div(d_.k, bk), [&, bn = bn, bk = bk](const Index& step) {
    Index k = step * bk, block = bk == kScaleBlock ? step : k / kScaleBlock;
    std::vector<DotScales> scales;
    if (!scales_.empty()) {
      Value of_rows = rows(scale_a_, block, 1);
      for (const TensorRef& scale : scales_) {
        Value of_weight = p_.load(scale.tile({own, col / kScaleBlock, block}, 1, 1));
        scales.push_back({of_rows, broadcast(of_weight, 1, bn)});
      }
    }
    Value x = rows(a_, k, bk);
    for (std::size_t w = 0; w < weights_.size(); ++w) {
      Value b = p_.load(weights_[w].tile({own, col, k}, bn, bk));
      sums[w] = swap_ab          ? dot_of_columns(sums[w], b, x.T(), end - row)
                : scales.empty() ? dot(sums[w], x, b.T(), end - row)
                                 : dot_scaled(sums[w], x, b.T(), scales[w]);
    }
  });
  add_biases(p_, biases_, own, col, sums);
  return d_.swiglu ? gated(p_, d_.gate, sums[0], sums[1]) : std::move(sums[0]);
}

Program grouped_gemm(const GroupedDesc& d, const GroupedConfig& cfg) {
  check(d, cfg);
  const std::int64_t bn = cfg.loop.tile.bn;
  std::string name = d.swiglu ? "grouped_swiglu" : "grouped_gemm";
  if (d.masked()) name += "_masked";
  ProgramBuilder p(name, d.world_size);
  const ExpertProducts products(p, d, cfg, p.extent("m", d.m));
  bool some_stay = d.expert_groups > 1 || d.spare_rows || d.masked();
  Index rows = products.all_rows();
  auto c = some_stay ? p.state("c", d.c_dtype, {rows, d.n}) : p.output("c", d.c_dtype, {rows, d.n});
  ExpertSplit split = split_of(d);
  std::int64_t col_tiles = ceil_div(d.n, bn), parts = cfg.row_parts;

  // A tile is a column of one expert's product, or every parts-th bm rows of it: weights are read
  // again for each bm rows. Those of a column follow each other, so that what runs at the same time
  // reads some of the rows and some of the weights, and not all weights of a large expert.
  Resource sms = product_sms(cfg.loop).by_ticket(cfg.tickets);
  p.role("gemm", sms, p.range(split.share() * parts * col_tiles), [&](const Tile& t) {
    Index own = p.let("own", t.index / (parts * col_tiles));
    Index part = p.let("part", t.index % parts);
    Index expert = p.let("expert", split.first(p.rank()) + own);
    Index col = p.let("col", t.index / parts % col_tiles * bn);
    products.multiply_into(c, {.own = own, .expert = expert, .part = part, .col = col});
  });
  return p.finish();
}

}  // namespace stretto
