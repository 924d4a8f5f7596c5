#include "stretto/ops/gemm/quantize_fp8.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/operator/quantized_rows.h"

namespace stretto {
namespace {

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 9, .k = 31, .dtype = DType::kF32},
          {.world_size = world_size, .m = 3, .k = 300, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 6, .k = 257, .dtype = DType::kF16},
          {.world_size = world_size, .m = 20, .k = 128, .dtype = DType::kF32}};
}

}  // namespace

NamedFields fields_of(QuantizeDesc& d) {
  return {NamedField("m", d.m).as("[{}"),
          NamedField("rows_per_token", d.rows_per_token).as("x {},"),
          NamedField("k", d.k).as("{}]"),
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}"),
          {"symmetric_output", d.symmetric_output}};
}

Program quantize_fp8(const QuantizeDesc& d, const QuantizeConfig& cfg) {
  check_sizes("quantize_fp8", {{"m", d.m},
                               {"rows_per_token", d.rows_per_token},
                               {"k", d.k},
                               {"world_size", d.world_size},
                               {"tile_rows", cfg.tile_rows},
                               {"num_workers", cfg.num_workers}});
  check_dtype("quantize_fp8", "dtype", d.dtype);
  ProgramBuilder p("quantize_fp8", d.world_size);
  Index rows = p.extent("m", d.m) * d.rows_per_token;
  Space space = d.symmetric_output ? Space::kSymmetric : Space::kLocal;
  TensorRef x = p.input("x", d.dtype, {rows, d.k});
  TensorRef out = p.output("out", DType::kF8E4M3, {rows, d.k}, space);
  TensorRef scales = p.output("scales", DType::kF32, {rows, ceil_div(d.k, kScaleBlock)}, space);
  TileSpace blocks = p.grid(rows, d.k, cfg.tile_rows, kScaleBlock);
  p.role("quantize", Resource::sms(cfg.num_workers), blocks, [&](const Tile& t) {
    auto block = [&](const TensorRef& of) {
      return of.tile({t.row, t.col}, cfg.tile_rows, kScaleBlock);
    };
    QuantizedRows of = quantized_rows(p, p.load(block(x)));
    p.store(block(out), of.rows);
    p.store(scales.tile({t.row, t.n}, cfg.tile_rows, 1), of.scales());
  });
  return p.finish();
}

QuantizeDesc quantize_desc(const OpShape& s) {
  QuantizeDesc d{.dtype = s.dtype, .world_size = s.world_size};
  if (s.m > 0) d.m = s.m;
  d.k = s.k > 0 ? s.k : 256;
  d.rows_per_token = s.m % 2 == 1 ? 2 : 1;
  return d;
}

OperatorInfo quantize_fp8_info() {
  return {.name = "quantize_fp8",
          .summary = "e4m3 of x[m,k] with a scale for each 1 x 128, as products of fp8 take it",
          .program =
              [](const OpShape& s) {
                QuantizeDesc d = quantize_desc(s);
                return quantize_fp8(d, default_config(d, s.target));
              },
          .shapes = shapes,
          .large = {.m = 4096, .k = 8192, .dtype = DType::kBF16}};
}

NamedFields fields_of(QuantizeConfig& c) {
  return {{"tile_rows", c.tile_rows}, {"workers", c.num_workers}};
}

}  // namespace stretto
