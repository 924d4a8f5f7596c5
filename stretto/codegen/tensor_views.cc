// What TMA can address of a tensor.
#include "stretto/codegen/expr_text.h"
#include "stretto/codegen/role_plan.h"

namespace stretto {
namespace {

// A box from elsewhere on ends in an illegal instruction (H100, H200), for loads as for stores.
bool columns_on_granules(const Tensor& tensor, const Region& region, const Block& body) {
  auto size = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  return region.col_dim < 0 ||
         known_factor(region.origin[static_cast<std::size_t>(region.col_dim)], body) * size % 16 ==
             0;
}

}  // namespace

std::vector<std::int64_t> row_major_strides(const Program& program, int tensor) {
  std::vector<std::int64_t> shape = bound_shape(program, tensor);
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

const char* tma_refusal(const Program& program, const Region& region, const Block& body) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(region.tensor)];
  if (t.shape.size() > 3) return "more than three dimensions";
  return columns_on_granules(t, region, body) ? "rows that are not multiples of 16 bytes"
                                              : "columns that are not multiples of 16 bytes";
}

bool tensor_map_of(const Program& program, const Region& region, const Block& body,
                   TensorMapPlan& out) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(region.tensor)];
  int dims = static_cast<int>(t.shape.size());
  if (region.col_dim != dims - 1 || dims > 3 || t.packet) return false;
  if (!columns_on_granules(t, region, body)) return false;
  std::vector<std::int64_t> strides = row_major_strides(program, region.tensor);
  for (int d = 0; d < dims - 1; ++d) {
    auto bytes =
        strides[static_cast<std::size_t>(d)] * static_cast<std::int64_t>(size_bytes(t.dtype));
    if (bytes % 16 != 0) return false;
  }
  out.tensor = region.tensor;
  out.rank = region.rank.has_value() && !region.rank.same(Expr::var(0)) ? 0 : -1;
  out.row_dim = region.row_dim;
  out.outer_dim = -1;
  for (int d = 0; d < dims - 1; ++d) {
    if (d == region.row_dim) continue;
    if (out.outer_dim >= 0) return false;
    out.outer_dim = d;
  }
  if (out.row_dim < 0) {  // one row: its dimension is whatever is left
    out.row_dim = out.outer_dim;
    out.outer_dim = -1;
    for (int d = 0; d < dims - 1; ++d) {
      if (d != out.row_dim) out.outer_dim = d;
    }
  }
  // Slots lie behind each other at the bound's distance, so their number must not depend on a run.
  if (t.num_slots > 1) {
    if (dims == 1) return false;
    if (out.outer_dim >= 0 && !t.shape[static_cast<std::size_t>(out.outer_dim)].is_const()) {
      return false;
    }
    std::size_t slot =
        storage_bytes(program, region.tensor) / static_cast<std::size_t>(t.num_slots);
    if (slot % 16 != 0 || out.outer_dim > 0) return false;
  }
  return true;
}

}  // namespace stretto
