// The linear code that the executor runs: what translate.h makes of a program for one rank. Loops
// and `when` are jumps, so an agent is resumable at any instruction; expressions are compiled;
// loads that only feed a dot have become views of memory, and a loop of nothing but such a dot has
// become one dot over the whole k range.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/executor/expr_code.h"
#include "stretto/ir/program.h"

namespace stretto {

// A Region with its expressions compiled.
struct RegionCode {
  int tensor = -1;
  ExprCode rank;                 // absent: the own rank
  std::vector<ExprCode> origin;  // one entry per tensor dimension
  int row_dim = -1, col_dim = 0;
  std::int64_t rows = 1, cols = 1;
  ExprCode row_end, col_end;
};

// Where a dot takes an operand from: a register, or memory.
struct DotSource {
  int reg = -1;
  int region = -1;          // index into AgentCode::regions where reg == -1
  bool transposed = false;  // the dot sees the region's rows as its columns
};

struct DotCode {
  int result = -1, acc = -1;
  bool zero_acc = false;  // acc is known to be zero and need not be read
  DotSource a, b;
  int scale_a = -1, scale_b = -1;  // kDotScaled
  std::int64_t sums_from = -1;     // the first column for sums of a's rows
  // A folded loop: `var` runs over [exprs lo, hi), every turn advancing k by one tile.
  bool folded = false;
};

enum class Flow : std::uint8_t {
  kOp,
  kLoopBegin,   // var = exprs[0], limit = exprs[1]; to target where empty
  kLoopNext,    // ++var; to target where more remain
  kBranchZero,  // to target where exprs[0] == 0
  kJump,        // to target
  kEnd,         // end of the tile
};

struct Inst {
  Flow flow = Flow::kOp;
  OpCode code = OpCode::kLet;
  int result = -1;
  int operands[3] = {-1, -1, -1};
  int region = -1, region2 = -1;  // indices into AgentCode::regions
  int expr = -1;                  // first of its expressions in AgentCode::exprs
  int num_exprs = 0;
  int var = -1;
  int symbol = -1;
  int target = -1;         // instruction index
  int depth = 0;           // loop depth, where the loop's limit is kept
  int dot = -1;            // index into AgentCode::dots
  const Op* op = nullptr;  // the source operation: attributes and the user's line
};

struct AgentCode {
  const Agent* agent = nullptr;
  std::vector<Inst> insts;
  std::vector<RegionCode> regions;
  std::vector<ExprCode> exprs;
  std::vector<DotCode> dots;
  std::vector<bool> uses_register;  // [agent->values.size()] registers that need storage
  std::size_t scratch_bytes = 0;    // of kDotScaled: one product tile
  int loop_depth = 0;
};

struct RoleCode {
  const Role* role = nullptr;
  ExprCode num_tiles;
  std::int64_t max_tiles = 0;  // at the extents' bounds
  std::vector<AgentCode> agents;
};

// A tensor dimension that depends on extents.
struct DynamicDim {
  int tensor, dim;
  ExprCode extent;
};

struct TensorCode {
  std::vector<std::int64_t> shape;   // at the bounds
  std::vector<std::int64_t> stride;  // elements
  std::int64_t elements = 1;         // one slot
  std::size_t slot_bytes = 0, bytes = 0;
  ExprCode lo, hi;  // contract
};

// Everything about a program that one rank needs and no launch changes.
struct ProgramCode {
  std::shared_ptr<const Program> program;
  int rank = 0;
  std::vector<TensorCode> tensors;
  std::vector<DynamicDim> dynamic_dims;
  std::vector<int> launch_vars;           // kExtent and kScalar, in declaration order
  std::vector<std::int64_t> signal_base;  // first counter of each signal within the block
  std::int64_t num_counters = 0;
  AgentCode on_start, on_end;
  std::vector<RoleCode> roles;
};

}  // namespace stretto
