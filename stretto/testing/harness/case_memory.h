// The caller's side of one rank of an OpCase: storage of inputs, outputs and state, filled and
// poisoned, with guard zones around local tensors. Shared by the tests (run_case.h) and the
// benchmark (time_case.h).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stretto/launch/executable.h"
#include "stretto/testing/harness/case_data.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

class CaseMemory {
 public:
  // Collective: allocates symmetric tensors on the rank's world. They hold tensors_at_first.
  CaseMemory(Rank& rank, const OpCase& op_case);
  ~CaseMemory();
  CaseMemory(const CaseMemory&) = delete;
  CaseMemory& operator=(const CaseMemory&) = delete;

  const Args& args() const { return args_; }
  // Launches `on`'s program on this memory, at the case's extents.
  void launch(Executable& on) const { on.prepare(args_)->run(extents_); }
  // As before a first launch of another case of the same program: what its tensors_at_first holds
  // on this rank, outputs poisoned, at these extents.
  void take(const TensorsAtFirst& first, const std::vector<std::int64_t>& extents);
  std::span<const std::byte> view(std::size_t tensor_idx) const;
  std::vector<std::byte> bytes_of(std::size_t tensor_idx) const;
  double element(std::size_t tensor_idx, std::size_t element_idx) const;
  // "" or which write left its tensor.
  std::string check_guards() const;

 private:
  struct Storage {
    std::vector<std::byte> owned;
    SymmetricBuffer symmetric;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  void allocate(std::size_t tensor_idx);

  Rank& rank_;
  const Program& program_;  // the case's
  std::vector<Storage> storage_;
  Args args_;
  std::vector<std::int64_t> extents_;
};

}  // namespace stretto
