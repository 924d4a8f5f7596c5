#include "stretto/ops/norm/norm.h"

#include <fmt/format.h>

#include <optional>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/norm/norm_parts.h"
#include "stretto/ops/operator/field_check.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {

void check_norm(const NormDesc& d, const NormConfig& c) {
  check_sizes("norm", {{"m", d.m},
                       {"hidden", d.hidden},
                       {"world_size", d.world_size},
                       {"tile_rows", c.tile_rows},
                       {"num_workers", c.num_workers}});
  if (c.two_shot && !c.packets) throw UserError("norm: two_shot needs packets");
  if (!(d.eps >= 0)) throw UserError(fmt::format("norm: eps is {}, need a number >= 0", d.eps));
}

namespace {

RowNorm row_norm(const NormDesc& d) { return {.dtype = d.dtype, .hidden = d.hidden, .eps = d.eps}; }

// Of what works on the own rows alone.
void check_local(const char* op, const NormDesc& d, NormConfig c) {
  check_norm(d, c);
  auto fields = FieldFit::refusing(fmt::format("{} {}", op, to_string(d)));
  const char* reason = "of the all-reduce alone";
  fields.only("threads", c.threads, 0, reason);
  fields.only("packets", c.packets, false, reason);
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
           p.store(rows(out), normalise(row_norm(d), v, p.load(weight.tile({0, 0}, 1, d.hidden))));
         });
  return p.finish();
}

Program all_reduce_add_rms_norm(const NormDesc& d, const NormConfig& cfg) {
  check_norm(d, cfg);
  ProgramBuilder p("all_reduce_add_rms_norm", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef x =
      p.input("x", d.dtype, {m, d.hidden}, cfg.packets ? Space::kLocal : Space::kSymmetric);
  TensorRef weight = p.input("weight", d.weight_dtype, {1, d.hidden});
  TensorRef residual = p.input("residual", d.dtype, {m, d.hidden});
  TensorRef sum = p.output("sum", d.dtype, {m, d.hidden});
  TensorRef out = p.output("out", d.dtype, {m, d.hidden});
  TileSpace tiles = p.grid(d.m, 1, cfg.tile_rows, 1);
  // Whole packets, whatever the dtype; what lies past the row is zero.
  std::int64_t width = cfg.packets ? ceil_div(d.hidden, 4) * 4 : d.hidden;
  std::optional<PeerReads> reads;
  std::optional<PacketSums> packets;
  if (cfg.packets) {
    packets.emplace(p,
                    PacketSumsOf{.dtype = d.dtype,
                                 .most_rows = d.m,
                                 .width = width,
                                 .tile_rows = cfg.tile_rows,
                                 .two_shot = cfg.two_shot,
                                 .threads = cfg.threads},
                    m);
  } else {
    reads.emplace(p);
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
      DType wide = sum_dtype(d.dtype);
      Value total = p.zeros(wide, cfg.tile_rows, width);
      p.loop(p.world_size(), [&](const Index& r) {
        p.wait(reads->ready(), r);
        total = total + cast(p.load(rows(x.on(r))), wide);
      });
      reads->notify_done();
      reduced = cast(total, d.dtype);
    }
    store_normalised(p, row_norm(d),
                     {.reduced = reduced,
                      .residual = old,
                      .weight = [&] { return scale; },
                      .sum = rows(sum),
                      .out = rows(out)});
  });
  if (!cfg.packets) reads->wait_at_end(tiles.count());
  return finish_with_threads(p, cfg.threads);
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

NamedFields fields_of(NormDesc& d) {
  return {NamedField("m", d.m).as("[{},"),
          NamedField("hidden", d.hidden).as("{}]"),
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("weight_dtype", d.weight_dtype).as("(weight {})"),
          {"eps", d.eps},
          NamedField("world_size", d.world_size).as("P={}"),
          {"add_residual", d.add_residual},
          {"symmetric_output", d.symmetric_output}};
}

NamedFields fields_of(NormConfig& c) {
  return {{"tile_rows", c.tile_rows},
          {"workers", c.num_workers},
          {"threads", c.threads, 0},
          {"packets", c.packets},
          {"two_shot", c.two_shot}};
}

}  // namespace stretto
