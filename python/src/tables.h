// What the tables of a launch promise, looked at before the other ranks are met: whoever breaks a
// promise refuses the call, for whom the others would else wait in the middle of the launch. Comes
// before the executor, which looks again at what it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto::python {

class InputTables {
 public:
  // Of `program`, which outlives this. `arguments`: its tensors that a caller passes, by place.
  InputTables(const Program& program, int rank, std::span<const std::size_t> arguments);

  // `args`: the rank's own arrays, dense at the program's bounds, of which there is what the
  // extents say. UserError that names a table and the entry that breaks its contract, of a call of
  // that name.
  void require(std::string_view call, std::span<std::byte* const> args,
               std::span<const std::int64_t> extents) const;

 private:
  struct Table {
    std::size_t arg, tensor;
    std::vector<std::int64_t> strides;  // elements
  };
  void require(std::string_view call, const Table& table, const std::byte* data,
               std::span<const std::int64_t> vars) const;

  const Program& program_;
  int rank_;
  std::vector<Table> tables_;
};

}  // namespace stretto::python
