#include "stretto/ops/norm/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/operator/field_fit.h"
#include "stretto/ops/operator/rank_sum.h"

namespace stretto {
namespace {

void check(const NormDesc& d, const NormConfig& c) {
  auto positive = [](std::int64_t value, const char* field) {
    if (value < 1) throw UserError(fmt::format("norm: {} is {}, need at least 1", field, value));
  };
  positive(d.m, "m");
  positive(d.hidden, "hidden");
  positive(d.world_size, "world_size");
  positive(c.tile_rows, "tile_rows");
  positive(c.num_workers, "num_workers");
  if (c.two_shot && !c.packets) throw UserError("norm: two_shot needs packets");
  if (!(d.eps >= 0)) throw UserError(fmt::format("norm: eps is {}, need a number >= 0", d.eps));
}

// Of what works on the own rows alone.
void check_local(const char* op, const NormDesc& d, NormConfig c) {
  check(d, c);
  auto fields = FieldFit::refusing(fmt::format("{} {}", op, to_string(d)));
  const char* reason = "of the all-reduce alone";
  fields.only("threads", c.threads, 0, reason);
  fields.only("packets", c.packets, false, reason);
}

// x [rows, hidden], weight [1, hidden] -> x / rms(x) * weight
Value normalise(const NormDesc& d, const Value& x, const Value& weight) {
  DType wide = sum_dtype(d.dtype);
  Value v = cast(x, wide);
  Value mean_square = row_sum(v * v) / static_cast<double>(d.hidden);
  Value normed = cast(v * rsqrt(mean_square + d.eps), d.dtype);
  return cast(cast(normed, wide) * cast(weight, wide), d.dtype);
}

}  // namespace

Program rms_norm(const NormDesc& d, const NormConfig& cfg) {
  check_local("rms_norm", d, cfg);
  ProgramBuilder p("rms_norm", d.world_size);
  Index m = p.extent("m", d.m);
  DType wide = sum_dtype(d.dtype);
  TensorRef x = p.input("x", d.dtype, {m, d.hidden});
  TensorRef weight = p.input("weight", d.weight_dtype, {1, d.hidden});
  TensorRef residual, sum;
  if (d.add_residual) {
    residual = p.input("residual", d.dtype, {m, d.hidden});
    sum = p.output("sum", d.dtype, {m, d.hidden});
  }
  TensorRef out = p.output("out", d.dtype, {m, d.hidden},
                           d.symmetric_output ? Space::kSymmetric : Space::kLocal);

  p.role("norm", Resource::sms(cfg.num_workers), p.grid(m, 1, cfg.tile_rows, 1),
         [&](const Tile& t) {
           auto rows = [&](const TensorRef& tensor) {
             return tensor.tile({t.row, 0}, cfg.tile_rows, d.hidden);
           };
           Value v = p.load(rows(x));
           if (d.add_residual) {
             v = cast(cast(v, wide) + cast(p.load(rows(residual)), wide), d.dtype);
             p.store(rows(sum), v);
           }
           p.store(rows(out), normalise(d, v, p.load(weight.tile({0, 0}, 1, d.hidden))));
         });
  return p.finish();
}

namespace {

// The sums over ranks of x's tiles as packets. Two slots are enough, since a rank that writes slot
// e % 2 again has heard in the launch between from rank 0, which owns the first tile and had then
// heard from all, or, one-shot, from every rank: there is always one row, even without rows.
class PacketSums {
 public:
  PacketSums(ProgramBuilder& p, const NormDesc& d, const NormConfig& cfg, const Index& m,
             std::int64_t width)
      : p_(p),
        rows_(cfg.tile_rows),
        width_(width),
        two_shot_(cfg.two_shot),
        // Threads that are so many have 64 registers each.
        together_(d.world_size <= 4 || cfg.threads <= 512),
        end_(max(m, 1)) {
    BufferOptions where{.space = Space::kSymmetric, .num_slots = 2, .packet = true};
    inbox_ = p.buffer("inbox", d.dtype, {d.world_size, d.m, width}, where);
    if (two_shot_) sums_ = p.buffer("sums", d.dtype, {d.m, width}, where);
  }

  // Of what this rank has of the tile; `meanwhile` is loaded while the others' travels.
  Value of(const Tile& t, const Value& mine, const std::function<void()>& meanwhile) const {
    int world = p_.world_size();
    if (!two_shot_) {
      to_peers([&](const Index& peer) { p_.store_packet(part(t, p_.rank()).on(peer), mine); });
      meanwhile();
      return in_rank_order(t, mine);
    }
    Index owner = p_.let("owner", t.m % world);
    p_.when(owner != p_.rank(), [&] { p_.store_packet(part(t, p_.rank()).on(owner), mine); });
    meanwhile();
    Value reduced = p_.zeros(mine.dtype(), rows_, width_);
    Slice sum = sums_.tile({t.row, 0}, rows_, width_).until_row(end_);
    p_.when(
        owner == p_.rank(),
        [&] {
          reduced = in_rank_order(t, mine);
          to_peers([&](const Index& peer) { p_.store_packet(sum.on(peer), reduced); });
        },
        [&] { reduced = p_.load_packet(sum); });
    return reduced;
  }

 private:
  void to_peers(const std::function<void(const Index& peer)>& send) const {
    int world = p_.world_size();
    p_.loop(world - 1, [&](const Index& i) { send((p_.rank() + 1 + i) % world); });
  }
  Slice part(const Tile& t, const Index& source) const {
    return inbox_.tile({source, t.row, 0}, rows_, width_).until_row(end_);
  }
  Value in_rank_order(const Tile& t, const Value& mine) const {
    auto part_of = [&](const Index& r) { return p_.load_packet(part(t, r)); };
    Value total = sum_with_own(p_, mine, part_of, together_);
    return cast(total, mine.dtype());
  }

  ProgramBuilder& p_;
  std::int64_t rows_, width_;
  bool two_shot_, together_;
  Index end_;
  TensorRef inbox_, sums_;
};

}  // namespace

Program all_reduce_add_rms_norm(const NormDesc& d, const NormConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("all_reduce_add_rms_norm", d.world_size);
  Index m = p.extent("m", d.m);
  DType wide = sum_dtype(d.dtype);
  TensorRef x =
      p.input("x", d.dtype, {m, d.hidden}, cfg.packets ? Space::kLocal : Space::kSymmetric);
  TensorRef weight = p.input("weight", d.weight_dtype, {1, d.hidden});
  TensorRef residual = p.input("residual", d.dtype, {m, d.hidden});
  TensorRef sum = p.output("sum", d.dtype, {m, d.hidden});
  TensorRef out = p.output("out", d.dtype, {m, d.hidden});
  TileSpace tiles = p.grid(d.m, 1, cfg.tile_rows, 1);
  // Whole packets, whatever the dtype; what lies past the row is zero.
  std::int64_t width = cfg.packets ? ceil_div(d.hidden, 4) * 4 : d.hidden;
  SignalRef ready, done;
  std::optional<PacketSums> packets;
  if (cfg.packets) {
    packets.emplace(p, d, cfg, m, width);
  } else {
    ready = p.signal("ready");
    done = p.signal("done");
    p.on_start([&] { p.notify_all(ready); });
  }

  p.role("reduce_norm", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    auto rows = [&](const TensorRef& tensor) {
      return tensor.tile({t.row, 0}, cfg.tile_rows, width);
    };
    Value old, scale;
    auto load_others = [&] {
      old = p.load(rows(residual));
      scale = p.load(weight.tile({0, 0}, 1, width));
    };
    Value reduced;
    if (cfg.packets) {
      reduced = packets->of(t, p.load(rows(x)), load_others);
    } else {
      load_others();
      Value total = p.zeros(wide, cfg.tile_rows, width);
      p.loop(p.world_size(), [&](const Index& r) {
        p.wait(ready, r);
        total = total + cast(p.load(rows(x.on(r))), wide);
      });
      p.notify_all(done);
      reduced = cast(total, d.dtype);
    }
    Value v = cast(cast(reduced, wide) + cast(old, wide), d.dtype);
    p.store(rows(sum), v);
    p.store(rows(out), normalise(d, v, scale));
  });
  if (!cfg.packets) {
    p.on_end(
        [&] { p.loop(p.world_size(), [&](const Index& i) { p.wait(done[i], tiles.count()); }); });
  }
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = cfg.threads;
  return program;
}

Program swiglu(const NormDesc& d, const NormConfig& cfg) {
  check_local("swiglu", d, cfg);
  ProgramBuilder p("swiglu", d.world_size);
  Index m = p.extent("m", d.m);
  DType wide = sum_dtype(d.dtype);
  TensorRef gate_up = p.input("gate_up", d.dtype, {m, 2 * d.hidden});
  TensorRef out = p.output("out", d.dtype, {m, d.hidden});

  p.role("swiglu", Resource::sms(cfg.num_workers), p.grid(m, 1, cfg.tile_rows, 1),
         [&](const Tile& t) {
           Value gate = cast(p.load(gate_up.tile({t.row, 0}, cfg.tile_rows, d.hidden)), wide);
           Value up = cast(p.load(gate_up.tile({t.row, d.hidden}, cfg.tile_rows, d.hidden)), wide);
           p.store(out.tile({t.row, 0}, cfg.tile_rows, d.hidden), cast(silu(gate) * up, d.dtype));
         });
  return p.finish();
}

Program add_row(const NormDesc& d, const NormConfig& cfg) {
  check_local("add_row", d, cfg);
  ProgramBuilder p("add_row", d.world_size);
  Index m = p.extent("m", d.m);
  DType wide = sum_dtype(d.dtype);
  TensorRef x = p.input("x", d.dtype, {m, d.hidden});
  TensorRef row = p.input("row", d.weight_dtype, {1, d.hidden});
  TensorRef out = p.output("out", d.dtype, {m, d.hidden});
  auto tiles = p.grid(m, 1, cfg.tile_rows, 1);

  p.role("add", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Value old = cast(p.load(x.tile({t.row, 0}, cfg.tile_rows, d.hidden)), wide);
    Value added = cast(p.load(row.tile({0, 0}, 1, d.hidden)), wide);
    p.store(out.tile({t.row, 0}, cfg.tile_rows, d.hidden), cast(old + added, d.dtype));
  });
  return p.finish();
}

std::string to_string(const NormDesc& d) {
  return fmt::format("[{}, {}] {} (weight {}) eps={} P={}", d.m, d.hidden, short_name(d.dtype),
                     short_name(d.weight_dtype), d.eps, d.world_size);
}

NormConfig default_config(const NormDesc& d, Target target) {
  if (target == Target::kCpu) return {.tile_rows = std::min<std::int64_t>(16, d.m)};
  constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
  NormConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, d.m)};
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows), target.sms());
  return c;
}

NormConfig default_all_reduce_config(const NormDesc& d, Target target) {
  NormConfig c = default_config(d, target);
  if (target == Target::kCpu) return c;
  // In graphs, gpu_bench collectives, on two and four H100s, 2026-11-26: packets of 64 rows took
  // 0.57 and 0.38 of the time of reads that two rounds of signals order, on four 256 rows 0.39. In
  // two shots 256 KB took 1.04 of the time of one on four, 1 MB 0.62.
  constexpr std::int64_t kMega = std::int64_t{1} << 20;
  std::int64_t bytes = d.m * d.hidden * static_cast<std::int64_t>(size_bytes(d.dtype));
  c.packets = bytes <= 4 * kMega;
  c.two_shot = c.packets && d.world_size > 2 && (d.world_size - 1) * bytes > kMega;
  c.threads = d.hidden >= 8192 ? 1024 : d.hidden >= 4096 ? 512 : 0;
  return c;
}

}  // namespace stretto
