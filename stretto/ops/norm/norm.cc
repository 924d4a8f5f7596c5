#include "stretto/ops/norm/norm.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"

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
  if (!(d.eps >= 0)) throw UserError(fmt::format("norm: eps is {}, need a number >= 0", d.eps));
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
  check(d, cfg);
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

// As packets: two slots, since a rank that writes slot e % 2 again has read every rank's packets of
// the launch between; there is always one, even without rows.
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
  TensorRef inbox;
  if (cfg.packets) {
    inbox = p.buffer("inbox", d.dtype, {d.world_size, d.m, width},
                     {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  } else {
    ready = p.signal("ready");
    done = p.signal("done");
    p.on_start([&] { p.notify_all(ready); });
  }

  p.role("reduce_norm", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    auto rows = [&](const TensorRef& tensor) {
      return tensor.tile({t.row, 0}, cfg.tile_rows, width);
    };
    auto packets = [&](const TensorRef& on, const Index& source) {
      return on.tile({source, t.row, 0}, cfg.tile_rows, width).until_row(max(m, 1));
    };
    Value total = p.zeros(wide, cfg.tile_rows, width), old, scale;
    if (cfg.packets) {
      Value mine = p.load(rows(x));
      p.loop(d.world_size - 1, [&](const Index& i) {
        p.store_packet(packets(inbox.on((p.rank() + 1 + i) % d.world_size), p.rank()), mine);
      });
      old = p.load(rows(residual));
      scale = p.load(weight.tile({0, 0}, 1, width));
      auto receive = [&](const Index& r) {
        total = total + cast(p.load_packet(packets(inbox, r)), wide);
      };
      p.loop(0, p.rank(), receive);
      total = total + cast(mine, wide);
      p.loop(p.rank() + 1, d.world_size, receive);
    } else {
      old = p.load(rows(residual));
      scale = p.load(weight.tile({0, 0}, 1, width));
      p.loop(p.world_size(), [&](const Index& r) {
        p.wait(ready, r);
        total = total + cast(p.load(rows(x.on(r))), wide);
      });
      p.notify_all(done);
    }
    Value reduced = cast(cast(total, d.dtype), wide);
    Value v = cast(reduced + cast(old, wide), d.dtype);
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
  check(d, cfg);
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
  check(d, cfg);
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
  if (target == Target::kCuda) {
    constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
    NormConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, d.m)};
    std::int64_t tiles = ceil_div(d.m, c.tile_rows);
    c.num_workers = gpu_workers(tiles);
    // Of a megabyte, twice the bytes take 3 us longer on NVLink and save two rounds of signals.
    c.packets = d.m * d.hidden * static_cast<std::int64_t>(size_bytes(d.dtype)) <= 1024 * 1024;
    c.threads = d.hidden >= 8192 ? 1024 : d.hidden >= 4096 ? 512 : 0;
    return c;
  }
  return {.tile_rows = std::min<std::int64_t>(16, d.m)};
}

}  // namespace stretto
