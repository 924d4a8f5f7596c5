#include "stretto/executor/table_contracts.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"

namespace stretto {

TableContracts::TableContracts(const ProgramCode& code, const std::vector<TensorMem>& tensors,
                               const std::vector<std::int64_t>& vars)
    : code_(code), tensors_(tensors), vars_(vars), checked_(code.program->tensors.size(), false) {}

std::int64_t TableContracts::entry(int tensor, std::int64_t entry) const {
  const TensorMem& mem = tensors_[static_cast<std::size_t>(tensor)];
  const std::byte* base = mem.at[static_cast<std::size_t>(code_.rank)];
  STRETTO_CHECK(base != nullptr, "a table has no storage");
  const std::byte* at = base + entry * mem.elem_bytes;
  if (mem.dtype == DType::kI32) return *reinterpret_cast<const std::int32_t*>(at);
  if (mem.dtype == DType::kI64) return *reinterpret_cast<const std::int64_t*>(at);
  throw UserError(fmt::format("{}: tensor '{}' is read as a table but is not int32 or int64",
                              code_.program->name,
                              code_.program->tensors[static_cast<std::size_t>(tensor)].name));
}

std::optional<BrokenEntry> TableContracts::check_tile(int tensor) {
  const Tensor& t = code_.program->tensors[static_cast<std::size_t>(tensor)];
  return t.kind == TensorKind::kInput ? check(tensor, 0) : std::nullopt;
}

std::optional<BrokenEntry> TableContracts::check(int tensor, std::int64_t entry) {
  auto idx = static_cast<std::size_t>(tensor);
  const Tensor& t = code_.program->tensors[idx];
  if (t.contract.kind == ContractKind::kNone) return std::nullopt;
  // Only inputs are complete before the first read.
  if (t.kind != TensorKind::kInput) return check_entry(tensor, entry);
  if (checked_[idx]) return std::nullopt;
  checked_[idx] = any_checked_ = true;
  std::optional<BrokenEntry> broken = check_table(tensor, 0, 0);
  if (broken || t.contract.kind != ContractKind::kPermutation) return broken;
  return check_permutation(tensor);
}

// All entries of the run-time shape from dimension `dim` on, `first` being the first of them.
std::optional<BrokenEntry> TableContracts::check_table(int tensor, int dim,
                                                       std::int64_t first) const {
  const TensorMem& mem = tensors_[static_cast<std::size_t>(tensor)];
  if (dim == mem.num_dims) return check_entry(tensor, first);
  for (std::int64_t i = 0; i < mem.shape[dim]; ++i) {
    if (auto broken = check_table(tensor, dim + 1, first + i * mem.stride[dim])) return broken;
  }
  return std::nullopt;
}

std::optional<BrokenEntry> TableContracts::check_entry(int tensor, std::int64_t at) const {
  auto idx = static_cast<std::size_t>(tensor);
  const TensorCode& code = code_.tensors[idx];
  std::int64_t value = entry(tensor, at);
  std::int64_t lo = code.lo.present() ? code.lo.eval(vars_) : value;
  std::int64_t hi = code.hi.present() ? code.hi.eval(vars_) : value + 1;
  auto broken = [&](std::string what) { return BrokenEntry{at, std::move(what)}; };
  if (value < lo || value >= hi) return broken(fmt::format("need {} <= entry < {}", lo, hi));
  ContractKind kind = code_.program->tensors[idx].contract.kind;
  bool ascends = kind == ContractKind::kAscending || kind == ContractKind::kPartition;
  if (ascends && at > 0 && entry(tensor, at - 1) > value) {
    return broken(fmt::format("below the entry before it, {}", entry(tensor, at - 1)));
  }
  if (kind != ContractKind::kPartition) return std::nullopt;
  if (at == 0 && value != lo) return broken(fmt::format("a partition begins with {}", lo));
  if (at + 1 == tensors_[idx].shape[0] && value != hi - 1) {
    return broken(fmt::format("a partition ends with {}", hi - 1));
  }
  return std::nullopt;
}

// After check_table: all entries are in range.
std::optional<BrokenEntry> TableContracts::check_permutation(int tensor) {
  auto idx = static_cast<std::size_t>(tensor);
  if (tensors_[idx].num_dims != 1) return std::nullopt;
  std::int64_t lo = code_.tensors[idx].lo.eval(vars_);
  std::int64_t hi = code_.tensors[idx].hi.eval(vars_);
  seen_.assign(static_cast<std::size_t>(std::max<std::int64_t>(hi - lo, 0)), false);
  for (std::int64_t i = 0; i < tensors_[idx].shape[0]; ++i) {
    std::int64_t value = entry(tensor, i);
    if (value < 0) continue;
    std::vector<bool>::reference seen = seen_[static_cast<std::size_t>(value - lo)];
    if (seen) return BrokenEntry{i, "which occurs before"};
    seen = true;
  }
  return std::nullopt;
}

}  // namespace stretto
