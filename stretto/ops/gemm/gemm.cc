#include "stretto/ops/gemm/gemm.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

void check(const GemmDesc& d, const GemmConfig& cfg) {
  check_product_sizes("gemm", d, cfg);
  check_sizes("gemm", {{"split_k", cfg.split_k}});
  if (std::int64_t steps = ceil_div(d.k, cfg.loop.tile.bk); cfg.split_k > steps) {
    throw UserError(fmt::format("gemm: split_k is {}, but k has {} steps of {}", cfg.split_k, steps,
                                cfg.loop.tile.bk));
  }
  if (cfg.swap_ab && (d.bias || d.swiglu || d.residual || d.scaling != Scaling::kNone)) {
    throw UserError("gemm: swap_ab is for products without bias, swiglu, residual and scaling");
  }
  check_factors("gemm", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("gemm", "c_dtype", d.c_dtype, d.a_dtype);
}

// Where a tile of c lies, and which of its steps a worker takes.
struct Part {
  Index idx, row, col, channel;
  StepRange steps;
};

// Tiles by parts of k. The one that adds the others has the first steps and comes last, so that it
// waits for tiles that were taken before it. Rows are those of the bound, m or not: each launch
// notifies every channel.
class Parts {
 public:
  Parts(ProgramBuilder& p, const GemmDesc& d, const GemmConfig& cfg, const Index& m)
      : p_(p), d_(d), cfg_(cfg) {
    std::int64_t others = std::int64_t{cfg.split_k - 1} * num_weights();
    std::vector<Index> shape = {others, m, d.n};  // [parts - 1 of each weight, m, n], or [.., n, m]
    if (cfg.swap_ab) std::swap(shape[1], shape[2]);
    sums_ = p.buffer("sums", sum_dtype(d.b_dtype), shape);
    summed_ = p.signal("summed", row_tiles() * col_tiles());
  }

  TileSpace tiles() const {
    return p_.grid(row_tiles() * cfg_.split_k, d_.n, 1, cfg_.loop.tile.bn)
        .raster(cfg_.loop.raster * cfg_.split_k);
  }
  Part part_of(const Tile& t) const {
    Index idx = p_.let("part", cfg_.split_k - 1 - t.m % cfg_.split_k);
    Index row_tile = p_.let("row_tile", t.m / cfg_.split_k);
    std::int64_t steps = ceil_div(d_.k, cfg_.loop.tile.bk);
    auto begin = [&](const Index& part) { return part * steps / cfg_.split_k; };
    return {.idx = idx,
            .row = row_tile * cfg_.loop.tile.bm,
            .col = t.col,
            .channel = row_tile * col_tiles() + t.n,
            .steps = {begin(idx), begin(idx + 1)}};
  }
  // `finish` gets the sums of all parts.
  void add_up(const Part& part, Linear::Sums& sums, const std::function<void()>& finish) const {
    auto stored = [&](const Index& idx, std::size_t weight) {
      Index at = (idx - 1) * num_weights() + static_cast<std::int64_t>(weight);
      const GemmTile& tile = cfg_.loop.tile;
      return cfg_.swap_ab ? sums_.tile({at, part.col, part.row}, tile.bn, tile.bm)
                          : sums_.tile({at, part.row, part.col}, tile.bm, tile.bn);
    };
    p_.when(
        part.idx > 0,
        [&] {
          for (std::size_t i = 0; i < sums.of.size(); ++i) {
            p_.store(stored(part.idx, i), sums.of[i]);
          }
          p_.notify(summed_[part.channel], p_.rank());
        },
        [&] {
          p_.wait(summed_[part.channel], cfg_.split_k - 1);
          p_.loop(1, cfg_.split_k, [&](const Index& other) {
            for (std::size_t i = 0; i < sums.of.size(); ++i) {
              sums.of[i] = sums.of[i] + p_.load(stored(other, i));
            }
          });
          finish();
        });
  }

 private:
  std::int64_t num_weights() const { return d_.swiglu ? 2 : 1; }
  std::int64_t row_tiles() const { return ceil_div(d_.m, cfg_.loop.tile.bm); }
  std::int64_t col_tiles() const { return ceil_div(d_.n, cfg_.loop.tile.bn); }

  ProgramBuilder& p_;
  GemmDesc d_;
  GemmConfig cfg_;
  TensorRef sums_;
  SignalRef summed_;  // by tile of c
};

}  // namespace

NamedFields fields_of(GemmDesc& d) {
  return joined(product_fields(d, d.c_dtype, "c={}"), {{"bias", d.bias},
                                                       {"swiglu", d.swiglu},
                                                       {"residual", d.residual},
                                                       scaling_field(d.scaling),
                                                       weights_field(d.b_kn)});
}

std::string to_string(const GemmDesc& d) { return "gemm " + text_of(d); }

NamedFields fields_of(GemmConfig& c) {
  NamedFields fields = with_rest({tile_field(c.loop.tile),
                                  {"compute", c.loop.num_compute_sms},
                                  {"raster", c.loop.raster},
                                  {"stages", c.loop.num_stages},
                                  {"consumers", c.loop.num_consumers},
                                  {"cluster", c.loop.cluster_size}},
                                 c.loop);
  fields.push_back({"split_k", c.split_k, 1});
  fields.push_back({"swap_ab", c.swap_ab});
  return fields;
}

Program gemm(const GemmDesc& d, const GemmConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {m, d.k});  // [m, k]
  Linear linear(p, {.n = d.n,
                    .k = d.k,
                    .dtype = d.b_dtype,
                    .bias = d.bias,
                    .swiglu = d.swiglu,
                    .scaling = d.scaling,
                    .b_kn = d.b_kn,
                    .swap_ab = cfg.swap_ab});
  auto scale_a = scale_input(p, d.scaling, m, d.k);  // [m, 1] or [m, k/128]
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.c_dtype, {m, d.n});  // [m, n]
  auto c = p.output("c", d.c_dtype, {m, d.n});                          // [m, n]

  Resource sms = product_sms(cfg.loop);
  auto finish = [&](Value acc, const Index& row, const Index& col) {
    if (d.residual) {
      acc = acc + cast(p.load(residual.tile({row, col}, tile.bm, tile.bn)), acc.dtype());
    }
    Value rounded = cast(acc, d.c_dtype);
    p.store(c.tile({row, col}, tile.bm, tile.bn), cfg.swap_ab ? rounded.T() : rounded);
  };
  if (cfg.split_k == 1) {
    p.role("gemm", sms, p.grid(c, tile.bm, tile.bn).raster(cfg.loop.raster), [&](const Tile& t) {
      TileRows rows = tile_rows(a, scale_a, tile, {.row = t.row});
      finish(linear.product(tile, t.col, rows), t.row, t.col);
    });
    return p.finish();
  }
  Parts parts(p, d, cfg, m);
  p.role("gemm", sms, parts.tiles(), [&](const Tile& t) {
    Part part = parts.part_of(t);
    Linear::Sums sums = linear.sums(tile, t.col);
    TileRows rows = tile_rows(a, scale_a, tile, {.row = part.row});
    linear.accumulate(sums, tile, t.col, rows, part.steps);
    parts.add_up(part, sums,
                 [&] { finish(linear.finish(std::move(sums), tile, t.col), part.row, t.col); });
  });
  return p.finish();
}

}  // namespace stretto
