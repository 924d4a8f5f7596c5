#include "stretto/ops/attention/cached_rows.h"

#include "stretto/ops/operator/quantized_rows.h"

namespace stretto {

CachedRows::CachedRows(ProgramBuilder& p, const std::string& kind, const CachedRowsDesc& d,
                       bool written)
    : p_(&p), d_(d) {
  auto declare = [&](const char* part, DType dtype, std::int64_t cols) {
    std::vector<Index> shape = {d.entries, d.page, cols};
    return written ? p.state(kind + part, dtype, shape) : p.input(kind + part, dtype, shape);
  };
  pages_ = declare("_pages", d.fp8 ? DType::kF8E4M3 : d.dtype, d.head_dim);
  if (d.fp8) scales_ = declare("_scales", DType::kF32, 1);
}

void CachedRows::store(const Index& entry, const Index& row, std::int64_t heads,
                       const Value& rows) const {
  Slice to = pages_.tile({entry, row, 0}, heads, d_.head_dim).rows_along(0);
  if (!d_.fp8) return p_->store(to, rows);
  QuantizedRows of = quantized_rows(*p_, rows);
  p_->store(to, of.rows);
  p_->store(scales_.tile({entry, row, 0}, heads, 1).rows_along(0), of.scales());
}

Value CachedRows::load(const Index& entry, const Index& row, std::int64_t count,
                       const Index& end) const {
  Value rows = p_->load(pages_.tile({entry, row, 0}, count, d_.head_dim).until_row(end));
  if (!d_.fp8) return rows;
  Value scales = p_->load(scales_.tile({entry, row, 0}, count, 1).until_row(end));
  return cast(cast(rows, DType::kF32) * scales, d_.dtype);
}

// Turned before it is scaled: of what lies in a slot that is a view.
Value CachedRows::load_transposed(const Index& entry, const Index& row, std::int64_t count,
                                  const Index& end) const {
  Value rows = p_->load(pages_.tile({entry, row, 0}, count, d_.head_dim).until_row(end)).T();
  if (!d_.fp8) return rows;
  Slice of_rows = scales_.tile({entry, row, 0}, 1, count).rows_along(2).cols_along(1);
  return cast(cast(rows, DType::kF32) * p_->load(of_rows.until_col(end)), d_.dtype);
}

}  // namespace stretto
