#include "stretto/ops/gemm_rs/partial_sums.h"

#include <algorithm>

namespace stretto {

PartialSums::PartialSums(ProgramBuilder& p, const GemmRsDesc& d, const GemmRsConfig& cfg,
                         bool whole_blocks)
    : p_(p),
      d_(d),
      cfg_(cfg),
      m_(p.extent("m", d.m)),
      runs_(m_, {.m_bound = d.m,
                 .world_size = d.world_size,
                 .block_rows = cfg.tile.bm,
                 .channels = cfg.channels_per_rank,
                 .whole_blocks = whole_blocks}) {
  a_ = p.input("a", d.a_dtype, {m_, d.k});  // [m, k]
  linear_.emplace(
      p, LinearDesc{.n = d.n, .k = d.k, .dtype = d.b_dtype, .scaling = d.scaling, .b_kn = d.b_kn});
  scale_a_ = scale_input(p, d.scaling, m_, d.k);  // [m, 1] or [m, k/128]
  // Whole blocks of rows, so that tiles are stored as a whole: [P, rows, n].
  Index rows = runs_.num_blocks() * cfg.tile.bm;
  slots_ = p.buffer("slots", d.out_dtype, {d.world_size, rows, d.n},
                    {.space = Space::kSymmetric, .num_slots = cfg.num_slots});
  // By sender and channel of the rows: tiles (epilogue) or transfers (copy engine) that arrived.
  arrived_ = p.signal("arrived", d.world_size * runs_.num_channels());
  if (cfg.num_slots == 1) ready_ = p.signal("ready");
  if (!by_copy_engine()) return;
  partial_ = p.buffer("partial", d.out_dtype, {d.world_size, rows, d.n});
  computed_ = p.signal("computed", d.world_size * runs_.num_channels());
}

void PartialSums::announce() const {
  if (cfg_.num_slots == 1) p_.notify_all(ready_);
}

void PartialSums::run(const Finish& finish) {
  multiply(finish);
  if (by_copy_engine()) send_by_copy_engine();
  if (!sums_in_epilogue()) reduce(finish);
}

// Row tiles that share a column must be of one owner: own tiles that came before others' would wait
// for ranks that wait in the same way.
std::int64_t PartialSums::raster() const {
  std::int64_t rows = std::min(cfg_.raster, runs_.num_blocks());
  while (runs_.num_blocks() % rows != 0) --rows;
  return rows;
}

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
  Value acc = linear_->product(cfg_.tile, col,
                               tile_rows(a_, scale_a_, cfg_.tile, {.row = row, .end = b.row_end}));
  return cast(acc, d_.out_dtype);
}

void PartialSums::wait_for_slot(const Index& owner) const {
  if (cfg_.num_slots == 1) p_.wait(ready_, owner);
}

// Tiles of the other ranks' rows are sent, by the SM itself or by a copy engine; so are the own
// ones, unless their sum is made here.
void PartialSums::multiply(const Finish& finish) {
  const GemmTile& tile = cfg_.tile;
  std::int64_t channels = runs_.num_channels();
  Resource sms = Resource::sms(cfg_.num_compute_sms)
                     .pipelined(cfg_.num_stages)
                     .staggered(cfg_.stagger)
                     .draining(cfg_.store_slots);
  p_.role("gemm", sms,
          p_.grid(d_.world_size * runs_.num_blocks(), d_.n, 1, tile.bn).raster(raster()),
          [&](const Tile& t) {
            Block b = block_of(t);
            auto send = [&](const Value& partial) {
              if (by_copy_engine()) {
                return p_.store(partial_.tile({b.owner, b.local_row, t.col}, tile.bm, tile.bn),
                                partial);
              }
              wait_for_slot(b.owner);
              Slice slot = slots_.tile({p_.rank(), b.local_row, t.col}, tile.bm, tile.bn);
              p_.store(slot.on(b.owner), partial);
            };
            auto tell = [&] {
              Index channel = runs_.channel_of(b.idx);
              by_copy_engine() ? p_.notify(computed_[b.owner * channels + channel], p_.rank())
                               : p_.notify(arrived_[p_.rank() * channels + channel], b.owner);
            };
            Index any_rows = b.local_row < b.local_end;
            if (!sums_in_epilogue()) {
              p_.when(any_rows, [&] { send(product(b, t.col)); });
              return tell();
            }
            Index own = p_.let("own", b.owner == p_.rank());
            p_.when(own || any_rows, [&] {
              Value partial = product(b, t.col);
              p_.when(
                  own,
                  [&] {
                    OwnTile here{b.local_row, t.col, b.idx};
                    Value sum = copy(cast(partial, sum_dtype(d_.out_dtype)));
                    p_.loop(1, d_.world_size, [&](const Index& i) {
                      add_arrived(sum, (p_.rank() + i) % d_.world_size, here);
                    });
                    finish(here, sum);
                  },
                  [&] { send(partial); });
            });
            p_.when(!own, tell);
          });
}

void PartialSums::send_by_copy_engine() {
  std::int64_t channels = runs_.num_channels(), rows = runs_.rows_per_channel();
  // Own rows come last, and stay here if their sum is made in registers.
  std::int64_t owners = d_.world_size - (sums_in_epilogue() ? 1 : 0);
  p_.role("scatter", Resource::copy_engine(cfg_.num_copy_queues), p_.grid(owners, channels, 1, 1),
          [&](const Tile& t) {
            Index owner = p_.let("owner", (p_.rank() + 1 + t.m) % d_.world_size);
            Index num_rows = runs_.num_rows(owner);
            p_.wait(computed_[owner * channels + t.n], tiles_in(t.n));
            wait_for_slot(owner);
            p_.put_signal(
                slots_.tile({p_.rank(), t.n * rows, 0}, rows, d_.n).on(owner).until_row(num_rows),
                partial_.tile({owner, t.n * rows, 0}, rows, d_.n).until_row(num_rows),
                arrived_[p_.rank() * channels + t.n], owner);
          });
}

void PartialSums::reduce(const Finish& finish) {
  const GemmTile& tile = cfg_.tile;
  p_.role("reduce", Resource::sms(cfg_.num_reduce_sms),
          p_.grid(runs_.num_blocks() * tile.bm, d_.n, tile.bm, tile.bn), [&](const Tile& t) {
            Value sum = p_.zeros(sum_dtype(d_.out_dtype), tile.bm, tile.bn);
            OwnTile here{t.row, t.col, t.m};
            p_.loop(d_.world_size, [&](const Index& source) { add_arrived(sum, source, here); });
            finish(here, sum);
          });
}

// sum += what `source` sent for the tile, once the channel of its block is complete.
void PartialSums::add_arrived(Value& sum, const Index& source, const OwnTile& t) const {
  Index channel = runs_.channel_of(t.block);
  Index count = by_copy_engine() ? Index(1) : tiles_in(channel);
  p_.wait(arrived_[source * runs_.num_channels() + channel], count);
  Slice partial = slots_.tile({source, t.row, t.col}, cfg_.tile.bm, cfg_.tile.bn);
  sum = sum + cast(p_.load(partial.until_row(own_rows())), sum.dtype());
}

}  // namespace stretto
