#include "stretto/ops/gemm_rs/partial_sums.h"

namespace stretto {

PartialSums::PartialSums(ProgramBuilder& p, const GemmRsDesc& d, const GemmRsConfig& cfg)
    : p_(p),
      d_(d),
      cfg_(cfg),
      m_(p.extent("m", d.m)),
      runs_(m_, {.m_bound = d.m,
                 .world_size = d.world_size,
                 .block_rows = cfg.tile.bm,
                 .channels = cfg.channels_per_rank}) {
  a_ = p.input("a", d.a_dtype, {m_, d.k});                                 // [m, k]
  linear_.emplace(p, LinearDesc{.n = d.n, .k = d.k, .dtype = d.b_dtype});  // b [n, k]
  slots_ = p.buffer("slots", d.out_dtype, {d.world_size, runs_.run_rows(), d.n},
                    {.space = Space::kSymmetric, .num_slots = cfg.num_slots});  // [P, m/P, n]
  // By sender and channel of the rows: tiles (epilogue) or transfers (copy engine) that arrived.
  arrived_ = p.signal("arrived", d.world_size * runs_.num_channels());
  if (cfg.num_slots == 1) ready_ = p.signal("ready");
}

void PartialSums::announce() const {
  if (cfg_.num_slots == 1) p_.notify_all(ready_);
}

void PartialSums::multiply_and_send() {
  cfg_.scatter == Scatter::kEpilogue ? store_at_owner() : store_here_and_copy();
}

std::int64_t PartialSums::tiles_per_block() const { return ceil_div(d_.n, cfg_.tile.bn); }

PartialSums::Block PartialSums::block_of(const Tile& t) const {
  Block b;
  b.owner = p_.let("owner", (p_.rank() + 1 + t.m / runs_.num_blocks()) % d_.world_size);
  b.idx = p_.let("block", t.m % runs_.num_blocks());
  b.local_row = p_.let("local_row", b.idx * cfg_.tile.bm);
  b.local_end = p_.let("local_end", runs_.num_rows(b.owner));
  b.row_end = p_.let("row_end", runs_.first_row(b.owner) + b.local_end);
  return b;
}

Value PartialSums::product(const Block& b, const Index& col) const {
  Index row = runs_.first_row(b.owner) + b.local_row;
  Value acc = linear_->product(cfg_.tile, col, [&](const Index& k) {
    return a_.tile({row, k}, cfg_.tile.bm, cfg_.tile.bk).until_row(b.row_end);
  });
  return cast(acc, d_.out_dtype);
}

void PartialSums::wait_for_slot(const Index& owner) const {
  if (cfg_.num_slots == 1) p_.wait(ready_, owner);
}

void PartialSums::store_at_owner() {
  const GemmTile& tile = cfg_.tile;
  p_.role("gemm", Resource::sms(cfg_.num_compute_sms).pipelined(cfg_.num_stages),
          p_.grid(d_.world_size * runs_.num_blocks(), d_.n, 1, tile.bn).raster(cfg_.raster),
          [&](const Tile& t) {
            Block b = block_of(t);
            p_.when(b.local_row < b.local_end, [&] {
              Value partial = product(b, t.col);
              wait_for_slot(b.owner);
              p_.store(slots_.tile({p_.rank(), b.local_row, t.col}, tile.bm, tile.bn)
                           .on(b.owner)
                           .until_row(b.local_end),
                       partial);
            });
            p_.notify(arrived_[p_.rank() * runs_.num_channels() + runs_.channel_of(b.idx)],
                      b.owner);
          });
}

void PartialSums::store_here_and_copy() {
  const GemmTile& tile = cfg_.tile;
  std::int64_t channels = runs_.num_channels(), rows = runs_.rows_per_channel();
  auto partial = p_.buffer("partial", d_.out_dtype, {m_, d_.n});    // [m, n]
  auto computed = p_.signal("computed", d_.world_size * channels);  // by owner and channel

  p_.role("gemm", Resource::sms(cfg_.num_compute_sms).pipelined(cfg_.num_stages),
          p_.grid(d_.world_size * runs_.num_blocks(), d_.n, 1, tile.bn).raster(cfg_.raster),
          [&](const Tile& t) {
            Block b = block_of(t);
            p_.when(b.local_row < b.local_end, [&] {
              p_.store(
                  partial.tile({runs_.first_row(b.owner) + b.local_row, t.col}, tile.bm, tile.bn)
                      .until_row(b.row_end),
                  product(b, t.col));
            });
            p_.notify(computed[b.owner * channels + runs_.channel_of(b.idx)], p_.rank());
          });

  p_.role("scatter", Resource::copy_engine(cfg_.num_copy_queues),
          p_.grid(d_.world_size, channels, 1, 1), [&](const Tile& t) {
            Index owner = p_.let("owner", (p_.rank() + 1 + t.m) % d_.world_size);
            Index first = runs_.first_row(owner), num_rows = runs_.num_rows(owner);
            p_.wait(computed[owner * channels + t.n], runs_.blocks_in(t.n) * tiles_per_block());
            wait_for_slot(owner);
            p_.put_signal(
                slots_.tile({p_.rank(), t.n * rows, 0}, rows, d_.n).on(owner).until_row(num_rows),
                partial.tile({first + t.n * rows, 0}, rows, d_.n).until_row(first + num_rows),
                arrived_[p_.rank() * channels + t.n], owner);
          });
}

TileSpace PartialSums::own_tiles() const {
  return p_.grid(runs_.num_blocks() * cfg_.tile.bm, d_.n, cfg_.tile.bm, cfg_.tile.bn);
}

Value PartialSums::sum(const Tile& t) const {
  const GemmTile& tile = cfg_.tile;
  Index channel = p_.let("channel", runs_.channel_of(t.m));
  Index count = cfg_.scatter == Scatter::kEpilogue
                    ? p_.let("count", runs_.blocks_in(channel) * tiles_per_block())
                    : Index(1);
  Value sum = p_.zeros(DType::kF32, tile.bm, tile.bn);
  p_.loop(d_.world_size, [&](const Index& source) {
    p_.wait(arrived_[source * runs_.num_channels() + channel], count);
    Slice partial = slots_.tile({source, t.row, t.col}, tile.bm, tile.bn).until_row(own_rows());
    sum = sum + cast(p_.load(partial), DType::kF32);
  });
  return sum;
}

}  // namespace stretto
