// One row per operation: its name in the text form and what the verifier, the printer and the
// passes need to know.
#pragma once

#include <string_view>

#include "stretto/ir/program.h"

namespace stretto {

struct OpInfo {
  OpCode code;
  const char* name;
  bool has_result;
  int min_operands, max_operands;
  int min_exprs, max_exprs;
  int num_regions;
  int num_bodies;
  bool tile_level, schedule_level;
  bool synchronises;  // orders agents: no access may be folded across it
};

const OpInfo& op_info(OpCode code);
// nullptr where no operation has that name.
const OpInfo* find_op(std::string_view op_name);

const char* name(UnaryOp op);
const char* name(BinaryOp op);
const char* name(ReduceOp op);
const char* name(NotifyMode mode);
const char* name(ResourceKind kind);
const char* name(ProductOrder products);  // "ahead", "ahead_in_turn", ...
const char* name(TensorKind kind);

}  // namespace stretto
