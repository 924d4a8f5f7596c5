#include "stretto/ops/moe/ag_grouped_gemm.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/moe/expert_biases.h"
#include "stretto/ops/moe/fused_layers.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
void check(const AgGroupedDesc& d, const AgGroupedConfig& c) {
  check_product_sizes("ag_grouped_gemm", d, c);
  check_sizes(
      "ag_grouped_gemm",
      {{"top_k", d.shape.top_k}, {"num_experts", d.shape.num_experts}, {"comm_rows", c.comm_rows}});
  check_sizes("ag_grouped_gemm",
              {{"num_copy_queues", c.num_copy_queues}, {"sort_rows", c.sort_rows}}, 0);
  check("ag_grouped_gemm", d.gate, d.swiglu);
  auto fields = FieldFit::refusing(to_string(d));
  AgGroupedConfig will_run = c;
  if (c.sort_rows > 0) {
    check_sizes("ag_grouped_gemm", {{"sort_cols", c.sort_cols}});
  } else {
    fields.only("sort_cols", will_run.sort_cols, 0, "nothing is sorted (sort_rows)");
  }
  if (d.k <= c.loop.tile.bk) {
    fields.only("skip_dead_rows", will_run.skip_dead_rows, false,
                "k is one step, of which the assembler would serialise products");
  }
  check_dtype("ag_grouped_gemm", "a_dtype", d.a_dtype);
  check_dtype("ag_grouped_gemm", "b_dtype", d.b_dtype);
  check_dtype("ag_grouped_gemm", "c_dtype", d.c_dtype);
}

TileTableRefs declare_tile_tables(ProgramBuilder& p, const ExpertTiles& tiles) {
  std::int64_t count = tiles.num_tiles();
  return {.used = p.table("tiles_used", {1}, {ContractKind::kAscending, 0, count + 1}),
          .experts = p.table("tile_experts", {count, 1},
                             {ContractKind::kRange, 0, tiles.shape.num_experts})};
}

TilePlace place_in_raster(ProgramBuilder& p, const Index& index, std::int64_t num_rows,
                          std::int64_t num_cols, std::int64_t raster) {
  std::int64_t group = raster * num_cols;
  Index first = p.let("first_tile", index / group * raster), in_group = index % group;
  Index rows = p.let("rows", max(min(num_rows - first, Index(raster)), 1));
  return {.row = p.let("tile", first + in_group % rows), .col = p.let("col_tile", in_group / rows)};
}

void notify_with_last(ProgramBuilder& p, const WorkersTurn& turn, std::int64_t end,
                      const ChannelRef& channel) {
  p.when(turn.index + turn.num_workers >= end,
         [&] { p.notify(channel, p.rank(), turn.index / turn.num_workers + 1); });
}

void FirstTurns::then(ProgramBuilder& p, const Index& index,
                      const std::function<void(const Index& index)>& rest) const {
  if (num == 0) return rest(index);
  p.when(
      index < num, [&] { turn(index); }, [&] { rest(p.let("product", max(index - num, 0))); });
}

AgGrouped::AgGrouped(ProgramBuilder& p, const AgGroupedDesc& d, const AgGroupedConfig& cfg,
                     const Index& m, const TileTableRefs& tables)
    : p_(p),
      d_(d),
      cfg_(cfg),
      num_tiles_(tiles_of(d, cfg).num_tiles()),
      m_(m),
      share_(ceil_div(m, d.shape.world_size)),
      tables_(tables) {
  Index rows = share_ * d.shape.world_size;
  if (!tables.made()) {
    tables_.needs =
        p.table("tile_needs", {num_tiles_, 1}, {ContractKind::kRange, 0, d.shape.world_size + 1});
    tables_.tokens =
        p.table("row_tokens", {num_tiles_ * cfg.loop.tile.bm, 1}, {ContractKind::kRange, -1, rows});
  }
  a_ = d.gathers ? p.state("a", d.a_dtype, {rows, d.k}, Space::kSymmetric)
                 : p.input("a", d.a_dtype, {rows, d.k});
  for (const char* name : d.swiglu ? std::vector{"b_gate", "b_up"} : std::vector{"b"}) {
    weights_.push_back(p.input(name, d.b_dtype, {d.shape.num_experts, d.n, d.k}));
  }
  biases_ = bias_inputs(p, d.bias, d.swiglu, d.c_dtype, {d.shape.num_experts, d.n});
  if (cfg.sort_rows > 0) {
    sorted_ = p.buffer("sorted", d.a_dtype, {num_tiles_ * cfg.loop.tile.bm, d.k});
    in_order_ = p.signal("in_order", num_tiles_);  // by tile: its copies
  }
  if (!sends()) return;
  ready_ = p.signal("ready");
  arrived_ = p.signal("arrived", d.shape.world_size);  // by position: transfers that are there
}

std::int64_t AgGrouped::transfers() const {
  return ceil_div(d_.shape.rows_per_rank(), cfg_.comm_rows);
}

void AgGrouped::announce() {
  p_.loop(d_.shape.world_size - 1,
          [&](const Index& i) { p_.notify(ready_, (p_.rank() + 1 + i) % d_.shape.world_size); });
}

void AgGrouped::add_sending() {
  if (!sends() || cfg_.num_copy_queues == 0) return;
  p_.role("send", Resource::copy_engine(cfg_.num_copy_queues),
          p_.grid(d_.shape.world_size - 1, transfers(), 1, 1), [&](const Tile& t) { send(t); });
}

void AgGrouped::send(const Tile& t) {
  Index position = p_.let("position", t.m + 1);  // of this rank, at the peer
  Index peer = p_.let("peer", (p_.rank() + d_.shape.world_size - position) % d_.shape.world_size);
  p_.wait(ready_, peer);
  Index row = t.n * cfg_.comm_rows;
  p_.put(rows(position * share_ + row).until_row((position + 1) * share_).on(peer),
         rows(row).until_row(share_));
  p_.notify(arrived_[position], peer);
}

void AgGrouped::multiply(const Index& tile, const Index& col_tile) {
  const auto& [bm, bn, bk] = cfg_.loop.tile;
  if (tables_.made()) tables_.wait();
  Index used = p_.read(tables_.used, {0});
  Index col = col_tile * bn;
  auto store = [&](const std::vector<Value>& sums) {
    Value out = d_.swiglu ? gated(p_, d_.gate, sums[0], sums[1]) : sums[0];
    p_.store(c_.tile({tile * bm, col}, bm, bn), cast(out, d_.c_dtype));
  };
  std::vector<Value> sums;
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    sums.push_back(p_.zeros(DType::kF32, bm, bn));
  }
  p_.when(tile < used, [&] {
    Index expert = p_.read(tables_.experts, {tile, 0});
    Index filled = rows_to_multiply(tile);
    auto multiply_by = [&](const auto& load_rows) {
      p_.loop(ceil_div(d_.k, bk), [&](const Index& step) {
        Index k = step * bk;
        Value x = load_rows(k);
        for (std::size_t w = 0; w < weights_.size(); ++w) {
          Value weight = p_.load(weights_[w].tile({expert, col, k}, bn, bk)).T();
          sums[w] = dot(sums[w], x, weight, filled);
        }
      });
      add_biases(p_, biases_, expert, col, sums);
    };
    if (cfg_.sort_rows > 0) {
      p_.wait(in_order_[tile], copies_of_tile());
      return multiply_by([&](const Index& k) {
        return p_.load(sorted_.tile({tile * bm, k}, bm, bk));
      });
    }
    Index needs = p_.read(tables_.needs, {tile, 0});
    if (sends()) wait_for(needs);
    Value picked = p_.load(tables_.tokens.tile({tile * bm, 0}, bm, 1));
    multiply_by([&](const Index& k) {
      return p_.load_rows(a_.tile({0, k}, bm, bk).until_row(needs * share_), picked);
    });
    if (tables_.made()) store(sums);
  });
  if (!tables_.made()) store(sums);
}

void AgGrouped::push_some(const Index& index, const Goes& goes) {
  Index own_end = p_.let("own_end", min(share_, m_ - p_.rank() * share_));
  p_.loop(cfg_.comm_rows, [&](const Index& i) {
    Index token = p_.let("token", index * cfg_.comm_rows + i);
    p_.when(token < own_end, [&] {
      Value row = p_.load(a_.tile({token, 0}, 1, d_.k));
      for_each_peer([&](const Index& position, const Index& peer) {
        p_.when(goes(token, peer), [&] {
          p_.store(a_.on(peer).tile({position * share_ + token, 0}, 1, d_.k), row);
        });
      });
    });
  });
}

void AgGrouped::push_all(const Index& index) {
  Index first = p_.let("first_token", index * cfg_.comm_rows);
  Value tokens = p_.load(rows(first).until_row(share_));
  for_each_peer([&](const Index& position, const Index& peer) {
    Index row = position * share_;
    p_.store(rows(row + first).until_row(row + share_).on(peer), tokens);
  });
}

void AgGrouped::push(const Index& index, const Goes& goes) {
  p_.loop(1, d_.shape.world_size,
          [&](const Index& i) { p_.wait(ready_, (p_.rank() + i) % d_.shape.world_size); });
  goes ? push_some(index, goes) : push_all(index);
  for_each_peer(
      [&](const Index& position, const Index& peer) { p_.notify(arrived_[position], peer); });
}

void AgGrouped::for_each_peer(
    const std::function<void(const Index& position, const Index& peer)>& body) {
  p_.loop(1, d_.shape.world_size, [&](const Index& position) {
    body(position,
         p_.let("peer", (p_.rank() + d_.shape.world_size - position) % d_.shape.world_size));
  });
}

Index AgGrouped::rows_to_multiply(const Index& tile) {
  std::int64_t bm = cfg_.loop.tile.bm, half = bm / 2;
  if (!cfg_.skip_dead_rows) return bm;
  Index token = p_.read(tables_.tokens, {tile * bm + half, 0});
  return p_.let("filled", half + (token >= 0) * (bm - half));
}

// Some columns of a tile's rows.
void AgGrouped::copy_rows(const Index& index) {
  std::int64_t bm = cfg_.loop.tile.bm, rows = cfg_.sort_rows, cols = cfg_.sort_cols;
  Index tile = p_.let("sorted_tile", index / copies_of_tile());
  Index col = p_.let("sorted_col", index % copies_of_tile() * cols);
  p_.when(tile < p_.read(tables_.used, {0}), [&] {
    Index needs = p_.read(tables_.needs, {tile, 0});
    if (sends()) wait_for(needs);
    p_.loop(ceil_div(bm, rows), [&](const Index& i) {
      Index row = p_.let("sorted_row", tile * bm + i * rows), end = (tile + 1) * bm;
      Value token = p_.load(tables_.tokens.tile({row, 0}, rows, 1).until_row(end));
      Value x = p_.load_rows(a_.tile({0, col}, rows, cols).until_row(needs * share_), token);
      p_.store(sorted_.tile({row, col}, rows, cols).until_row(end), x);
    });
  });
  p_.notify(in_order_[tile], p_.rank());
}

void AgGrouped::wait_for_all() {
  p_.loop(1, d_.shape.world_size, [&](const Index& i) { p_.wait(arrived_[i], transfers()); });
}

void AgGrouped::wait_for(const Index& needs) {
  p_.loop(1, d_.shape.world_size, [&](const Index& position) {
    p_.when(position < needs, [&] { p_.wait(arrived_[position], transfers()); });
  });
}

ExpertTiles tiles_of(const AgGroupedDesc& d, const AgGroupedConfig& c) {
  return {.shape = d.shape, .tile_rows = c.loop.tile.bm};
}

NamedFields fields_of(AgGroupedDesc& d) {
  NamedFields all = fields_of(d.shape);
  all = joined(std::move(all), {{"n", d.n},
                                {"k", d.k},
                                NamedField("a_dtype", d.a_dtype).as("a={}"),
                                NamedField("b_dtype", d.b_dtype).as("b={}"),
                                NamedField("result_dtype", d.c_dtype).as("c={}"),
                                {"swiglu", d.swiglu},
                                {"bias", d.bias},
                                NamedField("gathers", d.gathers).unless_set("all tokens there")});
  return joined(std::move(all), fields_of(d.gate));
}

std::string to_string(const AgGroupedDesc& d) { return "ag_grouped_gemm " + text_of(d); }

NamedFields fields_of(AgGroupedConfig& c) {
  return with_rest({tile_field(c.loop.tile),
                    {"compute", c.loop.num_compute_sms},
                    {"stages", c.loop.num_stages},
                    {"raster", c.loop.raster},
                    {"queues", c.num_copy_queues},
                    {"comm_rows", c.comm_rows},
                    {"sort", {&c.sort_rows, &c.sort_cols}, 0},
                    {"skip_dead_rows", c.skip_dead_rows}},
                   c.loop);
}

Program ag_grouped_gemm(const AgGroupedDesc& d, const AgGroupedConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("ag_grouped_gemm", d.shape.world_size);
  ExpertTiles tiles = tiles_of(d, cfg);
  AgGrouped op(p, d, cfg, p.extent("m", d.shape.m), declare_tile_tables(p, tiles));
  op.store_to(p.output("c", d.c_dtype, {tiles.num_rows(), d.n}));
  if (op.sends()) p.on_start([&] { op.announce(); });
  op.add_sending();
  Resource workers = product_sms(cfg.loop);
  FirstTurns pushes = op.pushes();
  int gemm =
      pushes.num == 0
          ? p.role("gemm", workers,
                   p.grid(tiles.num_tiles(), d.n, 1, cfg.loop.tile.bn).raster(cfg.loop.raster),
                   [&](const Tile& t) { op.multiply(t.m, t.n); })
          : p.role("gemm", workers, p.range(pushes.num + tiles.num_tiles() * op.col_tiles()),
                   [&](const Tile& t) {
                     pushes.then(p, t.index, [&](const Index& index) {
                       TilePlace at = place_in_raster(p, index, tiles.num_tiles(), op.col_tiles(),
                                                      cfg.loop.raster);
                       op.multiply(at.row, at.col);
                     });
                   });
  if (cfg.sort_rows > 0) {
    p.role("sort", Resource::sms(cfg.loop.num_compute_sms).beside_role(gemm),
           p.range(op.num_copies()), [&](const Tile& t) { op.copy_rows(t.index); });
  }
  if (op.sends()) p.on_end([&] { op.wait_for_all(); });
  return p.finish();
}

}  // namespace stretto
