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
                 .block_rows = cfg.loop.tile.bm,
                 .channels = cfg.channels_per_rank,
                 .whole_blocks = whole_blocks}) {
  a_ = p.input("a", d.a_dtype, {m_, d.k});  // [m, k]
  linear_.emplace(
      p, LinearDesc{.n = d.n, .k = d.k, .dtype = d.b_dtype, .scaling = d.scaling, .b_kn = d.b_kn});
  scale_a_ = scale_input(p, d.scaling, m_, d.k);  // [m, 1] or [m, k/128]
  // Whole blocks of rows, so that tiles are stored as a whole: [P, rows, n].
  Index rows = runs_.num_blocks() * cfg.loop.tile.bm;
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

void PartialSums::run(const Finish& finish, const Done& done) {
  multiply(finish, done);
  if (by_copy_engine()) send_by_copy_engine();
  if (!sums_in_epilogue()) reduce(finish, done);
}

PartialSums::Block PartialSums::block_of(const Tile& t) const {
  Block b;
  b.owner = p_.let("owner", (p_.rank() + 1 + t.m / runs_.num_blocks()) % d_.world_size);
  b.idx = p_.let("block", t.m % runs_.num_blocks());
  b.local_row = p_.let("local_row", b.idx * cfg_.loop.tile.bm);
  b.local_end = p_.let("local_end", runs_.num_rows(b.owner));
  // A tile that reaches past its owner's rows has the next rank's in it, which nobody sees: slots
  // are read up to the end of what their owner has, and `out` ends there, or at m, where `a` does.
  // An end would have such rows made zero in every slot that TMA has filled, with a barrier a step.
  // Where nothing is loaded ahead it costs nothing, and a CPU rank multiplies fewer rows.
  if (cfg_.loop.num_stages == 0) {
    b.row_end = p_.let("row_end", runs_.first_row(b.owner) + b.local_end);
  }
  return b;
}

// Beside a wide product a thread has no registers for a sum that begins with another rank's part;
// with an agent that stores, more loads are under way.
std::int64_t PartialSums::num_parts() const {
  const std::int64_t most_cols = cfg_.loop.store_slots > 0 ? 128 : 192;
  bool splits =
      sums_in_epilogue() && !loads_ahead() && d_.world_size > 2 && cfg_.loop.tile.bn > most_cols;
  return splits && cfg_.loop.tile.bn % 16 == 0 ? 2 : 1;
}

std::int64_t PartialSums::cols_of_sum() const {
  auto cols = std::int64_t{128} / static_cast<std::int64_t>(size_bytes(d_.out_dtype));
  return loads_ahead() && cols_of_part() % cols == 0 ? cols : cols_of_part();
}

std::vector<Value> PartialSums::products(const Block& b, const Index& col) const {
  Index row = runs_.first_row(b.owner) + b.local_row;
  TileRows rows = tile_rows(a_, scale_a_, cfg_.loop.tile, {.row = row, .end = b.row_end});
  std::vector<Value> out = linear_->products(cfg_.loop.tile, col, rows, num_parts());
  for (Value& part : out) part = cast(part, d_.out_dtype);
  return out;
}

void PartialSums::wait_for_slot(const Index& owner) const {
  if (cfg_.num_slots == 1) p_.wait(ready_, owner);
}

// Tiles of the other ranks' rows are sent, by the SM itself or by a copy engine; so are the own
// ones, unless their sum is made here.
void PartialSums::multiply(const Finish& finish, const Done& done) {
  const GemmTile& tile = cfg_.loop.tile;
  std::int64_t channels = runs_.num_channels();
  Resource sms = product_sms(cfg_.loop);
  p_.role("gemm", sms,
          p_.grid(d_.world_size * runs_.num_blocks(), d_.n, 1, tile.bn)
              .raster(std::min(cfg_.loop.raster, runs_.num_blocks())),
          [&](const Tile& t) {
            Block b = block_of(t);
            auto col_of = [&](std::size_t part) {
              return t.col + static_cast<std::int64_t>(part) * cols_of_part();
            };
            auto send = [&](const std::vector<Value>& partials) {
              if (!by_copy_engine()) wait_for_slot(b.owner);
              for (std::size_t i = 0; i < partials.size(); ++i) {
                auto columns_of = [&](const TensorRef& x, const Index& of) {
                  return x.tile({of, b.local_row, col_of(i)}, tile.bm, cols_of_part());
                };
                p_.store(by_copy_engine() ? columns_of(partial_, b.owner)
                                          : columns_of(slots_, p_.rank()).on(b.owner),
                         partials[i]);
              }
            };
            auto keep = [&](const std::vector<Value>& partials) {
              OwnTile all{b.local_row, t.col, b.idx, tile.bn};
              // Who loads ahead waits for all before it loads the first.
              if (loads_ahead()) {
                p_.loop(1, d_.world_size, [&](const Index& i) {
                  wait_for(p_.let("source", (p_.rank() + i) % d_.world_size), all);
                });
              }
              std::int64_t cols = cols_of_sum();
              for (std::size_t i = 0; i < partials.size(); ++i) {
                for (std::int64_t col = 0; col < cols_of_part(); col += cols) {
                  OwnTile here{b.local_row, col_of(i) + col, b.idx, cols};
                  Value own =
                      cols == cols_of_part() ? partials[i] : columns(partials[i], col, cols);
                  finish(here, sum_in_rank_order(own, here));
                }
              }
              done(all);
            };
            auto tell = [&] {
              Index channel = runs_.channel_of(b.idx);
              by_copy_engine() ? p_.notify(computed_[b.owner * channels + channel], p_.rank())
                               : p_.notify(arrived_[p_.rank() * channels + channel], b.owner);
            };
            Index any_rows = b.local_row < b.local_end;
            if (!sums_in_epilogue()) {
              p_.when(any_rows, [&] { send(products(b, t.col)); });
              return tell();
            }
            Index own = p_.let("own", b.owner == p_.rank());
            p_.when(own || any_rows, [&] {
              std::vector<Value> partials = products(b, t.col);
              p_.when(
                  own, [&] { keep(partials); }, [&] { send(partials); });
            });
            p_.when(!own, tell);
          });
}

Value PartialSums::sum_in_rank_order(const Value& own, const OwnTile& t) const {
  DType dtype = sum_dtype(d_.out_dtype);
  if (d_.world_size == 2) {  // whose sum is the same both ways round
    Value sum = copy(cast(own, dtype));
    add_arrived(sum, 1 - p_.rank(), t);
    return sum;
  }
  Value sum = p_.zeros(dtype, cfg_.loop.tile.bm, t.cols);
  p_.loop(0, p_.rank(), [&](const Index& source) { add_arrived(sum, source, t); });
  sum = sum + cast(own, dtype);
  p_.loop(p_.rank() + 1, d_.world_size, [&](const Index& source) { add_arrived(sum, source, t); });
  return sum;
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

void PartialSums::reduce(const Finish& finish, const Done& done) {
  const GemmTile& tile = cfg_.loop.tile;
  p_.role("reduce", Resource::sms(cfg_.num_reduce_sms),
          p_.grid(runs_.num_blocks() * tile.bm, d_.n, tile.bm, tile.bn), [&](const Tile& t) {
            Value sum = p_.zeros(sum_dtype(d_.out_dtype), tile.bm, tile.bn);
            OwnTile here{t.row, t.col, t.m, tile.bn};
            p_.loop(d_.world_size, [&](const Index& source) { add_arrived(sum, source, here); });
            finish(here, sum);
            done(here);
          });
}

// Until the channel of the tile's block has come from `source`.
void PartialSums::wait_for(const Index& source, const OwnTile& t) const {
  Index channel = runs_.channel_of(t.block);
  Index count = by_copy_engine() ? Index(1) : tiles_in(channel);
  p_.wait(arrived_[source * runs_.num_channels() + channel], count);
}

// sum += what `source` sent for the tile, once it is there.
void PartialSums::add_arrived(Value& sum, const Index& source, const OwnTile& t) const {
  if (!loads_ahead()) wait_for(source, t);
  Slice partial = slots_.tile({source, t.row, t.col}, cfg_.loop.tile.bm, t.cols);
  sum = sum + cast(p_.load(partial.until_row(own_rows())), sum.dtype());
}

}  // namespace stretto
