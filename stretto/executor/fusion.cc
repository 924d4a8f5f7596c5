#include "stretto/executor/fusion.h"

#include <algorithm>

#include "stretto/executor/expr_code.h"
#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

bool is_dot(OpCode code) {
  return code == OpCode::kDot || code == OpCode::kDotAsync || code == OpCode::kDotScaled;
}

// Operations across which a read of memory may not move.
bool pins_memory(const Op& op) {
  switch (op.code) {
    case OpCode::kStore:
    case OpCode::kStoreRows:
    case OpCode::kReduceStore:
    case OpCode::kCopy:
    case OpCode::kLoop:
    case OpCode::kWhen:
      return true;
    default:
      return op_info(op.code).synchronises;
  }
}

bool region_uses(const Region& region, int var) {
  auto uses = [&](const Expr& e) { return uses_var(e, var); };
  return uses(region.rank) || uses(region.row_end) || uses(region.col_end) ||
         std::any_of(region.origin.begin(), region.origin.end(), uses);
}

bool is_dot_factor(const Op& op, int reg) {
  if (!is_dot(op.code)) return false;
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    if (op.operands[i] == reg && i != 1 && i != 2) return false;
  }
  return true;
}

// fp8 has to be widened first.
bool dot_reads_in_place(DType dtype) { return is_float(dtype) && dtype != DType::kF8E4M3; }

}  // namespace

Fusion::Fusion(const Program& program, const Agent& agent)
    : program_(program), agent_(agent), reads_(agent.values.size()), writes_(agent.values.size()) {
  count(agent.body);
  fuse_block(agent.body);
}

std::optional<Fusion::View> Fusion::view_of(const Op* dot, int reg) const {
  auto it = views_.find({dot, reg});
  return it == views_.end() ? std::nullopt : std::optional(it->second);
}

int Fusion::source_of(const Op* op, int reg) const {
  auto it = sources_.find({op, reg});
  return it == sources_.end() ? reg : it->second;
}

void Fusion::count(const Block& block) {
  for (const Op& op : block) {
    for (int reg : op.operands) ++reads_[static_cast<std::size_t>(reg)];
    if (op.result >= 0) ++writes_[static_cast<std::size_t>(op.result)];
    for (const Block& body : op.bodies) count(body);
  }
}

void Fusion::fuse_block(const Block& block) {
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (block[i].code == OpCode::kLoad) fuse_load(block, i);
    if (block[i].code == OpCode::kCast) fuse_cast(block, i);
    for (const Block& body : block[i].bodies) fuse_block(body);
  }
}

void Fusion::fuse_load(const Block& block, std::size_t at) {
  const Op& load = block[at];
  const Tensor& tensor = program_.tensors[static_cast<std::size_t>(load.region->tensor)];
  if (!dot_reads_in_place(tensor.dtype) || tensor.packet) return;
  if (writes_[static_cast<std::size_t>(load.result)] != 1) return;
  // Registers that stand for the region, transposed or not, and the reads each still has to give.
  std::map<int, std::pair<bool, int>> standing = {{load.result, {false, num_reads(load.result)}}};
  std::vector<const Op*> transposes;
  std::vector<std::pair<Reader, bool>> readers;
  for (std::size_t i = at + 1; i < block.size(); ++i) {
    const Op& op = block[i];
    if (pins_memory(op)) break;
    if (op.code == OpCode::kLet && region_uses(*load.region, op.var)) break;
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      auto it = standing.find(op.operands[o]);
      if (it == standing.end()) continue;
      bool transposed = it->second.first;
      --it->second.second;
      if (op.code == OpCode::kTranspose && writes_[static_cast<std::size_t>(op.result)] == 1) {
        standing[op.result] = {!transposed, num_reads(op.result)};
        transposes.push_back(&op);
      } else if (is_dot_factor(op, op.operands[o])) {
        readers.push_back({{&op, op.operands[o]}, transposed});
      } else {
        return;
      }
    }
  }
  for (const auto& [reg, state] : standing) {
    if (state.second != 0) return;  // read elsewhere, or beyond the point up to which it may wait
  }
  for (const auto& [reader, transposed] : readers) {
    views_[reader] = {&*load.region, transposed};
  }
  dropped_.insert(&load);
  dropped_.insert(transposes.begin(), transposes.end());
}

void Fusion::fuse_cast(const Block& block, std::size_t at) {
  const Op& cast = block[at];
  if (writes_[static_cast<std::size_t>(cast.result)] != 1) return;
  DType dtype = agent_.values[static_cast<std::size_t>(cast.result)].dtype;
  int left = num_reads(cast.result);
  std::vector<Reader> readers;
  for (std::size_t i = at + 1; i < block.size() && left > 0; ++i) {
    const Op& op = block[i];
    if (!op.bodies.empty() || op.result == cast.operands[0]) return;
    for (int reg : op.operands) {
      if (reg != cast.result) continue;
      bool plain_store =
          op.code == OpCode::kStore &&
          program_.tensors[static_cast<std::size_t>(op.region->tensor)].dtype == dtype;
      if (!plain_store) return;
      readers.push_back({&op, reg});
      --left;
    }
  }
  if (left != 0) return;
  for (const Reader& reader : readers) sources_[reader] = cast.operands[0];
  dropped_.insert(&cast);
}

bool Fusion::steps_by_tile(const View& view, int var, bool k_is_rows) const {
  const Region& r = *view.region;
  int k_dim = k_is_rows ? r.row_dim : r.col_dim;
  std::int64_t tile_k = k_is_rows ? r.rows : r.cols;
  if (k_dim < 0 || uses_var(r.rank, var) || uses_var(r.row_end, var) || uses_var(r.col_end, var)) {
    return false;
  }
  for (std::size_t d = 0; d < r.origin.size(); ++d) {
    std::int64_t step = 0;
    if (!constant_step(r.origin[d], var, &step)) return false;
    if (step != (static_cast<int>(d) == k_dim ? tile_k : 0)) return false;
  }
  return true;
}

const Op* Fusion::folded_dot(const Op& loop) const {
  const Op* dot = nullptr;
  for (const Op& op : loop.bodies[0]) {
    if (dropped(&op) || op.code == OpCode::kAwait) continue;
    bool plain = op.code == OpCode::kDot || op.code == OpCode::kDotAsync;
    if (dot != nullptr || !plain || op.result != op.operands[0] || !op.exprs.empty())
      return nullptr;
    dot = &op;
  }
  if (dot == nullptr) return nullptr;
  auto a = view_of(dot, dot->operands[1]), b = view_of(dot, dot->operands[2]);
  if (!a || !b) return nullptr;
  bool adjacent =
      steps_by_tile(*a, loop.var, a->transposed) && steps_by_tile(*b, loop.var, !b->transposed);
  return adjacent ? dot : nullptr;
}

}  // namespace stretto
