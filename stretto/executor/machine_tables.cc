// Table reads inside `let`: index and contract are checked, so that a bad routing table ends the
// launch with a Fault that names it instead of a stray access. A table that is an input is checked
// as a whole, the first time a launch reads it, tiles and picked rows of it included; any other
// where it is read.
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
  if (tensor.contract.kind != ContractKind::kNone) check_contract(tensor_idx, entry);
  return value;
}

void RankMachine::check_contract_of_tile(int tensor_idx) {
  const Tensor& tensor = program().tensors[static_cast<std::size_t>(tensor_idx)];
  bool table = tensor.kind == TensorKind::kInput && tensor.contract.kind != ContractKind::kNone;
  if (table) check_contract(tensor_idx, 0);
}

void RankMachine::check_contract(int tensor_idx, std::int64_t entry) {
  auto idx = static_cast<std::size_t>(tensor_idx);
  const Tensor& tensor = program().tensors[idx];
  // Only inputs are complete before the first read.
  if (tensor.kind != TensorKind::kInput) return check_entry(tensor_idx, entry);
  if (contract_checked_[idx]) return;
  contract_checked_[idx] = true;
  check_table(tensor_idx, 0, 0);
  if (tensor.contract.kind == ContractKind::kPermutation) check_permutation(tensor_idx);
}

// All entries of the run-time shape from dimension `dim` on, `first` being the first of them.
void RankMachine::check_table(int tensor_idx, int dim, std::int64_t first) {
  const TensorMem& mem = tensors[static_cast<std::size_t>(tensor_idx)];
  if (dim == mem.num_dims) return check_entry(tensor_idx, first);
  for (std::int64_t i = 0; i < mem.shape[dim]; ++i) {
    check_table(tensor_idx, dim + 1, first + i * mem.stride[dim]);
  }
}

void RankMachine::broken_contract(int tensor_idx, std::int64_t entry,
                                  const std::string& what) const {
  throw Fault({.program = program().name,
               .role = role_name(*current_),
               .rank = rank(),
               .tile = current_->tile,
               .reason = fmt::format("table '{}' breaks its contract: entry {} is {}, {}",
                                     program().tensors[static_cast<std::size_t>(tensor_idx)].name,
                                     entry, table_entry(tensor_idx, entry), what)});
}

void RankMachine::check_entry(int tensor_idx, std::int64_t entry) const {
  auto idx = static_cast<std::size_t>(tensor_idx);
  const TensorCode& code = code_.tensors[idx];
  std::int64_t value = table_entry(tensor_idx, entry);
  std::int64_t lo = code.lo.present() ? code.lo.eval(vars_) : value;
  std::int64_t hi = code.hi.present() ? code.hi.eval(vars_) : value + 1;
  if (value < lo || value >= hi) {
    broken_contract(tensor_idx, entry, fmt::format("need {} <= entry < {}", lo, hi));
  }
  ContractKind kind = program().tensors[idx].contract.kind;
  bool ascends = kind == ContractKind::kAscending || kind == ContractKind::kPartition;
  if (ascends && entry > 0 && table_entry(tensor_idx, entry - 1) > value) {
    broken_contract(
        tensor_idx, entry,
        fmt::format("below the entry before it, {}", table_entry(tensor_idx, entry - 1)));
  }
  if (kind != ContractKind::kPartition) return;
  if (entry == 0 && value != lo) {
    broken_contract(tensor_idx, entry, fmt::format("a partition begins with {}", lo));
  }
  if (entry + 1 == tensors[idx].shape[0] && value != hi - 1) {
    broken_contract(tensor_idx, entry, fmt::format("a partition ends with {}", hi - 1));
  }
}

// After check_table: all entries are in range.
void RankMachine::check_permutation(int tensor_idx) {
  auto idx = static_cast<std::size_t>(tensor_idx);
  if (tensors[idx].num_dims != 1) return;
  std::int64_t lo = code_.tensors[idx].lo.eval(vars_);
  std::int64_t hi = code_.tensors[idx].hi.eval(vars_);
  seen_.assign(static_cast<std::size_t>(std::max<std::int64_t>(hi - lo, 0)), false);
  for (std::int64_t i = 0; i < tensors[idx].shape[0]; ++i) {
    std::vector<bool>::reference seen =
        seen_[static_cast<std::size_t>(table_entry(tensor_idx, i) - lo)];
    if (seen) broken_contract(tensor_idx, i, "which occurs before");
    seen = true;
  }
}

}  // namespace stretto
