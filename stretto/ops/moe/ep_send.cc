#include "stretto/ops/moe/ep_send.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/operator/quantized_rows.h"

namespace stretto {
namespace {

void check(const char* op, const EpDesc& d, const SendConfig& c) {
  check_sizes(op, {{"m", d.shape.m},
                   {"hidden", d.hidden},
                   {"num_experts", d.shape.num_experts},
                   {"top_k", d.shape.top_k},
                   {"world_size", d.shape.world_size},
                   {"num_workers", c.num_workers},
                   {"tile_tokens", c.tile_tokens},
                   {"num_slots", c.num_slots}});
  check_dtype(op, "dtype", d.dtype);
  check_split(op, split_of(d));
}

// What comes from all ranks: where they write it, and where the caller finds it. With one slot the
// same.
struct Received {
  TensorRef inbox, result;
};

Received received(ProgramBuilder& p, const SendConfig& cfg, const std::string& name, DType dtype,
                  const std::vector<Index>& shape) {
  if (cfg.num_slots == 1) {
    TensorRef both = p.state(name, dtype, shape, Space::kSymmetric);
    return {both, both};
  }
  return {p.buffer("slots_of_" + name, dtype, shape,
                   {.space = Space::kSymmetric, .num_slots = cfg.num_slots}),
          p.state(name, dtype, shape)};
}

// Tokens travel as they are: load() reads one of x, store() writes what was loaded to a rank,
// take() reads what came, keep() writes that to where the caller finds it.
class Rows {
 public:
  static constexpr std::int64_t kRanksAtOnce = 4;  // whose tokens have registers
  struct Taken {
    Value data;
  };
  Rows(ProgramBuilder& p, const EpDesc& d, const SendConfig& cfg, const Index& own_rows)
      : p_(p), hidden_(d.hidden) {
    x_ = p.input("x", d.dtype, {own_rows, d.hidden});
    recv_ = received(p, cfg, "recv", d.dtype, {d.received_rows(), d.hidden});
  }
  void load(const Index& token) {
    data_ = p_.load(x_.tile({token, 0}, 1, hidden_));  // [1, hidden]
  }
  void store(const Index& row, const Index& to) { p_.store(at(recv_.inbox, row).on(to), data_); }
  Taken take(const Index& row) { return {p_.load(at(recv_.inbox, row))}; }
  void keep(const Index& row, const Taken& taken) { p_.store(at(recv_.result, row), taken.data); }

 private:
  Slice at(const TensorRef& rows, const Index& row) { return rows.tile({row, 0}, 1, hidden_); }

  ProgramBuilder& p_;
  std::int64_t hidden_;
  TensorRef x_;
  Received recv_;
  Value data_;
};

// Tokens travel as e4m3 with scales: a row of a tile is a block of the token that has a scale.
class ScaledBlocks {
 public:
  static constexpr std::int64_t kRanksAtOnce = 2;
  struct Taken {
    Value data, scale;
  };
  ScaledBlocks(ProgramBuilder& p, const EpDesc& d, const SendConfig& cfg, const Index& own_rows)
      : p_(p), blocks_(d.hidden / kScaleBlock) {
    const std::int64_t rows = d.received_rows();
    x_ = p.input("x", d.dtype, {own_rows, blocks_, kScaleBlock});
    recv_ = received(p, cfg, "recv", DType::kF8E4M3, {rows, blocks_, kScaleBlock});
    scales_ = received(p, cfg, "recv_scales", DType::kF32, {rows, blocks_, 1});
  }
  void load(const Index& token) {
    constexpr double kLeast = 1e-4;  // that is scaled
    Value x = p_.load(x_.tile({token, 0, 0}, blocks_, kScaleBlock));
    QuantizedRows of = quantized_rows(p_, x, kLeast);
    data_ = of.rows;
    scale_ = of.scales();
  }
  void store(const Index& row, const Index& to) {
    p_.store(data_at(recv_.inbox, row).on(to), data_);
    p_.store(scale_at(scales_.inbox, row).on(to), scale_);
  }
  Taken take(const Index& row) {
    return {p_.load(data_at(recv_.inbox, row)), p_.load(scale_at(scales_.inbox, row))};
  }
  void keep(const Index& row, const Taken& taken) {
    p_.store(data_at(recv_.result, row), taken.data);
    p_.store(scale_at(scales_.result, row), taken.scale);
  }

 private:
  Slice data_at(const TensorRef& rows, const Index& row) {
    return rows.tile({row, 0, 0}, blocks_, kScaleBlock);
  }
  Slice scale_at(const TensorRef& rows, const Index& row) {
    return rows.tile({row, 0, 0}, blocks_, 1);
  }

  ProgramBuilder& p_;
  std::int64_t blocks_;
  TensorRef x_;
  Received recv_, scales_;
  Value data_, scale_;
};

template <typename Tokens>
class Send {
 public:
  Send(ProgramBuilder& p, const EpDesc& d, const SendConfig& cfg)
      : p_(p),
        d_(d),
        cfg_(cfg),
        rows_(d.shape.rows_per_rank()),
        ranks_(d.shape.world_size),
        m_(p.extent("m", d.shape.m)),
        own_rows_(ceil_div(m_, ranks_)),
        own_end_(min(own_rows_, m_ - p.rank() * own_rows_)),
        tokens_(p, d, cfg, own_rows_) {
    const std::vector<Index> all = {ranks_ * rows_, d.shape.top_k};
    const Space space = in_turn() ? Space::kLocal : Space::kSymmetric;
    experts_ = p.table("experts", {own_rows_, d.shape.top_k},
                       {ContractKind::kRange, 0, d.shape.num_experts});
    weights_ = p.input("weights", DType::kF32, {own_rows_, d.shape.top_k});
    ids_.inbox = ids_.result = p.output("recv_experts", DType::kI32, all, space);
    shares_.inbox = shares_.result = p.output("recv_weights", DType::kF32, all, space);
    positions_ = p.output("positions", DType::kI32, {rows_, ranks_});
    if (in_turn()) {
      BufferOptions slots{.space = Space::kSymmetric, .num_slots = cfg.num_slots};
      ids_.inbox = p.buffer("slots_of_experts", DType::kI32, all, slots);
      shares_.inbox = p.buffer("slots_of_weights", DType::kF32, all, slots);
      is_here_ = p.made_table("is_here", {ranks_ * rows_, 1}, {ContractKind::kRange, 0, 2}, slots);
      sent_ = p.signal("sent", ranks_ * tiles());
    } else {
      ready_ = p.signal("ready");
      sent_ = p.signal("sent");
    }
  }

  // Two slots bound the run-ahead: a rank that writes slot e % 2 again, in launch e + 2, has heard
  // in launch e + 1 of every rank, each of which had then done with launch e.
  bool in_turn() const { return cfg_.num_slots > 1; }
  std::int64_t tiles() const { return ceil_div(rows_, cfg_.tile_tokens); }

  void announce() { p_.notify_all(ready_); }

  void send(const Index& tile) {
    const bool early = !in_turn() && cfg_.tile_tokens > 1;
    if (early) p_.wait_all(ready_);
    each_token(tile, [&](const Index& token) { send_token(token, !in_turn() && !early); });
    if (!in_turn()) return p_.notify_all(sent_);
    p_.loop(ranks_, [&](const Index& i) {
      p_.notify(sent_[p_.rank() * tiles() + tile], (p_.rank() + 1 + i) % ranks_);
    });
  }

  // Of every rank's tile, what others sent.
  void take(const Index& tile) {
    p_.loop(ranks_, [&](const Index& from) { p_.wait(sent_[from * tiles() + tile], 1); });
    each_token(tile, [&](const Index& token) {
      constexpr std::int64_t kSome = Tokens::kRanksAtOnce;
      for (std::int64_t first = 0; first < ranks_; first += kSome) {
        take_some(token, first, std::min(first + kSome, ranks_));
      }
    });
  }

  void wait_for_all() {
    p_.loop(ranks_, [&](const Index& from) { p_.wait(sent_[from], tiles()); });
  }

 private:
  template <typename Visit>
  void each_token(const Index& tile, const Visit& visit) {
    if (cfg_.tile_tokens == 1) return visit(tile);
    p_.loop(cfg_.tile_tokens, [&](const Index& i) {
      Index token = p_.let("token", tile * cfg_.tile_tokens + i);
      p_.when(token < rows_, [&] { visit(token); });
    });
  }

  // Of a token, with its experts.
  struct Pairs {
    Value ids, shares;
  };
  Value integer(const Index& value) const { return p_.splat(DType::kI32, value); }
  Slice pairs(const TensorRef& of, const Index& row) {
    return of.tile({row, 0}, 1, d_.shape.top_k);
  }

  void send_token(const Index& token, bool waits) {
    Index row = p_.let("row", p_.rank() * rows_ + token);
    tokens_.load(token);
    Value ids = p_.load(pairs(experts_, token)), shares = p_.load(pairs(weights_, token));
    if (waits) p_.wait_all(ready_);  // the token is under way
    p_.when(
        token < own_end_,
        [&] {
          std::vector<Index> chosen;
          for (std::int64_t j = 0; j < d_.shape.top_k; ++j) {
            chosen.push_back(p_.read(experts_, {token, j}));
          }
          p_.loop(ranks_, [&](const Index& i) {
            Index to = p_.let("to", (p_.rank() + 1 + i) % ranks_);
            Index goes = p_.let("goes", any_of(chosen, to));
            if (!in_turn()) p_.when(goes, [&] { tokens_.store(row, to); });
            tell(row, to, goes, {ids, shares});
            p_.store(positions_.tile({token, to}, 1, 1), integer(select(goes, token, -1)));
          });
        },
        [&] {
          Value nowhere = integer(-1), nothing = p_.zeros(DType::kF32, 1, d_.shape.top_k);
          p_.loop(ranks_, [&](const Index& to) {
            tell(row, to, 0, {broadcast(nowhere, 1, d_.shape.top_k), nothing});
            p_.store(positions_.tile({token, to}, 1, 1), nowhere);
          });
        });
  }

  // Experts and weights; with slots in turn the token, too: what is read has to be written,
  // whatever the tables say.
  void tell(const Index& row, const Index& to, const Index& goes, const Pairs& of) {
    if (in_turn()) {
      tokens_.store(row, to);
      p_.store(is_here_.on(to).tile({row, 0}, 1, 1), integer(goes));
    }
    p_.store(pairs(ids_.inbox, row).on(to), of.ids);
    p_.store(pairs(shares_.inbox, row).on(to), of.shares);
  }

  // All loads are under way before the first is stored.
  void take_some(const Index& token, std::int64_t first, std::int64_t end) {
    std::vector<Index> rows, here;
    std::vector<Pairs> told;
    std::vector<typename Tokens::Taken> taken;
    for (std::int64_t from = first; from < end; ++from) {
      Index row = rows.emplace_back(p_.let("row", from * rows_ + token));
      taken.push_back(tokens_.take(row));
      told.push_back({p_.load(pairs(ids_.inbox, row)), p_.load(pairs(shares_.inbox, row))});
      here.push_back(p_.let("here", p_.read(is_here_, {row, 0})));
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      p_.when(here[i] > 0, [&] { tokens_.keep(rows[i], taken[i]); });
      p_.store(pairs(ids_.result, rows[i]), told[i].ids);
      p_.store(pairs(shares_.result, rows[i]), told[i].shares);
    }
  }

  // Whether one of the experts is the rank's.
  Index any_of(const std::vector<Index>& chosen, const Index& rank) {
    const ExpertSplit split = split_of(d_);
    Index first = p_.let("first", split.first(rank)), end = p_.let("end", split.end(rank));
    Index any = 0;
    for (const Index& expert : chosen) any = any || (first <= expert && expert < end);
    return any;
  }

  ProgramBuilder& p_;
  const EpDesc& d_;
  const SendConfig& cfg_;
  std::int64_t rows_, ranks_;
  Index m_, own_rows_, own_end_;
  Tokens tokens_;
  TensorRef experts_, weights_, positions_;
  Received ids_, shares_;
  TensorRef is_here_;  // with slots in turn: whether a token that came has an expert here
  SignalRef ready_;    // a rank's launch has begun: its tensors may be written
  SignalRef sent_;  // by source, with slots in turn also by tile: what is there, or goes elsewhere
};

template <typename Tokens>
Program send(const char* name, const EpDesc& d, const SendConfig& cfg) {
  ProgramBuilder p(name, d.shape.world_size);
  Send<Tokens> op(p, d, cfg);
  if (!op.in_turn()) p.on_start([&] { op.announce(); });
  p.role("send", Resource::sms(cfg.num_workers), p.range(op.tiles()), [&](const Tile& t) {
    op.send(t.index);
    if (op.in_turn()) op.take(t.index);
  });
  if (!op.in_turn()) p.on_end([&] { op.wait_for_all(); });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = cfg.threads;
  return program;
}

}  // namespace

Program ep_send(const EpDesc& d, const SendConfig& cfg) {
  check("ep_send", d, cfg);
  return send<Rows>("ep_send", d, cfg);
}

Program ep_send_fp8(const EpDesc& d, const SendConfig& cfg) {
  check("ep_send_fp8", d, cfg);
  if (d.hidden % kScaleBlock != 0) {
    throw UserError(
        fmt::format("ep_send_fp8: hidden is {}, must be a multiple of {}", d.hidden, kScaleBlock));
  }
  return send<ScaledBlocks>("ep_send_fp8", d, cfg);
}

NamedFields fields_of(SendConfig& c) {
  return {{"workers", c.num_workers},
          {"threads", c.threads, 0},
          {"tile_tokens", c.tile_tokens},
          {"slots", c.num_slots}};
}

}  // namespace stretto
