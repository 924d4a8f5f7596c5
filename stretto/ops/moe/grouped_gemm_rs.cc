#include "stretto/ops/moe/grouped_gemm_rs.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

std::int64_t rows_per_rank(const GroupedRsDesc& d) {
  return ceil_div(d.m, std::int64_t{d.world_size});
}

void check(const GroupedRsDesc& d, const GroupedRsConfig& c) {
  check_sizes("grouped_gemm_rs", {{"world_size", d.world_size},
                                  {"m", d.m},
                                  {"top_k", d.top_k},
                                  {"num_experts", d.num_experts},
                                  {"n", d.n},
                                  {"k", d.k},
                                  {"tile.bm", c.tile.bm},
                                  {"tile.bn", c.tile.bn},
                                  {"tile.bk", c.tile.bk},
                                  {"num_compute_sms", c.num_compute_sms},
                                  {"raster", c.raster},
                                  {"block_tiles", c.block_tiles},
                                  {"reduce_rows", c.reduce_rows},
                                  {"reduce_cols", c.reduce_cols},
                                  {"reduce_rounds", c.reduce_rounds}});
  check_sizes("grouped_gemm_rs", {{"num_reduce_sms", c.num_reduce_sms}}, 0);
  check_dtype("grouped_gemm_rs", "a_dtype", d.a_dtype);
  check_dtype("grouped_gemm_rs", "b_dtype", d.b_dtype);
  check_dtype("grouped_gemm_rs", "out_dtype", d.out_dtype);
  if (c.tile.bn * c.block_tiles % c.reduce_cols != 0) {
    throw UserError(fmt::format("grouped_gemm_rs: reduce_cols is {}, must divide a block of {}",
                                c.reduce_cols, c.tile.bn * c.block_tiles));
  }
}

class GroupedRs {
 public:
  GroupedRs(ProgramBuilder& p, const GroupedRsDesc& d, const GroupedRsConfig& cfg)
      : p_(p), d_(d), cfg_(cfg), num_tiles_(tiles_of(d, cfg).num_tiles()), m_(p.extent("m", d.m)) {
    share_ = ceil_div(m_, d.world_size);
    std::int64_t rows = num_tiles_ * cfg.tile.bm;
    used_ = p.table("tiles_used", {1}, {ContractKind::kAscending, 0, num_tiles_ + 1});
    experts_ = p.table("tile_experts", {num_tiles_}, {ContractKind::kRange, 0, d.num_experts});
    slots_ = p.table("slots", {m_, d.top_k}, {ContractKind::kRange, 0, rows});
    weights_ = p.input("weights", DType::kF32, {m_, d.top_k});
    a_ = p.input("a", d.a_dtype, {rows, d.k});
    b_ = p.input("b", d.b_dtype, {d.num_experts, d.n, d.k});
    if (d.residual) residual_ = p.input("residual", d.out_dtype, {share_, d.n});
    out_ = p.output("out", d.out_dtype, {share_, d.n});
    products_ = p.buffer("products", d.out_dtype, {rows, d.n});
    computed_ = p.signal("computed", num_blocks());  // tiles of a block of columns
    if (d.world_size == 1) return;
    parts_ =
        p.buffer("parts", d.out_dtype, {d.world_size, share_, d.n}, {.space = Space::kSymmetric});
    ready_ = p.signal("ready");
    arrived_ = p.signal("arrived", d.world_size * num_blocks());  // by sender and block
  }

  // My parts may be written.
  void announce() {
    p_.loop(d_.world_size - 1,
            [&](const Index& i) { p_.notify(ready_, (p_.rank() + 1 + i) % d_.world_size); });
  }

  TileSpace product_tiles() const {
    return p_.grid(num_blocks() * num_tiles_, block_cols(), 1, cfg_.tile.bn).raster(cfg_.raster);
  }

  void multiply(const Tile& t) {
    multiply(p_.let("tile", t.m % num_tiles_), p_.let("block", t.m / num_tiles_), t.col);
  }

  // By block of columns, within a block by owner, the next rank's tokens first and the own last:
  // whoever waits for others has sent all that they wait for.
  TileSpace sums() const { return p_.grid(num_blocks() * d_.world_size, sums_of_owner(), 1, 1); }
  void reduce(const Tile& t) {
    Index block = p_.let("block", t.m / d_.world_size);
    if (d_.world_size == 1) return keep(block, t.n);
    Index owner = p_.let("owner", (p_.rank() + 1 + t.m) % d_.world_size);
    p_.when(
        owner == p_.rank(), [&] { keep(block, t.n); }, [&] { send(block, owner, t.n); });
  }

  // All of it by the same workers, in phases: the products of a block, the sums of the block before
  // for other ranks, and the own ones of the block before that, for which theirs have come.
  // Products come first, one for every worker, so that those of the block before are done; sums are
  // spread evenly among the others, so that some send while most multiply.
  TileSpace phases() const { return p_.range((num_blocks() + 2) * tiles_of_phase()); }
  void phase(const Tile& t) {
    std::int64_t products = products_of_block(), sent = (d_.world_size - 1) * sums_of_owner();
    std::int64_t alone = std::min<std::int64_t>(products, cfg_.num_compute_sms);
    std::int64_t sums = sent + sums_of_owner(), mixed = tiles_of_phase() - alone;
    Index phase = p_.let("phase", t.index / tiles_of_phase());
    Index i = p_.let("i", t.index % tiles_of_phase());
    Index after = p_.let("after", max(i - alone, 0));  // those alone
    Index s = p_.let("s", after * sums / mixed);       // sums before this tile
    Index is_sum = p_.let("is_sum", i >= alone && s < (after + 1) * sums / mixed);
    p_.when(!is_sum && phase < num_blocks(), [&] {
      Index product = p_.let("product", max(i - s, 0));
      std::int64_t group = cfg_.raster * cfg_.block_tiles;  // row tiles that share a column
      Index first = p_.let("first_tile", product / group * cfg_.raster);
      Index rows = p_.let("rows", max(min(num_tiles_ - first, Index(cfg_.raster)), 1));
      Index in_group = product % group;
      multiply(p_.let("tile", first + in_group % rows), phase, in_group / rows * cfg_.tile.bn);
    });
    if (d_.world_size > 1) {
      p_.when(is_sum && s < sent && phase >= 1 && phase <= num_blocks(), [&] {
        Index owner = p_.let("owner", (p_.rank() + 1 + s / sums_of_owner()) % d_.world_size);
        send(p_.let("block", max(phase - 1, 0)), owner, s % sums_of_owner());
      });
    }
    p_.when(is_sum && s >= sent && phase >= 2,
            [&] { keep(p_.let("block", max(phase - 2, 0)), p_.let("k", max(s - sent, 0))); });
  }

 private:
  struct Place {
    Index first, col;  // token of the owner, column
  };

  std::int64_t block_cols() const { return cfg_.tile.bn * cfg_.block_tiles; }
  std::int64_t num_blocks() const { return ceil_div(d_.n, block_cols()); }
  std::int64_t row_groups() const {
    return ceil_div(rows_per_rank(d_), cfg_.reduce_rows * cfg_.reduce_rounds);
  }
  std::int64_t products_of_block() const { return num_tiles_ * cfg_.block_tiles; }
  std::int64_t sums_of_owner() const { return row_groups() * (block_cols() / cfg_.reduce_cols); }
  std::int64_t tiles_of_phase() const {
    return products_of_block() + d_.world_size * sums_of_owner();
  }

  void multiply(const Index& tile, const Index& block, const Index& col_in_block) {
    const auto& [bm, bn, bk] = cfg_.tile;
    Index col = p_.let("col", block * block_cols() + col_in_block);
    Index used = p_.read(used_, {0}), expert = p_.read(experts_, {tile});
    Value sum = p_.zeros(DType::kF32, bm, bn);
    p_.when(tile < used, [&] {
      p_.loop(ceil_div(d_.k, bk), [&](const Index& step) {
        Value x = p_.load(a_.tile({tile * bm, step * bk}, bm, bk));
        sum = dot(sum, x, p_.load(b_.tile({expert, col, step * bk}, bn, bk)).T());
      });
    });
    p_.store(products_.tile({tile * bm, col}, bm, bn), cast(sum, d_.out_dtype));
    p_.notify(computed_[block], p_.rank());
  }

  // The i-th group of tokens and columns of a block.
  Place place(const Index& block, const Index& i) {
    std::int64_t per_group = block_cols() / cfg_.reduce_cols;
    return {.first = p_.let("first", i / per_group * (cfg_.reduce_rows * cfg_.reduce_rounds)),
            .col = p_.let("sum_col", block * block_cols() + i % per_group * cfg_.reduce_cols)};
  }

  template <typename Round>
  void rounds(const Place& at, const Round& round) {
    if (cfg_.reduce_rounds == 1) return round(at.first);
    p_.loop(cfg_.reduce_rounds,
            [&](const Index& i) { round(p_.let("row", at.first + i * cfg_.reduce_rows)); });
  }

  // Sums for another rank's tokens.
  void send(const Index& block, const Index& owner, const Index& i) {
    Place at = place(block, i);
    p_.wait(computed_[block], products_of_block());
    p_.wait(ready_, owner);
    rounds(at, [&](const Index& row) {
      p_.store(part(p_.rank(), row, at.col).on(owner).until_row(share_),
               cast(own_sum(owner, row, at.col), d_.out_dtype));
    });
    p_.notify(arrived_[p_.rank() * num_blocks() + block], owner);
  }

  // The own tokens: all ranks' sums.
  void keep(const Index& block, const Index& i) {
    Place at = place(block, i);
    p_.wait(computed_[block], products_of_block());
    if (d_.world_size > 1) wait_for_others(block);
    rounds(at, [&](const Index& row) {
      auto tile = [&](const TensorRef& x) {
        return x.tile({row, at.col}, cfg_.reduce_rows, cfg_.reduce_cols);
      };
      std::vector<Value> others;  // under way before the own rows are known
      for (int r = 1; r < d_.world_size; ++r) {
        Index source = (p_.rank() + r) % d_.world_size;
        others.push_back(p_.load(part(source, row, at.col).until_row(share_)));
      }
      if (d_.residual) others.push_back(p_.load(tile(residual_)));
      Value sum = own_sum(p_.rank(), row, at.col);
      for (const Value& other : others) sum = sum + cast(other, DType::kF32);
      p_.store(tile(out_), cast(sum, d_.out_dtype));
    });
  }

  void wait_for_others(const Index& block) {
    p_.loop(1, d_.world_size, [&](const Index& i) {
      Index source = (p_.rank() + i) % d_.world_size;
      p_.wait(arrived_[source * num_blocks() + block], sums_of_owner());
    });
  }

  Slice part(const Index& source, const Index& row, const Index& col) const {
    return parts_.tile({source, row, col}, cfg_.reduce_rows, cfg_.reduce_cols);
  }

  // Of this rank's products, for tokens of the owner from `row` on; zero of tokens that do not
  // exist. All rows are under way before the first addition.
  Value own_sum(const Index& owner, const Index& row, const Index& col) {
    std::int64_t count = cfg_.reduce_rows;
    Index token = p_.let("token", owner * share_ + row);
    Index end = p_.let("end", min((owner + 1) * share_, m_));
    Value exists = p_.iota_rows(token, count) < p_.splat(DType::kI32, end);
    std::vector<Value> slots, parts, weights;
    for (std::int64_t j = 0; j < d_.top_k; ++j) {
      Value slot = p_.load(slots_.tile({token, j}, count, 1).until_row(end));
      slots.push_back(where(exists, slot, p_.splat(DType::kI32, -1)));
      weights.push_back(p_.load(weights_.tile({token, j}, count, 1).until_row(end)));
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

  ProgramBuilder& p_;
  const GroupedRsDesc& d_;
  const GroupedRsConfig& cfg_;
  std::int64_t num_tiles_;
  Index m_, share_;  // tokens of all ranks, of each
  TensorRef used_, experts_, slots_, weights_, a_, b_, residual_, out_, products_, parts_;
  SignalRef computed_, ready_, arrived_;
};

}  // namespace

ExpertTiles tiles_of(const GroupedRsDesc& d, const GroupedRsConfig& c) {
  return {.world_size = d.world_size,
          .m = d.m,
          .top_k = d.top_k,
          .num_experts = d.num_experts,
          .tile_rows = c.tile.bm};
}

std::string to_string(const GroupedRsDesc& d) {
  return fmt::format("grouped_gemm_rs P={} m={} top {} of {} experts n={} k={} a={} b={} out={}{}",
                     d.world_size, d.m, d.top_k, d.num_experts, d.n, d.k, short_name(d.a_dtype),
                     short_name(d.b_dtype), short_name(d.out_dtype), d.residual ? " residual" : "");
}

std::string to_string(const GroupedRsConfig& c) {
  return fmt::format("tile={}x{}x{} compute={} stages={} raster={} block={} reduce={} of {}x{}x{}",
                     c.tile.bm, c.tile.bn, c.tile.bk, c.num_compute_sms, c.num_stages, c.raster,
                     c.tile.bn * c.block_tiles, c.num_reduce_sms, c.reduce_rounds, c.reduce_rows,
                     c.reduce_cols);
}

GroupedRsConfig default_config(const GroupedRsDesc& d, Target target) {
  std::int64_t share = rows_per_rank(d);
  std::int64_t mean_rows = ceil_div(d.m * d.top_k, d.num_experts);  // of an expert
  if (target == Target::kCpu) {
    GemmTile tile = default_tile(d.m, d.n, d.k);
    tile.bm = std::clamp<std::int64_t>(ceil_div(mean_rows, std::int64_t{16}) * 16, 16, 128);
    tile.bm = std::min(tile.bm, d.m * d.top_k);
    return {.tile = tile, .reduce_rows = std::min<std::int64_t>(16, share), .reduce_cols = tile.bn};
  }
  GpuLoop loop = gpu_loop({.m = std::max(kFewRows + 1, d.m * d.top_k),
                           .n = d.n,
                           .k = d.k,
                           .a_dtype = d.a_dtype,
                           .b_dtype = d.b_dtype});
  if (mean_rows <= 64) loop.tile.bm = 64;
  GroupedRsConfig c{.tile = loop.tile, .num_stages = loop.num_stages, .raster = 4};
  std::int64_t col_tiles = ceil_div(d.n, c.tile.bn);
  c.block_tiles = ceil_div(col_tiles, std::int64_t{4});
  constexpr std::int64_t kElements = 16384;  // of products under way at a time, 64 a thread
  c.reduce_cols = c.tile.bn;
  c.reduce_rows = std::clamp<std::int64_t>(kElements / (c.reduce_cols * d.top_k), 1, share);
  c.reduce_rounds = std::clamp<std::int64_t>(share / c.reduce_rows, 1, 4);
  std::int64_t tiles = tiles_of(d, c).num_tiles() * col_tiles;
  c.num_reduce_sms = 0;
  c.num_compute_sms = gpu_workers(tiles);
  return c;
}

Program grouped_gemm_rs(const GroupedRsDesc& d, const GroupedRsConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("grouped_gemm_rs", d.world_size);
  GroupedRs op(p, d, cfg);
  if (d.world_size > 1) p.on_start([&] { op.announce(); });
  Resource sms = Resource::sms(cfg.num_compute_sms).pipelined(cfg.num_stages);
  if (cfg.num_reduce_sms == 0) {
    p.role("gemm", sms, op.phases(), [&](const Tile& t) { op.phase(t); });
    return p.finish();
  }
  p.role("gemm", sms, op.product_tiles(), [&](const Tile& t) { op.multiply(t); });
  p.role("reduce", Resource::sms(cfg.num_reduce_sms), op.sums(),
         [&](const Tile& t) { op.reduce(t); });
  return p.finish();
}

}  // namespace stretto
