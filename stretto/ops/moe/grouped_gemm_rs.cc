#include "stretto/ops/moe/grouped_gemm_rs.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ops/moe/expert_biases.h"
#include "stretto/ops/moe/fused_layers.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
void check(const GroupedRsDesc& d, const GroupedRsConfig& c) {
  check_product_sizes("grouped_gemm_rs", d, c);
  check_sizes("grouped_gemm_rs", {{"top_k", d.shape.top_k},
                                  {"num_experts", d.shape.num_experts},
                                  {"num_products", c.num_products},
                                  {"block_tiles", c.block_tiles},
                                  {"reduce_rows", c.reduce_rows},
                                  {"reduce_cols", c.reduce_cols},
                                  {"reduce_rounds", c.reduce_rounds},
                                  {"last_rows", c.last_rows},
                                  {"last_rounds", c.last_rounds}});
  check_sizes("grouped_gemm_rs", {{"bias_ranks", d.bias_ranks}}, 0);
  if (d.bias_ranks > 0 && d.shape.world_size % d.bias_ranks != 0) {
    throw UserError(fmt::format("grouped_gemm_rs: bias_ranks is {}, must divide {} ranks",
                                d.bias_ranks, d.shape.world_size));
  }
  check_sizes("grouped_gemm_rs",
              {{"num_reduce_sms", c.num_reduce_sms},
               {"num_reduce_stages", c.num_reduce_stages},
               {"last_blocks", c.last_blocks}},
              0);
  check_dtype("grouped_gemm_rs", "a_dtype", d.a_dtype);
  check_dtype("grouped_gemm_rs", "b_dtype", d.b_dtype);
  check_dtype("grouped_gemm_rs", "out_dtype", d.out_dtype);
  if (c.loop.tile.bn % c.num_products != 0) {
    throw UserError(fmt::format("grouped_gemm_rs: num_products is {}, must divide tile.bn = {}",
                                c.num_products, c.loop.tile.bn));
  }
  if (c.loop.tile.bn * c.block_tiles % c.reduce_cols != 0) {
    throw UserError(fmt::format("grouped_gemm_rs: reduce_cols is {}, must divide a block of {}",
                                c.reduce_cols, c.loop.tile.bn * c.block_tiles));
  }
  auto fields = FieldFit::refusing(to_string(d));
  GroupedRsConfig will_run = c;
  if (c.num_reduce_sms == 0) {
    fields.only("num_reduce_stages", will_run.num_reduce_stages, 0,
                "sums are made beside products, not on SMs of their own (num_reduce_sms)");
  }
  if (c.last_blocks == 0) {
    fields.only("last_rows", will_run.last_rows, 1, "there are no last_blocks");
    fields.only("last_rounds", will_run.last_rounds, 1, "there are no last_blocks");
  }
  std::int64_t blocks = ceil_div(d.n, c.loop.tile.bn * c.block_tiles);
  if (c.last_blocks > blocks) {
    throw UserError(
        fmt::format("grouped_gemm_rs: last_blocks is {}, there are {}", c.last_blocks, blocks));
  }
  if (c.last_blocks == blocks) {
    fields.only("reduce_rows", will_run.reduce_rows, 1, "all blocks are last_blocks");
    fields.only("reduce_rounds", will_run.reduce_rounds, 1, "all blocks are last_blocks");
  }
}

GroupedRs::GroupedRs(ProgramBuilder& p, const GroupedRsDesc& d, const GroupedRsConfig& cfg,
                     const Index& m, const TileTableRefs& tables)
    : p_(p),
      d_(d),
      cfg_(cfg),
      num_tiles_(tiles_of(d, cfg).num_tiles()),
      m_(m),
      share_(ceil_div(m, d.shape.world_size)),
      tables_(tables) {
  std::int64_t rows = num_tiles_ * cfg.loop.tile.bm;
  if (!tables.made()) {
    tables_.slots = p.table("slots", {m_ * d.shape.top_k, 1}, {ContractKind::kRange, 0, rows});
    tables_.weights = p.input("weights", DType::kF32, {m_, d.shape.top_k});
  }
  b_ = p.input("b", d.b_dtype, {d.shape.num_experts, d.n, d.k});
  biases_ = bias_inputs(p, d.bias_ranks > 0, false, d.out_dtype, {d.shape.num_experts, d.n});
  declare_results();
  // Of tiles without rows nothing is stored where they are many.
  products_ = tables.made() ? p.state("products", d.out_dtype, {rows, d.n})
                            : p.buffer("products", d.out_dtype, {rows, d.n});
  declare_sums();
}

GroupedRs::GroupedRs(ProgramBuilder& p, const GroupedRsDesc& d, const GroupedRsConfig& cfg,
                     const Index& m, SortedRows sorted)
    : p_(p),
      d_(d),
      cfg_(cfg),
      num_tiles_(sorted.parts),
      m_(m),
      share_(ceil_div(m, d.shape.world_size)),
      sorted_(std::move(sorted)) {
  declare_results();
  // Of other ranks' experts nothing is stored.
  products_ = sorted_.own ? p.state("products", d.out_dtype, {sorted_.rows, d.n})
                          : p.output("products", d.out_dtype, {sorted_.rows, d.n});
  declare_sums();
}

void GroupedRs::declare_results() {
  Index rows = d_.all_reduce ? m_ : share_;
  if (d_.residual) residual_ = p_.input("residual", d_.out_dtype, {rows, d_.n});
  out_ = p_.output("out", d_.out_dtype, {rows, d_.n},
                   d_.all_reduce ? Space::kSymmetric : Space::kLocal);
}

void GroupedRs::declare_sums() {
  computed_ = p_.signal("computed", num_blocks());  // tiles of a block of columns
  if (d_.shape.world_size == 1) return;
  parts_ = p_.buffer("parts", d_.out_dtype, {d_.shape.world_size, share_, d_.n},
                     {.space = Space::kSymmetric});
  if (asks()) free_ = p_.signal("free");
  summed_ = p_.signal("summed", num_blocks());       // by block: parts that are there
  if (d_.all_reduce) stored_ = p_.signal("stored");  // by owner: sums that it sent on
}

void GroupedRs::add_roles() {
  const bool several = d_.shape.world_size > 1;
  if (several && !d_.all_reduce) p_.on_start([&] { announce(); });
  int gemm = p_.role("gemm", product_sms(cfg_.loop), p_.range(num_turns()),
                     [&](const Tile& t) { turn(t.index); });
  if (num_sums() > 0) {
    p_.role("reduce", sum_sms(gemm), p_.range(num_sums()), [&](const Tile& t) { sum(t.index); });
  }
  if (several && d_.all_reduce) p_.on_end([&] { wait_for_all(); });
}

void GroupedRs::announce() {
  if (!asks()) return;
  p_.notify_all(free_);
}

void GroupedRs::wait_for_all() {
  std::int64_t last = cfg_.last_blocks;
  std::int64_t all = (num_blocks() - last) * sums_of_owner(to_keep(sums())) +
                     last * sums_of_owner(to_keep(last_sums()));
  p_.loop(1, d_.shape.world_size,
          [&](const Index& i) { p_.wait(stored_[(p_.rank() + i) % d_.shape.world_size], all); });
}

void GroupedRs::turn(const Index& index) {
  if (cfg_.last_blocks == 0) return product(index);
  p_.when(
      index < num_products(), [&] { product(index); },
      [&] {
        Index last = p_.let("last", max(index - num_products(), 0));
        sum_of(last_sums(), num_blocks() - cfg_.last_blocks, last);
      });
}

void GroupedRs::product(const Index& index) {
  Index block = p_.let("block", index / products_of_block());
  Index i = p_.let("product", index % products_of_block());
  if (sorted_.multiply) {
    sorted_.multiply(products_, p_.let("block_col", block * block_cols()), i);
  } else {
    TilePlace at = place_in_raster(p_, i, num_tiles_, cfg_.block_tiles, cfg_.loop.raster);
    multiply(at.row, block, at.col * cfg_.loop.tile.bn);
  }
  Index of_block = index - block * products_of_block();
  notify_with_last(p_, {of_block, cfg_.loop.num_compute_sms}, products_of_block(),
                   computed_[block]);
}

void GroupedRs::sum_of(const Sums& s, std::int64_t first_block, const Index& index) {
  Index block = p_.let("block", first_block + index / sums_of_block(s));
  Index i = p_.let("of_block", index % sums_of_block(s));
  if (d_.shape.world_size == 1) return keep(s, block, i);
  std::int64_t sends = sums_of_block(s) - sums_of_owner(to_keep(s));
  p_.when(
      i < sends,
      [&] {
        Index owner = p_.let("owner", i % d_.shape.world_size);
        send(s, block, owner, p_.let("of_owner", i / d_.shape.world_size));
      },
      [&] { keep(s, block, p_.let("kept", max(i - sends, 0))); });
}

void GroupedRs::multiply(const Index& tile, const Index& block, const Index& col_in_block) {
  const auto& [bm, bn, bk] = cfg_.loop.tile;
  Index col = p_.let("col", block * block_cols() + col_in_block);
  if (tables_.made()) tables_.wait();
  Index used = p_.read(tables_.used, {0});
  std::int64_t cols = bn / cfg_.num_products;  // of a product
  std::vector<Value> sums;
  for (int i = 0; i < cfg_.num_products; ++i) sums.push_back(p_.zeros(DType::kF32, bm, cols));
  auto store = [&] {
    for (int i = 0; i < cfg_.num_products; ++i) {
      Slice to = products_.tile({tile * bm, col + i * cols}, bm, cols);
      p_.store(to, cast(sums[static_cast<std::size_t>(i)], d_.out_dtype));
    }
  };
  p_.when(tile < used, [&] {
    Index expert = p_.read(tables_.experts, {tile, 0});
    if (rows_.tiles > 0) p_.wait(rows_.made[0], rows_.tiles);
    Index filled = rows_.filled ? rows_.filled(tile) : Index(bm);
    p_.loop(ceil_div(d_.k, bk), [&](const Index& step) {
      Value x = p_.load(rows_.a.tile({tile * bm, step * bk}, bm, bk));
      for (int i = 0; i < cfg_.num_products; ++i) {
        Value w = p_.load(b_.tile({expert, col + i * cols, step * bk}, cols, bk));
        Value& sum = sums[static_cast<std::size_t>(i)];
        sum = dot(sum, x, w.T(), filled);
      }
    });
    add_once(expert, col, sums);
    if (tables_.made()) store();
  });
  if (!tables_.made()) store();
}

void GroupedRs::add_once(const Index& expert, const Index& col, std::vector<Value>& sums) {
  if (d_.bias_ranks == 0) return;
  auto add = [&] {
    Index at = col;
    for (Value& sum : sums) {
      add_bias(p_, biases_[0], expert, at, sum);
      at = at + sum.cols();
    }
  };
  if (d_.bias_ranks == 1) return add();
  p_.when(p_.rank() % d_.bias_ranks == 0, add);
}

GroupedRs::Place GroupedRs::place(const Sums& s, const Index& block, const Index& i) {
  std::int64_t per_group = block_cols() / cfg_.reduce_cols;
  return {.first = p_.let("first", i / per_group * (s.rows * s.rounds)),
          .col = p_.let("sum_col", block * block_cols() + i % per_group * cfg_.reduce_cols)};
}

void GroupedRs::send(const Sums& s, const Index& block, const Index& owner, const Index& i) {
  Place at = place(s, block, i);
  p_.wait(computed_[block], products_of_block());
  if (asks()) p_.wait(free_, owner);
  rounds(s, at, [&](const Index& row) {
    p_.store(part(s, p_.rank(), row, at.col).on(owner).until_row(share_),
             cast(own_sum(s, owner, row, at.col), d_.out_dtype));
  });
  p_.notify(summed_[block], owner);
}

void GroupedRs::keep(const Sums& s, const Index& block, const Index& i) {
  const Sums own = to_keep(s);
  Place at = place(own, block, i);
  const bool in_parts = d_.shape.world_size > 1;
  if (in_parts) {
    p_.wait(summed_[block], d_.shape.world_size * sums_of_owner(s));
  } else {
    p_.wait(computed_[block], products_of_block());
  }
  auto each_peer = [&](const auto& visit) {
    p_.loop(1, d_.shape.world_size,
            [&](const Index& peer) { visit((p_.rank() + peer) % d_.shape.world_size); });
  };
  rounds(own, at, [&](const Index& row) {
    Index to = d_.all_reduce ? p_.let("out_row", p_.rank() * share_ + row) : row;
    auto tile = [&](const TensorRef& x) { return x.tile({to, at.col}, s.rows, cfg_.reduce_cols); };
    auto kept = [&](const Slice& x) {
      return d_.all_reduce ? x.until_row(min((p_.rank() + 1) * share_, m_)) : x;
    };
    std::vector<Slice> parts;  // of all ranks, in their order
    for (int r = 0; in_parts && r < d_.shape.world_size; ++r) {
      parts.push_back(part(own, r, row, at.col).until_row(share_));
    }
    if (d_.residual) parts.push_back(kept(tile(residual_)));
    Value sum = in_parts ? p_.zeros(DType::kF32, own.rows, cfg_.reduce_cols)
                         : own_sum(own, p_.rank(), row, at.col);
    sum = add_two_by_two(sum, parts);
    Value out = cast(sum, d_.out_dtype);
    p_.store(kept(tile(out_)), out);
    if (!sends_sums()) return;
    each_peer([&](const Index& peer) {
      p_.store(kept(out_.on(peer).tile({to, at.col}, s.rows, cfg_.reduce_cols)), out);
    });
  });
  if (sends_sums()) each_peer([&](const Index& peer) { p_.notify(stored_, peer); });
}

Value GroupedRs::add_two_by_two(Value sum, const std::vector<Slice>& parts) {
  for (std::size_t i = 0; i < parts.size(); i += 2) {
    std::vector<Value> loaded = {p_.load(parts[i])};
    if (i + 1 < parts.size()) loaded.push_back(p_.load(parts[i + 1]));
    for (const Value& x : loaded) sum = sum + cast(x, DType::kF32);
  }
  return sum;
}

Value GroupedRs::own_sum(const Sums& s, const Index& owner, const Index& row, const Index& col) {
  std::int64_t count = s.rows;
  Index token = p_.let("token", owner * share_ + row);
  Index end = p_.let("end", min((owner + 1) * share_, m_));
  Value exists = p_.iota_rows(token, count) < p_.splat(DType::kI32, end);
  std::vector<Value> slots, parts, weights;
  const TensorRef& of_tokens = sorted_.multiply ? sorted_.weights : tables_.weights;
  for (std::int64_t j = 0; j < d_.shape.top_k; ++j) {
    slots.push_back(load_slots(token, exists, j));
    weights.push_back(p_.load(of_tokens.tile({token, j}, count, 1).until_row(end)));
  }
  for (const Value& slot : slots) {
    parts.push_back(p_.load_rows(products_.tile({0, col}, count, cfg_.reduce_cols), slot));
  }
  Value sum = p_.zeros(DType::kF32, count, cfg_.reduce_cols);
  for (std::size_t j = 0; j < parts.size(); ++j) {
    sum = sum + cast(parts[j], DType::kF32) * weights[j];
  }
  return sum;
}

// Of the j-th expert of the tokens from `first` on, -1 of those that do not exist.
Value GroupedRs::load_slots(const Index& first, const Value& exist, std::int64_t j) {
  const std::int64_t count = exist.rows();
  if (sorted_.multiply) {
    Value slot = p_.load(sorted_.slots.tile({first, j}, count, 1));
    slot = where(exist, slot, p_.splat(DType::kI32, -1));
    return sorted_.own ? sorted_.own(slot) : slot;
  }
  Value pair =
      p_.iota_rows(first, count) * p_.splat(DType::kI32, d_.shape.top_k) + p_.splat(DType::kI32, j);
  Value none = p_.splat(DType::kI32, -1);
  Value slot = p_.load_rows(tables_.slots.tile({0, 0}, count, 1), where(exist, pair, none));
  return where(exist, slot, none);
}

ExpertTiles tiles_of(const GroupedRsDesc& d, const GroupedRsConfig& c) {
  return {.shape = d.shape, .tile_rows = c.loop.tile.bm};
}

NamedFields fields_of(GroupedRsDesc& d) {
  NamedFields all = joined(
      {NamedField("all_reduce", d.all_reduce).as_either("grouped_gemm_ar", "grouped_gemm_rs")},
      fields_of(d.shape));
  return joined(std::move(all),
                {{"n", d.n},
                 {"k", d.k},
                 NamedField("a_dtype", d.a_dtype).as("a={}"),
                 NamedField("b_dtype", d.b_dtype).as("b={}"),
                 NamedField("result_dtype", d.out_dtype).as("out={}"),
                 {"residual", d.residual},
                 NamedField("bias_ranks", d.bias_ranks, 0).as("bias by one of {}")});
}

NamedFields fields_of(GroupedRsConfig& c) {
  return with_rest({tile_field(c.loop.tile),
                    {"side_by_side", c.num_products, 1},
                    {"compute", c.loop.num_compute_sms},
                    {"stages", c.loop.num_stages},
                    {"raster", c.loop.raster},
                    {"block_tiles", c.block_tiles},
                    {"reduce", c.num_reduce_sms},
                    {"reduce_stages", c.num_reduce_stages, 0},
                    {"sums", {&c.reduce_rounds, &c.reduce_rows, &c.reduce_cols}},
                    {"last_blocks", c.last_blocks, 0},
                    {"last_sums", {&c.last_rounds, &c.last_rows}, 1}},
                   c.loop);
}

Program grouped_gemm_rs(const GroupedRsDesc& d, const GroupedRsConfig& cfg) {
  check(d, cfg);
  if (GroupedRsConfig will_run = cfg;
      ceil_div(d.n, cfg.loop.tile.bn * cfg.block_tiles) == cfg.last_blocks) {
    FieldFit::refusing(to_string(d))
        .only("num_reduce_sms", will_run.num_reduce_sms, 0, "all blocks are last_blocks");
  }
  ProgramBuilder p(d.all_reduce ? "grouped_gemm_ar" : "grouped_gemm_rs", d.shape.world_size);
  ExpertTiles tiles = tiles_of(d, cfg);
  GroupedRs op(p, d, cfg, p.extent("m", d.shape.m), declare_tile_tables(p, tiles));
  op.multiply_rows({.a = p.input("a", d.a_dtype, {tiles.num_rows(), d.k}), .made = {}});
  op.add_roles();
  return p.finish();
}

}  // namespace stretto
