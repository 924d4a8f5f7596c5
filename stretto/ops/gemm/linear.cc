#include "stretto/ops/gemm/linear.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

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
  auto [rows, cols] = desc_.swap_ab ? std::pair(tile.bn, tile.bm) : std::pair(tile.bm, tile.bn);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    acc.of.push_back(p_->zeros(sum_dtype(desc_.dtype), rows, cols));
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
  return desc_.b_kn != desc_.swap_ab ? b : b.T();
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
    Value of_step = p_->load(rows.a(k));  // [bm, bk]
    Value a = desc_.swap_ab ? of_step.T() : of_step;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Index& col = parts[part].col;
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        Value b = step_of_weight(weights_[i], tile, col, k, columns);
        Value& sum = parts[part].sums->of[i];
        sum = block           ? dot_scaled(sum, a, b, scales[part][i])
              : desc_.swap_ab ? dot(sum, b, a)
                              : dot(sum, a, b);
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
