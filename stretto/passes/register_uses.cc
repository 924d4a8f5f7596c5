#include "stretto/passes/register_uses.h"

#include <algorithm>

namespace stretto {

bool RegisterUses::touches(const RegisterUses& later) const {
  auto meet = [](const std::set<int>& a, const std::set<int>& b) {
    return std::any_of(a.begin(), a.end(), [&](int reg) { return b.count(reg) != 0; });
  };
  return meet(writes, later.reads) || meet(writes, later.writes) || meet(reads, later.writes);
}

void add_uses(const Op& op, RegisterUses& uses) {
  uses.reads.insert(op.operands.begin(), op.operands.end());
  if (op.result >= 0) uses.writes.insert(op.result);
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) add_uses(inner, uses);
  }
}

RegisterUses uses_of(const Op& op) {
  RegisterUses uses;
  add_uses(op, uses);
  return uses;
}

bool is_pure(const Op& op) {
  switch (op.code) {
    case OpCode::kFill:
    case OpCode::kIota:
    case OpCode::kSplat:
    case OpCode::kUnary:
    case OpCode::kBinary:
    case OpCode::kWhere:
    case OpCode::kCast:
    case OpCode::kTranspose:
    case OpCode::kBroadcast:
    case OpCode::kReduce:
    case OpCode::kCopyValue:
    case OpCode::kColumns:
      return true;
    case OpCode::kWhen:
      return std::all_of(op.bodies.begin(), op.bodies.end(), [](const Block& body) {
        return std::all_of(body.begin(), body.end(), is_pure);
      });
    default:
      return false;
  }
}

bool is_await_all(const Op& op) { return op.code == OpCode::kAwait && op.exprs[0].is_const(0); }

std::int64_t warpgroups_of(const Role& role, const ValueType& tile) {
  if (role.resource.num_consumers > 1) return 1;
  std::int64_t rows = tile.rows / role.resource.cluster_size;
  return rows > 128 && rows % 192 == 0 ? 3 : rows > 64 ? 2 : 1;
}

std::int64_t registers_of(const Role& role, const ValueType& tile) {
  std::int64_t rows = std::max<std::int64_t>(tile.rows / role.resource.cluster_size, 64);
  std::int64_t bytes = rows * tile.cols * static_cast<std::int64_t>(size_bytes(tile.dtype));
  return ceil_div(bytes, 4 * 128 * warpgroups_of(role, tile));
}

Op await(std::int64_t keep, const SourceLoc& loc) {
  return {.code = OpCode::kAwait, .exprs = {keep}, .loc = loc};
}

}  // namespace stretto
