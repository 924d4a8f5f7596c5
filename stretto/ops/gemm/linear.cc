// What was measured of the loops chosen here is in docs/performance/gemm.md, 'Why the defaults are
// what they are'; of tiles on CPUs in docs/performance/cpu.md.
#include "stretto/ops/gemm/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/ops/operator/target.h"

namespace stretto {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

constexpr std::int64_t kRowBytes = 128;  // of a slot: one line, permuted as a whole

std::int64_t size_bytes_of(const GpuLoopDesc& d) {
  return static_cast<std::int64_t>(size_bytes(d.a_dtype));
}

// Columns of a tile that have one scale.
bool fits(std::int64_t bn, Scaling scaling) {
  return scaling != Scaling::kBlock || kScaleBlock % bn == 0;
}

// Narrow tiles read as many bytes of rows as of weights, or more, which is too much where an SM has
// several. These have 64, 128 or 256 columns instead.
std::optional<MainLoop> loop_of_64_rows(const GpuLoopDesc& d) {
  const bool plain = d.scaling == Scaling::kNone && !d.swiglu && size_bytes_of(d) == 2;
  const std::int64_t narrow = ceil_div(ceil_div(d.n, std::int64_t{32}), std::int64_t{d.num_sms});
  if (!plain || d.m <= kFewRows / 4 || narrow < (d.m > kFewRows / 2 ? 2 : 3)) return std::nullopt;
  constexpr MainLoop kLoops[] = {{.tile = {64, 64, 64}, .num_stages = 8},
                                 {.tile = {64, 128, 64}, .num_stages = 6},
                                 {.tile = {64, 256, 64}, .num_stages = 4}};
  for (const MainLoop& loop : kLoops) {
    if (ceil_div(d.n, loop.tile.bn) <= d.num_sms) return loop;
  }
  return kLoops[2];
}

// Narrow tiles and long steps: HBM gives a row of weights faster in stretches of 512 bytes and more
// than in many short ones, and every step costs its waits.
MainLoop streaming_loop(const GpuLoopDesc& d) {
  constexpr std::int64_t kStageBytes = std::int64_t{200} * 1024, kMostStages = 24;
  constexpr std::int64_t kLeastCols = 32, kStep = 8;
  const std::int64_t weights = d.swiglu ? 2 : 1, most_cols = 128 / weights;
  const std::int64_t line = kRowBytes / size_bytes_of(d);
  // A scale of a block holds for a step of the block's columns.
  const std::int64_t most = d.scaling == Scaling::kBlock ? line : 8 * line;
  // Rows that are loaded; past 8, a slot has room for kFewRows all the same, which the tensor core
  // reads.
  GemmTile tile{.bm = std::min(round_up(std::max<std::int64_t>(d.m, 1), 8), kFewRows),
                .bn = kLeastCols,
                .bk = most};
  auto columns_of_a_worker = [&](std::int64_t bn) {
    return ceil_div(ceil_div(d.n, bn), std::int64_t{d.num_sms}) * bn;
  };
  auto try_columns = [&](std::int64_t bn) {
    if (!fits(bn, d.scaling)) return;
    if (columns_of_a_worker(bn) < columns_of_a_worker(tile.bn)) tile.bn = bn;
  };
  for (std::int64_t bn = kLeastCols; bn <= most_cols; bn += kStep) try_columns(bn);
  // Narrower ones where SMs would be left without a tile.
  for (std::int64_t bn : {24, 16}) {
    if (ceil_div(d.n, bn) <= d.num_sms) try_columns(bn);
  }
  std::int64_t slot_rows = tile.bm > 8 ? kFewRows : 8;
  auto stages = [&] {
    return kStageBytes / ((slot_rows + tile.bn * weights) * tile.bk * size_bytes_of(d));
  };
  while (tile.bk > line && (stages() < 3 || (d.k > 0 && tile.bk >= 2 * d.k))) tile.bk /= 2;
  return {.tile = tile, .num_stages = static_cast<int>(std::min(stages(), kMostStages))};
}

}  // namespace

const char* name(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone:
      return "none";
    case Scaling::kRowWise:
      return "row-wise";
    case Scaling::kBlock:
      break;
  }
  return "block";
}

NamedField scaling_field(Scaling& scaling) {
  using enum Scaling;
  return NamedField("scaling", scaling, {kNone, kRowWise, kBlock}, kNone).as("{}");
}

NamedField weights_field(bool& b_kn) { return NamedField("b_kn", b_kn).as("b[k,n]"); }

std::int64_t scale_columns(Scaling scaling, std::int64_t k) {
  return scaling == Scaling::kBlock ? ceil_div(k, kScaleBlock) : 1;
}

TileRows tile_rows(const TensorRef& a, const TensorRef& scale, const GemmTile& tile,
                   const LinearRows& range) {
  auto from = [range, tile](const TensorRef& x, const Index& col, std::int64_t cols) {
    Slice rows = x.tile({range.row, col}, tile.bm, cols);
    return range.end ? rows.until_row(*range.end) : rows;
  };
  return {.a = [=](const Index& k) { return from(a, k, tile.bk); },
          .scale = [=](const Index& i) { return from(scale, i, 1); }};
}

TensorRef scale_input(ProgramBuilder& p, Scaling scaling, const Index& rows, std::int64_t k,
                      Space space) {
  if (scaling == Scaling::kNone) return {};
  return p.input("scale_a", DType::kF32, {rows, scale_columns(scaling, k)}, space);
}

Linear::Linear(ProgramBuilder& p, const LinearDesc& desc) : p_(&p), desc_(desc) {
  std::vector<std::string> suffixes = {""};
  if (desc.swiglu) suffixes = {"_gate", "_up"};
  DType bias = desc.dtype == DType::kF8E4M3 ? DType::kBF16 : desc.dtype;
  for (const std::string& suffix : suffixes) {
    std::vector<Index> shape = {desc.n, desc.k};  // [n, k], or [k, n]
    if (desc.b_kn) std::swap(shape[0], shape[1]);
    weights_.push_back(p.input("b" + suffix, desc.dtype, shape));
    if (desc.bias) biases_.push_back(p.input("bias" + suffix, bias, {desc.n}));  // [n]
    if (desc.scaling == Scaling::kRowWise) {
      scales_.push_back(p.input("scale_b" + suffix, DType::kF32, {1, desc.n}));  // [1, n]
    } else if (desc.scaling == Scaling::kBlock) {
      scales_.push_back(p.input("scale_b" + suffix, DType::kF32,  // [n/128, k/128]
                                {ceil_div(desc.n, kScaleBlock), ceil_div(desc.k, kScaleBlock)}));
    }
  }
}

Value Linear::product(const GemmTile& tile, const Index& col, const TileRows& rows) const {
  Sums acc = sums(tile, col);
  accumulate(acc, tile, col, rows);
  return finish(std::move(acc), tile, col);
}

std::vector<Value> Linear::products(const GemmTile& tile, const Index& col, const TileRows& rows,
                                    std::int64_t parts) const {
  GemmTile of_part = tile;
  of_part.bn /= parts;
  std::vector<Sums> of(static_cast<std::size_t>(parts));
  std::vector<Part> with_columns;
  for (Sums& s : of) {
    Index at = col + static_cast<std::int64_t>(with_columns.size()) * of_part.bn;
    s = sums(of_part, at);
    with_columns.push_back({&s, at});
  }
  accumulate(with_columns, of_part, rows, {});
  std::vector<Value> out;
  for (const Part& p : with_columns) out.push_back(finish(std::move(*p.sums), of_part, p.col));
  return out;
}

Linear::Sums Linear::sums(const GemmTile& tile, const Index& col) const {
  Sums acc;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    acc.of.push_back(p_->zeros(sum_dtype(desc_.dtype), tile.bm, tile.bn));
  }
  if (desc_.scaling != Scaling::kRowWise) return acc;
  for (const TensorRef& scale : scales_) {
    acc.scales.push_back(p_->load(scale.tile({0, col}, 1, tile.bn)));
  }
  return acc;
}

void Linear::accumulate(Sums& sums, const GemmTile& tile, const Index& col, const TileRows& rows,
                        const std::optional<StepRange>& steps) const {
  accumulate({{&sums, col}}, tile, rows, steps);
}

void Linear::accumulate(Sums& sums, const GemmTile& tile, const Index& col, const TileRows& rows,
                        const ColumnRange& columns) const {
  accumulate({{&sums, col}}, tile, rows, StepRange{0, ceil_div(columns.count, tile.bk)}, columns);
}

Value Linear::step_of_weight(const TensorRef& weight, const GemmTile& tile, const Index& col,
                             const Index& k, const std::optional<ColumnRange>& columns) const {
  Index at = columns ? columns->first + k : k;
  Slice step = desc_.b_kn ? weight.tile({at, col}, tile.bk, tile.bn)
                          : weight.tile({col, at}, tile.bn, tile.bk);
  if (columns && columns->count % tile.bk != 0) {  // the next ones have factors elsewhere
    Index end = columns->first + columns->count;
    step = desc_.b_kn ? step.until_row(end) : step.until_col(end);
  }
  Value b = p_->load(step);
  return desc_.b_kn ? b : b.T();
}

void Linear::accumulate(const std::vector<Part>& parts, const GemmTile& tile, const TileRows& rows,
                        const std::optional<StepRange>& steps,
                        const std::optional<ColumnRange>& columns) const {
  auto [begin, end] = steps.value_or(StepRange{0, ceil_div(desc_.k, tile.bk)});
  bool block = desc_.scaling == Scaling::kBlock;
  Value of_rows;  // [bm, 1]
  if (desc_.scaling == Scaling::kRowWise) of_rows = p_->load(rows.scale(0));
  p_->loop(begin, end, [&](const Index& step) {
    Index k = step * tile.bk, at = tile.bk == kScaleBlock ? step : k / kScaleBlock;
    std::vector<std::vector<DotScales>> scales(parts.size());
    if (block) {
      Value of_step = p_->load(rows.scale(at));  // [bm, 1]; [1, 1] for each weight
      for (std::size_t part = 0; part < parts.size(); ++part) {
        for (const TensorRef& scale : scales_) {
          Index of_k = columns ? columns->first / kScaleBlock + at : at;
          Value of_weight = p_->load(scale.tile({parts[part].col / kScaleBlock, of_k}, 1, 1));
          scales[part].push_back({of_step, broadcast(of_weight, 1, tile.bn)});
        }
      }
    }
    Value a = p_->load(rows.a(k));  // [bm, bk]
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Index& col = parts[part].col;
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        Value b = step_of_weight(weights_[i], tile, col, k, columns);
        Value& sum = parts[part].sums->of[i];
        sum = block ? dot_scaled(sum, a, b, scales[part][i]) : dot(sum, a, b);
      }
    }
  });
  if (desc_.scaling != Scaling::kRowWise) return;
  for (const Part& part : parts) {
    for (Value& sum : part.sums->of) sum = sum * of_rows;
  }
}

Value Linear::finish(Sums sums, const GemmTile& tile, const Index& col) const {
  std::vector<Value>& of = sums.of;
  for (std::size_t i = 0; i < sums.scales.size(); ++i) of[i] = of[i] * sums.scales[i];
  for (std::size_t i = 0; i < biases_.size(); ++i) {
    of[i] = of[i] + cast(p_->load(biases_[i].tile({col}, 1, tile.bn)), of[i].dtype());
  }
  return desc_.swiglu ? silu(of[0]) * of[1] : std::move(of[0]);
}

GemmTile default_tile(std::int64_t m, std::int64_t n, std::int64_t k) {
  // Each tile packs its operands anew, so tiles are large (docs/performance/cpu.md, 'Why the
  // defaults are what they are').
  constexpr std::int64_t kMaxRows = 256, kMaxCols = 512;
  GemmTile tile;
  bool decode = m <= 16;
  tile.bm = decode ? m : std::min(round_up(ceil_div(m, std::int64_t{4}), 16), kMaxRows);
  tile.bn = std::min(round_up(ceil_div(n, std::int64_t{2}), 16), kMaxCols);
  tile.bk = k <= 64 ? 32 : std::min<std::int64_t>(round_up(k, 64), 512);
  return tile;
}

GemmTile scaled_tile(GemmTile tile, Scaling scaling) {
  if (scaling != Scaling::kBlock) return tile;
  tile.bk = kScaleBlock;
  auto most = static_cast<std::uint64_t>(std::min(tile.bn, kScaleBlock));
  tile.bn = static_cast<std::int64_t>(std::bit_floor(most));
  return tile;
}

MainLoop gpu_loop(const GpuLoopDesc& d) {
  STRETTO_CHECK(d.num_sms > 0, "the loop of a product on no SMs");
  bool matrix = d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) <= 2;
  if (!matrix) return {.tile = {.bm = 64, .bn = 64, .bk = 32}, .num_stages = 2};
  if (d.m <= kFewRows) return loop_of_64_rows(d).value_or(streaming_loop(d));
  constexpr std::int64_t kMaxRows = 128;  // two warpgroups of 64 rows
  constexpr std::int64_t kStageBytes = std::int64_t{192} * 1024;
  std::int64_t max_cols = d.swiglu ? 128 : 256;  // accumulators fill half the registers
  bool scaled = d.scaling == Scaling::kBlock;
  // Twice the tiles where half of the SMs would have none.
  bool halves = d.m <= kMaxRows && 2 * ceil_div(d.n, std::int64_t{64}) <= d.num_sms;
  if (halves && d.scaling == Scaling::kNone && size_bytes_of(d) == 2) {
    return {.tile = {64, 64, 64}, .num_stages = d.swiglu ? 6 : 8};
  }
  if (scaled) max_cols /= 2;  // beside the sums, products of their size
  GemmTile tile{.bm = kMaxRows, .bn = 64, .bk = kRowBytes / size_bytes_of(d)};
  // The width that keeps the SMs busiest: waves of tiles times the time of one, which is that of
  // its columns and of tile_cost more. With scales of blocks a tile costs more columns
  // (docs/decisions/0007-fp8-products.md).
  const std::int64_t tile_cost = scaled ? 146 : 16;
  // What narrow tiles load takes longer than their products.
  const bool plain = !scaled && !d.swiglu && size_bytes_of(d) == 2;
  auto columns_in_time = [&](std::int64_t bn) {
    return std::max(bn + tile_cost, plain ? 3 * (tile.bm + bn) / 5 : 0);
  };
  auto waves = [&](std::int64_t bn) {
    std::int64_t tiles = ceil_div(d.m, tile.bm) * ceil_div(d.n, bn);
    return ceil_div(tiles, std::int64_t{d.num_sms}) * columns_in_time(bn);
  };
  for (std::int64_t bn : {96, 128, 160, 192, 224, 256}) {
    if (bn <= max_cols && fits(bn, d.scaling) && waves(bn) <= waves(tile.bn)) tile.bn = bn;
  }
  std::int64_t slice = (tile.bm + tile.bn * (d.swiglu ? 2 : 1)) * kRowBytes;
  return {.tile = tile,
          .num_stages = static_cast<int>(std::min<std::int64_t>(kStageBytes / slice, 6))};
}

// Widths for which warpgroups that end apart were faster. Where each SM has a tile at most they are
// slower: a store has no next tile to hide behind.
int paying_stagger(const GemmTile& tile, std::int64_t num_tiles, int num_sms) {
  if (tile.bm != 128 || num_tiles <= num_sms) return 0;
  switch (tile.bn) {
    case 256:
    case 224:
      return 2;
    case 160:
    case 128:
      return 3;
    default:
      return 0;
  }
}

std::int64_t columns_of_sm(std::int64_t row_tiles, std::int64_t n, std::int64_t bn, int num_sms) {
  return ceil_div(row_tiles * ceil_div(n, bn), std::int64_t{num_sms}) * bn;
}

// Weights [k, n] take tiles of 160 columns: narrower ones were slower.
std::vector<std::int64_t> ping_pong_widths(bool b_kn, std::int64_t widest) {
  if (b_kn) return {160};
  std::vector<std::int64_t> widths = {176, 168, 160, 152, 144};
  std::erase_if(widths, [&](std::int64_t width) { return width > widest; });
  return widths;
}

MainLoop ping_pong_loop(std::int64_t width, int num_compute_sms) {
  return {.tile = {.bm = 128, .bn = width, .bk = 64},
          .num_compute_sms = num_compute_sms,
          .raster = 4,
          .num_stages = 5,
          .num_consumers = 2};
}

// The width that leaves the least of the SMs' time over. A tile takes as long as its columns and
// some twelve more.
MainLoop busiest_ping_pong(std::int64_t row_tiles, std::int64_t n,
                         const std::vector<std::int64_t>& widths, int num_sms) {
  constexpr std::int64_t kEdgeColumns = 12;
  auto time = [&](std::int64_t bn) {
    return columns_of_sm(row_tiles, n, bn, num_sms) / bn * (bn + kEdgeColumns);
  };
  std::int64_t width =
      *std::min_element(widths.begin(), widths.end(),
                        [&](std::int64_t x, std::int64_t y) { return time(x) < time(y); });
  return ping_pong_loop(width, num_sms);
}

// Warpgroups in turn are faster where every SM has several tiles and no more columns than with
// `other`, but for two per cent.
bool turns_pay(const MainLoop& loop, std::int64_t row_tiles, std::int64_t n, const GemmTile& other,
               int num_sms) {
  const std::int64_t bn = loop.tile.bn, columns = columns_of_sm(row_tiles, n, bn, num_sms);
  return columns > 2 * bn && columns * 50 <= columns_of_sm(row_tiles, n, other.bn, num_sms) * 51;
}

void check_sizes(const std::string& op, std::initializer_list<NamedSize> sizes,
                 std::int64_t least) {
  for (const NamedSize& size : sizes) {
    if (size.value < least) {
      throw UserError(
          fmt::format("{}: {} is {}, must be at least {}", op, size.name, size.value, least));
    }
  }
}

void check_dtype(const std::string& op, const char* field, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  throw UserError(
      fmt::format("{}: {} is {}, must be float32, bfloat16 or float16", op, field, name(dtype)));
}

void check_result(const std::string& op, const char* field, DType dtype, DType factors) {
  if (factors != DType::kF64) return check_dtype(op, field, dtype);
  if (dtype == DType::kF64) return;
  throw UserError(
      fmt::format("{}: {} is {}, must be float64 as the factors are", op, field, name(dtype)));
}

void check_factors(const std::string& op, const Factors& f) {
  bool bytes = f.a_dtype == DType::kF8E4M3 && f.b_dtype == DType::kF8E4M3;
  bool doubles = f.a_dtype == DType::kF64 && f.b_dtype == DType::kF64;
  if (!bytes) {
    if (!doubles) check_dtype(op, "a_dtype", f.a_dtype);
    if (!doubles) check_dtype(op, "b_dtype", f.b_dtype);
    if (f.scaling != Scaling::kNone) {
      throw UserError(fmt::format("{}: scaling is {}, needs factors of {}", op, name(f.scaling),
                                  name(DType::kF8E4M3)));
    }
  }
  if (bytes && f.b_kn) {
    throw UserError(fmt::format("{}: b_kn: weights of {} are [n, k]", op, name(f.b_dtype)));
  }
  if (f.scaling != Scaling::kBlock) return;
  auto check_block = [&](const char* field, std::int64_t size) {
    if (kScaleBlock % size == 0) return;
    throw UserError(fmt::format("{}: tile.{} is {}, must divide {} to have one scale", op, field,
                                size, kScaleBlock));
  };
  check_block("bn", f.tile.bn);
  check_block("bk", f.tile.bk);
}

}  // namespace stretto
