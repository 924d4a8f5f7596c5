#include "tables.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto::python {
namespace {

std::int64_t entry_of(const Tensor& table, const std::byte* data, std::int64_t entry) {
  if (table.dtype == DType::kI64) return reinterpret_cast<const std::int64_t*>(data)[entry];
  return reinterpret_cast<const std::int32_t*>(data)[entry];
}

// Calls visit(entry) for each element of that shape, in order.
template <typename Visit>
void for_each_entry(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                    std::int64_t first, const Visit& visit) {
  if (shape.empty()) return visit(first);
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    for_each_entry(shape.subspan(1), strides.subspan(1), first + i * strides[0], visit);
  }
}

}  // namespace

InputTables::InputTables(const Program& program, int rank, std::span<const std::size_t> arguments)
    : program_(program), rank_(rank) {
  for (std::size_t arg = 0; arg < arguments.size(); ++arg) {
    const Tensor& t = program.tensors[arguments[arg]];
    bool has_entries = t.dtype == DType::kI32 || t.dtype == DType::kI64;
    bool promises = t.contract.kind != ContractKind::kNone;
    if (t.kind != TensorKind::kInput || !promises || !has_entries) continue;
    std::vector<std::int64_t> strides = bound_shape(program, static_cast<int>(arguments[arg]));
    std::int64_t elements = 1;
    for (std::size_t d = strides.size(); d-- > 0;) {
      elements *= std::exchange(strides[d], elements);
    }
    tables_.push_back({arg, arguments[arg], std::move(strides)});
  }
}

void InputTables::require(std::string_view call, std::span<std::byte* const> args,
                          std::span<const std::int64_t> extents) const {
  if (tables_.empty()) return;
  std::vector<std::int64_t> vars = initial_vars(program_, rank_, {extents.begin(), extents.end()});
  for (const Table& table : tables_) require(call, table, args[table.arg], vars);
}

void InputTables::require(std::string_view call, const Table& table, const std::byte* data,
                          std::span<const std::int64_t> vars) const {
  const Tensor& t = program_.tensors[table.tensor];
  std::vector<std::int64_t> shape;
  for (const Expr& dim : t.shape) shape.push_back(eval(dim, vars));
  using Limits = std::numeric_limits<std::int64_t>;
  std::int64_t lo = t.contract.lo.has_value() ? eval(t.contract.lo, vars) : Limits::min();
  std::int64_t hi = t.contract.hi.has_value() ? eval(t.contract.hi, vars) : Limits::max();
  auto broken = [&](std::int64_t entry, const std::string& what) {
    throw UserError(fmt::format("{}: table '{}' breaks its contract: entry {} is {}, {}",
                                call, t.name, entry, entry_of(t, data, entry), what));
  };
  ContractKind kind = t.contract.kind;
  bool is_partition = kind == ContractKind::kPartition;
  std::unordered_set<std::int64_t> seen;
  for_each_entry(shape, table.strides, 0, [&](std::int64_t entry) {
    std::int64_t value = entry_of(t, data, entry);
    if (value < lo || value >= hi) broken(entry, fmt::format("need {} <= entry < {}", lo, hi));
    if (kind == ContractKind::kPermutation && value >= 0 && !seen.insert(value).second) {
      broken(entry, "which occurs before");
    }
    bool ascends = kind == ContractKind::kAscending || is_partition;
    if (ascends && entry > 0 && entry_of(t, data, entry - 1) > value) {
      broken(entry, fmt::format("below the entry before it, {}", entry_of(t, data, entry - 1)));
    }
    if (is_partition && entry == 0 && value != lo) {
      broken(entry, fmt::format("a partition begins with {}", lo));
    }
    if (is_partition && entry + 1 == shape[0] && value != hi - 1) {
      broken(entry, fmt::format("a partition ends with {}", hi - 1));
    }
  });
}

}  // namespace stretto::python
