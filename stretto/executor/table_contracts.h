// What tables promise of their entries (range, order, permutation, partition), held against what
// they have, so that a bad routing table ends the launch instead of leading to a stray access. A
// table that is an input is looked at as a whole, the first time a launch reads it; any other where
// it is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/executor/code.h"
#include "stretto/executor/tensor_mem.h"

namespace stretto {

struct BrokenEntry {
  std::int64_t entry = 0;  // by its place among the elements
  std::string what;        // "need 0 <= entry < 4"
};

class TableContracts {
 public:
  // All outlive this; `vars` has the rank and a launch's extents.
  TableContracts(const ProgramCode& code, const std::vector<TensorMem>& tensors,
                 const std::vector<std::int64_t>& vars);

  void begin_launch() {
    if (any_checked_) checked_.assign(checked_.size(), false);
    any_checked_ = false;
  }
  // UserError for a tensor that holds no whole numbers.
  std::int64_t entry(int tensor, std::int64_t entry) const;
  // Of a table that is read at an entry; the first entry that breaks its contract.
  std::optional<BrokenEntry> check(int tensor, std::int64_t entry);
  // Of any tensor that tiles or rows are read of; nothing but for tables that are inputs.
  std::optional<BrokenEntry> check_tile(int tensor);

 private:
  std::optional<BrokenEntry> check_table(int tensor, int dim, std::int64_t first) const;
  std::optional<BrokenEntry> check_entry(int tensor, std::int64_t entry) const;
  std::optional<BrokenEntry> check_permutation(int tensor);

  const ProgramCode& code_;
  const std::vector<TensorMem>& tensors_;
  const std::vector<std::int64_t>& vars_;
  std::vector<bool> checked_;  // [tensor] in this launch
  bool any_checked_ = false;
  std::vector<bool> seen_;  // scratch of check_permutation
};

}  // namespace stretto
