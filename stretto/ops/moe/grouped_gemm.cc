#include "stretto/ops/moe/grouped_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/column_dot.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/moe/expert_biases.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

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

// The rows [first, end) of an expert.
struct ExpertRows {
  Index first, end;
};

// The inputs of the products, and what a tile of one expert's computes.
class Products {
 public:
  Products(ProgramBuilder& p, const GroupedDesc& d, const GroupedConfig& c)
      : p_(p),
        d_(d),
        tile_(c.loop.tile),
        swap_ab_(c.swap_ab),
        split_(split_of(d)),
        m_(p.extent("m", d.m)) {
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

  Index most_rows() const { return d_.masked() ? m_ : all_rows(); }  // of an expert
  Index all_rows() const { return d_.masked() ? m_ * split_.share() : m_ * d_.rows_per_token; }

  ExpertRows rows_of(const Index& own, const Index& expert) const {
    if (!d_.masked()) return {p_.read(counts_, {expert}), p_.read(counts_, {expert + 1})};
    Index first = p_.let("first", own * m_);
    return {first, first + p_.read(counts_, {own})};
  }

  // Rows from `row` on, columns from `col` on: f32 [bm, bn], or with swap_ab [bn, bm].
  Value tile(const Index& own, const Index& row, const Index& end, const Index& col) const {
    const auto& [bm, bn, bk] = tile_;
    Value picked;
    if (d_.gathered) picked = p_.load(tokens_.tile({row, 0}, bm, 1).until_row(end));
    auto rows = [&](const TensorRef& x, const Index& first, std::int64_t cols) {
      return d_.gathered ? p_.load_rows(x.tile({0, first}, bm, cols), picked)
                         : p_.load(x.tile({row, first}, bm, cols).until_row(end));
    };
    std::vector<Value> sums;
    for (std::size_t w = 0; w < weights_.size(); ++w) {
      sums.push_back(swap_ab_ ? p_.zeros(DType::kF32, bn, bm) : p_.zeros(DType::kF32, bm, bn));
    }
    p_.loop(ceil_div(d_.k, bk), [&](const Index& step) {
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
        sums[w] = swap_ab_         ? dot_of_columns(sums[w], b, x.T(), end - row)
                  : scales.empty() ? dot(sums[w], x, b.T(), end - row)
                                   : dot_scaled(sums[w], x, b.T(), scales[w]);
      }
    });
    add_biases(p_, biases_, own, col, sums);
    return d_.swiglu ? gated(p_, d_.gate, sums[0], sums[1]) : std::move(sums[0]);
  }

 private:
  ProgramBuilder& p_;
  const GroupedDesc& d_;
  GemmTile tile_;
  bool swap_ab_;
  ExpertSplit split_;
  Index m_;
  TensorRef counts_, tokens_, a_, scale_a_;
  std::vector<TensorRef> weights_, scales_, biases_;
};

}  // namespace

ExpertSplit split_of(const GroupedDesc& d) {
  return {.num_experts = d.num_experts, .world_size = d.world_size, .groups = d.expert_groups};
}

const char* name(RowLayout layout) {
  return layout == RowLayout::kMasked ? "masked" : "contiguous";
}

NamedFields fields_of(GroupedDesc& d) {
  return joined({NamedField("world_size", d.world_size).as("P={}"),
                 {"m", d.m},
                 {"rows_per_token", d.rows_per_token, 1},
                 {"num_experts", d.num_experts},
                 NamedField("expert_groups", d.expert_groups, 1).as("in {} groups"),
                 {"spare_rows", d.spare_rows},
                 {"n", d.n},
                 {"k", d.k},
                 NamedField("a_dtype", d.a_dtype).as("a={}"),
                 NamedField("b_dtype", d.b_dtype).as("b={}"),
                 NamedField("result_dtype", d.c_dtype).as("c={}"),
                 {"gathered", d.gathered},
                 {"swiglu", d.swiglu},
                 {"bias", d.bias},
                 NamedField("layout", d.layout, {RowLayout::kContiguous, RowLayout::kMasked},
                            RowLayout::kContiguous)
                     .as("{}"),
                 scaling_field(d.scaling)},
                fields_of(d.gate));
}

NamedFields fields_of(GroupedConfig& c) {
  return with_rest({tile_field(c.loop.tile),
                    {"row_parts", c.row_parts},
                    {"compute", c.loop.num_compute_sms},
                    {"stages", c.loop.num_stages},
                    {"tickets", c.tickets},
                    {"swap_ab", c.swap_ab}},
                   c.loop);
}

Program grouped_gemm(const GroupedDesc& d, const GroupedConfig& cfg) {
  check(d, cfg);
  const std::int64_t bm = cfg.loop.tile.bm, bn = cfg.loop.tile.bn;
  std::string name = d.swiglu ? "grouped_swiglu" : "grouped_gemm";
  if (d.masked()) name += "_masked";
  ProgramBuilder p(name, d.world_size);
  Products products(p, d, cfg);
  bool some_stay = d.expert_groups > 1 || d.spare_rows || d.masked();
  Index rows = products.all_rows();
  auto c = some_stay ? p.state("c", d.c_dtype, {rows, d.n}) : p.output("c", d.c_dtype, {rows, d.n});
  ExpertSplit split = split_of(d);
  std::int64_t col_tiles = ceil_div(d.n, bn), parts = cfg.row_parts;

  // A tile is a column of one expert's product, or every parts-th bm rows of it: weights are read
  // again for each bm rows. Those of a column follow each other, so that what runs at the same time
  // reads some of the rows and some of the weights, and not all weights of a large expert.
  Resource sms = product_sms(cfg.loop).by_ticket(cfg.tickets);
  auto multiply = [&](const Index& own, const Index& expert, const Index& part, const Index& col) {
    auto [first, end] = products.rows_of(own, expert);
    p.loop(ceil_div(products.most_rows(), bm * parts), [&](const Index& i) {
      Index row = p.let("row", first + (i * parts + part) * bm);
      p.when(row < end, [&] {
        Value out = cast(products.tile(own, row, end, col), d.c_dtype);
        p.store(c.tile({row, col}, bm, bn).until_row(end), cfg.swap_ab ? out.T() : out);
      });
    });
  };
  p.role("gemm", sms, p.range(split.share() * parts * col_tiles), [&](const Tile& t) {
    Index own = p.let("own", t.index / (parts * col_tiles));
    Index part = p.let("part", t.index % parts);
    Index expert = p.let("expert", split.first(p.rank()) + own);
    Index col = p.let("col", t.index / parts % col_tiles * bn);
    bool all_exist = split.share() * split.groups == split.num_experts;
    if (all_exist) return multiply(own, expert, part, col);
    p.when(expert < split.num_experts, [&] { multiply(own, expert, part, col); });
  });
  return p.finish();
}

}  // namespace stretto
