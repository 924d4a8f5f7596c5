#include "stretto/ops/moe/ep_return.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

void fit(const FieldFit& fields, const EpDesc& d, ReturnConfig& c) {
  if (d.shape.world_size == 1) return;
  if (c.num_sum_workers == 0) {
    fields.only("channels", c.channels, 1, "who sends and sums waits tile by tile");
    fields.only("sum_tokens", c.sum_tokens, 0, "who sends and sums takes the same tiles");
    return;
  }
  std::int64_t tiles = ceil_div(d.shape.rows_per_rank(), c.tile_tokens);
  fields.only("channels", c.channels, possible_channels(tiles, c.channels),
              fmt::format("{} tiles of {} tokens, as many to a channel", tiles, c.tile_tokens));
  if (c.sum_tokens > 0 && c.tile_tokens % c.sum_tokens == 0) return;
  fields.only("sum_tokens", c.sum_tokens, 0, fmt::format("a part of {} tokens", c.tile_tokens));
}

void check(const EpDesc& d, const ReturnConfig& c) {
  check_sizes("ep_return", {{"m", d.shape.m},
                            {"hidden", d.hidden},
                            {"num_experts", d.shape.num_experts},
                            {"top_k", d.shape.top_k},
                            {"world_size", d.shape.world_size},
                            {"num_workers", c.num_workers},
                            {"tile_tokens", c.tile_tokens},
                            {"channels", c.channels},
                            {"num_slots", c.num_slots}});
  check_sizes("ep_return", {{"num_sum_workers", c.num_sum_workers}, {"sum_tokens", c.sum_tokens}},
              0);
  check_dtype("ep_return", "dtype", d.dtype);
  check_split("ep_return", split_of(d));
  ReturnConfig will_run = c;
  fit(FieldFit::refusing("ep_return " + to_string(d)), d, will_run);
}

}  // namespace

ReturnConfig fitted(const EpDesc& d, ReturnConfig c) {
  fit(FieldFit::reducing(), d, c);
  return c;
}

namespace {

class Return {
 public:
  Return(ProgramBuilder& p, const EpDesc& d, const ReturnConfig& cfg)
      : p_(p), d_(d), cfg_(cfg), ranks_(d.shape.world_size) {
    const std::int64_t rows = d.shape.rows_per_rank(), slots = d.received_rows() * d.shape.top_k;
    Index own_rows = ceil_div(p.extent("m", d.shape.m), ranks_);
    y_ = p.input("y", d.dtype, {slots, d.hidden});
    slots_ = p.table("slots", {ranks_ * rows, d.shape.top_k}, {ContractKind::kRange, -1, slots});
    weights_ = p.input("recv_weights", DType::kF32, {ranks_ * rows, d.shape.top_k});
    positions_ = p.table("positions", {rows, ranks_}, {ContractKind::kRange, -1, rows});
    residual_ = p.input("residual", d.dtype, {own_rows, d.hidden});
    const std::vector<Index> parts = {ranks_, rows, d.hidden};
    parts_ = in_turn() ? p.buffer("parts", d.dtype, parts,
                                  {.space = Space::kSymmetric, .num_slots = cfg.num_slots})
                       : p.state("parts", d.dtype, parts, Space::kSymmetric);
    out_ = p.output("out", d.dtype, {own_rows, d.hidden});
    if (ranks_ == 1) return;
    if (!in_turn()) ready_ = p.signal("ready");
    returned_ = p.signal("returned", ranks_ * channels());
  }

  std::int64_t sum_tokens() const {
    return cfg_.sum_tokens > 0 ? cfg_.sum_tokens : cfg_.tile_tokens;
  }
  std::int64_t tiles() const { return ceil_div(d_.shape.rows_per_rank(), cfg_.tile_tokens); }
  std::int64_t sum_tiles() const { return ceil_div(d_.shape.rows_per_rank(), sum_tokens()); }
  std::int64_t tiles_of_others() const { return (ranks_ - 1) * tiles(); }

  // Two slots bound the run-ahead: a rank that writes slot e % 2 again, in launch e + 2, has heard
  // in launch e + 1 of every rank, each of which had then done with launch e.
  bool in_turn() const { return cfg_.num_slots > 1; }

  // My parts may be written.
  void announce() {
    p_.loop(ranks_ - 1, [&](const Index& i) { p_.notify(ready_, (p_.rank() + 1 + i) % ranks_); });
  }

  // A tile of another rank's tokens: to where they are, and then the rank is told.
  void send(const Index& of, const Index& tile) {
    if (!in_turn() && !one_token()) p_.wait(ready_, of);
    each_token(tile, cfg_.tile_tokens, [&](const Index& token) {
      Rows rows = pick(of, token);
      Value sum = add_up(rows);
      if (!in_turn() && one_token()) p_.wait(ready_, of);
      // What is read has been written, whatever the tables say: so sums of nothing are, too.
      p_.when(in_turn() ? Index(1) : rows.any, [&] {
        p_.store(parts_.on(of).tile({p_.rank(), token, 0}, 1, d_.hidden), cast(sum, d_.dtype));
      });
    });
    p_.notify(returned_[p_.rank() * channels() + tile / channel_tiles()], of);
  }
  void send(const Index& index) {
    Index of = p_.let("of", (p_.rank() + 1 + index % (ranks_ - 1)) % ranks_);
    send(of, p_.let("tile", index / (ranks_ - 1)));
  }

  // A tile of `tokens` own tokens: what was sent for them, and the own results.
  void keep(const Index& tile, std::int64_t tokens) {
    wait_for_others(tokens == cfg_.tile_tokens ? tile : tile / (cfg_.tile_tokens / tokens));
    each_token(tile, tokens, [&](const Index& token) {
      std::vector<Value> parts = load_parts(0, token);  // under way while the own are added up
      Value own = add_up(pick(p_.rank(), token));
      store_sum(token, own, std::move(parts),
                [&](Value& sum) { sum = sum + cast(load_residual(token), DType::kF32); });
    });
  }

  // A tile of every rank's tokens, the own last. Of one token, where the own results are is known
  // by the time that the others' have been sent.
  void send_and_keep(const Index& tile) {
    if (!one_token()) {
      send_to_all(tile);
      return keep(tile, cfg_.tile_tokens);
    }
    Value old = load_residual(tile);
    Rows rows = pick(p_.rank(), tile);
    send_to_all(tile);
    Value own = add_up(rows);
    wait_for_others(tile);
    store_sum(tile, own, load_parts(0, tile),
              [&](Value& sum) { sum = sum + cast(old, DType::kF32); });
  }

 private:
  // Parts that are under way at a time.
  static constexpr std::int64_t kSomeRanks = 4;

  bool one_token() const { return cfg_.tile_tokens == 1; }
  // Who sends and sums waits for the tile alone: the next ones are sent after that wait.
  std::int64_t channel_tiles() const {
    return cfg_.num_sum_workers == 0 ? 1 : ceil_div(tiles(), cfg_.channels);
  }
  std::int64_t channels() const { return ceil_div(tiles(), channel_tiles()); }
  Value integer(const Index& value) const { return p_.splat(DType::kI32, value); }

  template <typename Visit>
  void each_token(const Index& tile, std::int64_t tokens, const Visit& visit) {
    if (tokens == 1) return visit(tile);
    p_.loop(tokens, [&](const Index& i) {
      Index token = p_.let("token", tile * tokens + i);
      p_.when(token < d_.shape.rows_per_rank(), [&] { visit(token); });
    });
  }

  // By source: tiles whose rows are there, or are none of that rank's.
  void wait_for_others(const Index& tile) {
    if (ranks_ == 1) return;
    Index channel = p_.let("channel", tile / channel_tiles());
    p_.loop(1, ranks_, [&](const Index& i) {
      Index source = (p_.rank() + i) % ranks_;
      p_.wait(returned_[source * channels() + channel],
              min(channel_tiles(), tiles() - channel * channel_tiles()));
    });
  }

  // Of some ranks; zeros where the own one or nobody sends any.
  std::vector<Value> load_parts(std::int64_t first, const Index& token) {
    std::vector<Value> parts;
    for (std::int64_t r = first; r < std::min(first + kSomeRanks, ranks_); ++r) {
      Index came = p_.let("came", p_.read(positions_, {token, r}) >= 0 && !(p_.rank() == r));
      parts.push_back(p_.load(parts_.tile({r, token, 0}, 1, d_.hidden).until_row(token + came)));
    }
    return parts;
  }

  void send_to_all(const Index& tile) {
    p_.loop(1, ranks_, [&](const Index& i) { send(p_.let("of", (p_.rank() + i) % ranks_), tile); });
  }

  Value load_residual(const Index& token) {
    return p_.load(residual_.tile({token, 0}, 1, d_.hidden));
  }

  // The parts of all ranks in their order, the own sum rounded as those that travelled, and what
  // `add_old` adds.
  template <typename AddOld>
  void store_sum(const Index& token, const Value& own_sum, std::vector<Value> parts,
                 const AddOld& add_old) {
    Value own = cast(cast(own_sum, d_.dtype), DType::kF32);
    Value sum = p_.zeros(DType::kF32, 1, d_.hidden);
    for (std::int64_t first = 0; first < ranks_; first += kSomeRanks) {
      if (first > 0) parts = load_parts(first, token);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        Value is_own = integer(p_.rank()) == integer(first + static_cast<std::int64_t>(i));
        sum = sum + where(is_own, own, cast(parts[i], DType::kF32));
      }
    }
    add_old(sum);
    p_.store(out_.tile({token, 0}, 1, d_.hidden), cast(sum, d_.dtype));
  }

  // Where a token's results of the own experts are.
  struct Rows {
    Index any = 0;  // whether there is one
    std::vector<Index> slots;
    std::vector<Value> shares;
  };
  Rows pick(const Index& of, const Index& token) {
    Index row = p_.let("row", of * d_.shape.rows_per_rank() + token);
    Rows rows;
    for (std::int64_t j = 0; j < d_.shape.top_k; ++j) {
      rows.slots.push_back(p_.read(slots_, {row, j}));
      rows.shares.push_back(p_.load(weights_.tile({row, j}, 1, 1)));
      rows.any = rows.any || rows.slots.back() >= 0;
    }
    return rows;
  }
  Value add_up(const Rows& rows) {  // f32 [1, hidden]
    std::vector<Value> results;     // all are on their way before the first is used
    for (const Index& slot : rows.slots) {
      results.push_back(p_.load(y_.tile({max(slot, 0), 0}, 1, d_.hidden).until_row(slot + 1)));
    }
    Value sum = p_.zeros(DType::kF32, 1, d_.hidden);
    for (std::size_t j = 0; j < results.size(); ++j) {
      sum = sum + cast(results[j], DType::kF32) * rows.shares[j];
    }
    return sum;
  }

  ProgramBuilder& p_;
  const EpDesc& d_;
  const ReturnConfig& cfg_;
  std::int64_t ranks_;
  TensorRef y_, slots_, weights_, positions_, residual_, parts_, out_;
  SignalRef ready_;     // a rank's launch has begun: its parts may be written
  SignalRef returned_;  // by source and channel
};

}  // namespace

Program ep_return(const EpDesc& d, const ReturnConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("ep_return", d.shape.world_size);
  Return op(p, d, cfg);
  bool sends = d.shape.world_size > 1;
  if (sends && !op.in_turn()) p.on_start([&] { op.announce(); });
  if (sends && cfg.num_sum_workers > 0) {
    p.role("weigh", Resource::sms(cfg.num_workers), p.range(op.tiles_of_others()),
           [&](const Tile& t) { op.send(t.index); });
    p.role("sum", Resource::sms(cfg.num_sum_workers), p.range(op.sum_tiles()),
           [&](const Tile& t) { op.keep(t.index, op.sum_tokens()); });
  } else if (sends) {
    // Sending comes first: what a tile waits for, the others have sent before they wait in theirs.
    p.role("combine", Resource::sms(cfg.num_workers), p.range(op.tiles()),
           [&](const Tile& t) { op.send_and_keep(t.index); });
  } else {
    p.role("combine", Resource::sms(cfg.num_workers), p.range(op.tiles()),
           [&](const Tile& t) { op.keep(t.index, cfg.tile_tokens); });
  }
  Program program = p.finish();
  for (Role& role : program.roles) role.agents[0].num_threads = cfg.threads;
  return program;
}

NamedFields fields_of(ReturnConfig& c) {
  return {{"workers", c.num_workers}, {"sum_workers", c.num_sum_workers, 0},
          {"threads", c.threads, 0},  {"tile_tokens", c.tile_tokens},
          {"channels", c.channels},   {"sum_tokens", c.sum_tokens, 0},
          {"slots", c.num_slots}};
}

}  // namespace stretto
