// From a tile program to what runs: the list of steps, and nothing else.
#pragma once

#include <memory>

#include "stretto/ir/program.h"
#include "stretto/ir/quota.h"
#include "stretto/passes/pass.h"

namespace stretto {

struct CompileOptions {
  bool require_proof =
      true;  // Rejected with the report unless the program is proved (cached on disk)
  // For launches that have every extent at its bound, which is all that is proved then: a large
  // product takes a second instead of a minute.
  bool bounds_only = false;
  AfterPass after;  // called after each pass
};

struct CompiledProgram {
  std::shared_ptr<const Program> schedule;
  Quotas quotas;
  bool bounds_only = false;  // as in CompileOptions: whoever launches it sees to it
};

// UserError for a bad program, Rejected for one that cannot be proved.
CompiledProgram compile(Program program, const CompileOptions& options = {});
// What compile() ends with where it requires a proof, for whoever does something else meanwhile.
void require_proof(const CompiledProgram& program);

}  // namespace stretto
