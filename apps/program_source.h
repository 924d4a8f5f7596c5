// What OP, FILE.cc and FILE.ir name on the command line: programs. A C++ file defines
//   stretto::Program stretto_program(int world_size);
// or stretto_program(const stretto::ProgramShape&), to be told sizes (lang/program_shape.h),
// and is compiled with the system's C++ compiler against the installed headers, cached by content.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/lang/program_file.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct NamedProgram {
  std::string label;  // "ag_gemm m=37 n=29 k=51 bf16 P=4"
  Program program;
};

class ProgramSource {
 public:
  // UserError when `text` is neither an operator nor a readable program file.
  explicit ProgramSource(const std::string& text);

  const OperatorInfo* op() const { return op_; }  // null for files
  // The program at a shape. UserError for sizes given to a file that has its own; an IR file must
  // have the shape's world size.
  Program program(const OpShape& shape) const;
  // The shapes that tests cover at this world size; files have one, with their own sizes.
  std::vector<NamedProgram> programs(int world_size) const;
  // World size of an IR file, which is fixed.
  std::optional<int> fixed_world_size() const;
  // Whether its sizes and types are its own: it is told neither.
  bool has_own_shape() const;

 private:
  std::string text_;
  const OperatorInfo* op_ = nullptr;
  std::optional<Program> parsed_;
  std::optional<ProgramFile> file_;
};

// "A..B" or "N"; UserError outside 1..64.
struct RankRange {
  int first = 1, last = 8;
};
RankRange parse_ranks(const std::string& text);

std::string to_string(const OpShape& shape);  // sizes that are left open are left out
bool has_sizes(const OpShape& shape);
// ", m=256 is the next ..." where an operator's program has more rows than were asked for, which
// are what is measured and predicted then; else nothing.
std::string rows_note(const OpShape& asked, const Program& program);

}  // namespace stretto
