// Table reads inside `let`: range and contract are checked where the entry is read, so that a bad
// routing table ends the launch with its name instead of a stray access.
#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/executor/machine.h"

namespace stretto {

std::int64_t RankMachine::table_entry(int tensor_idx, std::int64_t entry) const {
  const TensorMem& mem = tensors[static_cast<std::size_t>(tensor_idx)];
  const std::byte* base = mem.at[static_cast<std::size_t>(rank())];
  STRETTO_CHECK(base != nullptr, "a table has no storage");
  const std::byte* at = base + entry * mem.elem_bytes;
  if (mem.dtype == DType::kI32) return *reinterpret_cast<const std::int32_t*>(at);
  if (mem.dtype == DType::kI64) return *reinterpret_cast<const std::int64_t*>(at);
  throw UserError(fmt::format("{}: tensor '{}' is read as a table but is not int32 or int64",
                              program().name,
                              program().tensors[static_cast<std::size_t>(tensor_idx)].name));
}

std::int64_t RankMachine::read(int tensor_idx, std::span<const std::int64_t> index) {
  const TensorMem& mem = tensors[static_cast<std::size_t>(tensor_idx)];
  const Tensor& tensor = program().tensors[static_cast<std::size_t>(tensor_idx)];
  std::int64_t entry = 0;
  Observer::Box box{.tensor = tensor_idx, .rank = rank(), .num_dims = mem.num_dims};
  STRETTO_CHECK(static_cast<int>(index.size()) == mem.num_dims, "table index has the wrong rank");
  for (int d = 0; d < mem.num_dims; ++d) {
    std::int64_t i = index[static_cast<std::size_t>(d)];
    if (i < 0 || i >= mem.shape[d]) {
      throw UserError(fmt::format("{}:{}: table '{}': index {} of dimension {} is outside 0..{}",
                                  current_inst_->op->loc.file, current_inst_->op->loc.line,
                                  tensor.name, i, d, mem.shape[d] - 1));
    }
    entry += i * mem.stride[d];
    box.lo[d] = i;
    box.hi[d] = i + 1;
  }
  if (observer != nullptr) observer->on_access(*current_, *current_inst_, AccessKind::kRead, box);
  std::int64_t value = table_entry(tensor_idx, entry);
  if (tensor.contract.kind != ContractKind::kNone) check_contract(tensor_idx, tensor, entry, value);
  return value;
}

void RankMachine::check_contract(int tensor_idx, const Tensor& tensor, std::int64_t entry,
                                 std::int64_t value) {
  const TensorCode& code = code_.tensors[static_cast<std::size_t>(tensor_idx)];
  std::int64_t lo = code.lo.present() ? code.lo.eval(vars_) : value;
  std::int64_t hi = code.hi.present() ? code.hi.eval(vars_) : value + 1;
  auto fail = [&](const std::string& what) {
    throw UserError(fmt::format("{}: table '{}' breaks its contract: entry {} is {}, {}",
                                program().name, tensor.name, entry, value, what));
  };
  if (value < lo || value >= hi) fail(fmt::format("need {} <= entry < {}", lo, hi));
  if (tensor.contract.kind == ContractKind::kAscending && entry > 0) {
    std::int64_t before = table_entry(tensor_idx, entry - 1);
    if (before > value) fail(fmt::format("below the entry before it, {}", before));
  }
  // Only inputs are complete before the first read.
  if (tensor.contract.kind == ContractKind::kPermutation && tensor.kind == TensorKind::kInput &&
      tensor.shape.size() == 1) {
    check_permutation(tensor_idx, tensor);
  }
}

void RankMachine::check_permutation(int tensor_idx, const Tensor& tensor) {
  auto idx = static_cast<std::size_t>(tensor_idx);
  if (permutation_checked_[idx]) return;
  permutation_checked_[idx] = true;
  std::int64_t lo = code_.tensors[idx].lo.eval(vars_);
  std::int64_t hi = code_.tensors[idx].hi.eval(vars_);
  seen_.assign(static_cast<std::size_t>(std::max<std::int64_t>(hi - lo, 0)), false);
  for (std::int64_t i = 0; i < tensors[idx].shape[0]; ++i) {
    std::int64_t value = table_entry(tensor_idx, i);
    bool inside = value >= lo && value < hi;
    if (!inside || seen_[static_cast<std::size_t>(value - lo)]) {
      throw UserError(fmt::format(
          "{}: table '{}' breaks its contract: entry {} is {}, {}", program().name, tensor.name, i,
          value, inside ? "which occurs before" : fmt::format("need {} <= entry < {}", lo, hi)));
    }
    seen_[static_cast<std::size_t>(value - lo)] = true;
  }
}

}  // namespace stretto
