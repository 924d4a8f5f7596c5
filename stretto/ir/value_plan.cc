#include "stretto/ir/value_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

constexpr int kDefaultThreads = 256;
constexpr int kLanesOfCopiedRow = 8;  // 128 bytes, as rows of factors have
// Of packets that go in lines (codegen/packet_lines.h), 16 bytes of each thread: what a warp has of
// one row, or of two or four.
constexpr std::int64_t kPayloadOfLines = 512;
// Else of a thread's 16 bytes. With more in a row the accesses of a warp would lie 32 bytes apart,
// and links carry sectors of 32 bytes, half of which would be empty.
constexpr int kPayloadOfAccess = 8;

std::int64_t pow2_at_least(std::int64_t v) {
  std::int64_t p = 1;
  while (p < v) p *= 2;
  return p;
}

class ValuePlanner {
 public:
  ValuePlanner(const Agent& agent, int cluster) : agent_(agent) {
    plan_.cluster = cluster;
    plan_.values.resize(agent.values.size());
    parent_.resize(agent.values.size());
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  AgentPlan run() {
    for_each_op(agent_.body, [&](const Op& op) { note_uses(op); });
    for_each_op(agent_.body, [&](const Op& op) { note_slots(op); });
    choose_threads();
    choose_layouts();
    return std::move(plan_);
  }

 private:
  ValuePlan& plan(int reg) { return plan_.values[static_cast<std::size_t>(reg)]; }
  const ValueType& type(int reg) const { return agent_.values[static_cast<std::size_t>(reg)]; }
  int root(int reg) {
    while (parent_[static_cast<std::size_t>(reg)] != reg) {
      reg = parent_[static_cast<std::size_t>(reg)];
    }
    return reg;
  }
  void join(int a, int b) { parent_[static_cast<std::size_t>(root(a))] = root(b); }

  void note_uses(const Op& op) {
    switch (op.code) {
      case OpCode::kDot:
      case OpCode::kDotAsync:
      case OpCode::kDotScaled:
        join(op.result, op.operands[0]);
        plan(op.operands[0]).used_elsewhere = true;
        plan(op.operands[1]).used_by_dot = plan(op.operands[2]).used_by_dot = true;
        for (std::size_t i = 3; i < op.operands.size(); ++i) {
          join(op.result, op.operands[i]);
          plan(op.operands[i]).used_elsewhere = true;
        }
        if (dot_kind(agent_, op) == DotKind::kWgmma) {
          fragments_.push_back(op.result);
          product_ = &op;
          dot_rows_ = std::max(dot_rows_, type(op.result).rows);
          left_.push_back(op.operands[1]);
        }
        return;
      case OpCode::kTranspose:
        return;  // a view, or a move through shared memory
      case OpCode::kPipePut:
        for (int reg : op.operands) {
          plan(reg).used_elsewhere = true;
          row_numbers_.push_back(reg);
        }
        return;
      case OpCode::kStorePacket:
      case OpCode::kLoadPacket:
        packets_.push_back(op.result >= 0 ? op.result : op.operands[0]);
        [[fallthrough]];
      default:
        for (int reg : op.operands) {
          plan(reg).used_elsewhere = true;
          join(op.result >= 0 ? op.result : op.operands[0], reg);
        }
    }
  }

  void note_slots(const Op& op) {
    if (op.code == OpCode::kPipeGet) {
      plan(op.result).from_slot = true;
      plan(op.result).slot_reg = op.result;
    }
    if (op.code == OpCode::kTranspose) {
      ValuePlan& from = plan(op.operands[0]);
      if (!from.from_slot) {
        from.used_elsewhere = true;
        return;
      }
      plan(op.result).from_slot = true;
      plan(op.result).transposed = !from.transposed;
      plan(op.result).slot_reg = from.slot_reg;
    }
  }

  void choose_threads() {
    plan_.num_threads = agent_.num_threads;
    if (plan_.num_threads != 0) return refuse_part_of_warpgroup();
    if (dot_rows_ == 0) {
      plan_.num_threads = kDefaultThreads;
    } else {
      std::int64_t rows = dot_rows_ / plan_.cluster;
      bool thirds = rows > 128 && rows % 192 == 0;
      plan_.num_threads = thirds ? 384 : rows > 64 ? 256 : 128;
    }
  }

  // Whoever works beside another role may have three warps.
  void refuse_part_of_warpgroup() const {
    if (product_ == nullptr || plan_.num_threads % 128 == 0) return;
    throw UserError(fmt::format(
        "{}:{}: '{}' has {} threads, and a product on the tensor core takes 128 or a multiple",
        product_->loc.file, product_->loc.line, agent_.name, plan_.num_threads));
  }

  void choose_layouts() {
    std::vector<bool> fragment(plan_.values.size(), false);
    for (int reg : fragments_) fragment[static_cast<std::size_t>(root(reg))] = true;
    // A factor that stays in registers has the fragment of its own shape.
    for (int reg : left_) {
      if (plan(reg).from_slot) continue;
      fragment[static_cast<std::size_t>(root(reg))] = true;
    }
    std::vector<std::int64_t> cols(plan_.values.size(), 1);
    std::vector<int> vec(plan_.values.size(), 4);
    for (std::size_t i = 0; i < plan_.values.size(); ++i) {
      auto r = static_cast<std::size_t>(root(static_cast<int>(i)));
      cols[r] = std::max(cols[r], agent_.values[i].cols);
      if (size_bytes(agent_.values[i].dtype) == 2) vec[r] = 8;
    }
    for (int reg : packets_) {
      int& most = vec[static_cast<std::size_t>(root(reg))];
      auto size = static_cast<std::int64_t>(size_bytes(type(reg).dtype));
      std::int64_t rows = type(reg).rows % 4 == 0 ? 4 : 1;
      bool lines =
          type(reg).cols * size * rows % kPayloadOfLines == 0 && plan_.num_threads % 32 == 0;
      auto payload = lines ? std::int64_t{16} : kPayloadOfAccess;
      most = std::min(most, static_cast<int>(payload / size));
    }
    for (std::size_t i = 0; i < plan_.values.size(); ++i) {
      auto r = static_cast<std::size_t>(root(static_cast<int>(i)));
      ValuePlan& p = plan_.values[i];
      p.fragment = fragment[r];
      while (vec[r] > 2 && vec[r] > cols[r]) vec[r] /= 2;
      p.vec = vec[r];
      p.lanes = static_cast<int>(std::clamp<std::int64_t>(
          pow2_at_least((cols[r] + vec[r] - 1) / vec[r]), 1, plan_.num_threads));
      // Those that share a row divide the threads, which may be three warps or three warpgroups.
      if (plan_.num_threads % p.lanes != 0) p.lanes = plan_.num_threads & -plan_.num_threads;
    }
    // Neighbours copy a row, unit by unit, and all know its number and what it is computed from.
    std::vector<bool> copied(plan_.values.size(), false);
    for (int reg : row_numbers_) copied[static_cast<std::size_t>(root(reg))] = true;
    for (std::size_t i = 0; i < plan_.values.size(); ++i) {
      bool numbers = copied[static_cast<std::size_t>(root(static_cast<int>(i)))];
      if (numbers) plan_.values[i].lanes = kLanesOfCopiedRow;
    }
  }

  const Agent& agent_;
  AgentPlan plan_;
  std::vector<int> parent_;
  std::vector<int> fragments_, left_, row_numbers_, packets_;
  std::int64_t dot_rows_ = 0;
  const Op* product_ = nullptr;  // one of the tensor core's
};

const Op* writer_of(const Block& block, int reg) {
  for (const Op& op : block) {
    if (op.result == reg) return &op;
    for (const Block& body : op.bodies) {
      if (const Op* found = writer_of(body, reg)) return found;
    }
  }
  return nullptr;
}

// Both factors lie in slots with the summed dimension along their rows: the only form in which the
// tensor core takes factors of 8 bits.
bool along_k(const Agent& agent, const Op& op) {
  auto is_slot = [&](int reg) {
    const Op* writer = writer_of(agent.body, reg);
    return writer != nullptr && writer->code == OpCode::kPipeGet;
  };
  const Op* view = writer_of(agent.body, op.operands[2]);
  return is_slot(op.operands[1]) && view != nullptr && view->code == OpCode::kTranspose &&
         is_slot(view->operands[0]);
}

}  // namespace

DotKind dot_kind(const Agent& agent, const Op& op) {
  if (op.code == OpCode::kDotScaled) return DotKind::kSimt;
  if (op.code != OpCode::kDot && op.code != OpCode::kDotAsync) return DotKind::kNone;
  auto type = [&](int i) {
    return agent.values[static_cast<std::size_t>(op.operands[static_cast<std::size_t>(i)])];
  };
  ValueType a = type(1), b = type(2);
  bool halves = a.dtype == DType::kBF16 || a.dtype == DType::kF16;
  bool bytes = a.dtype == DType::kF8E4M3 && along_k(agent, op);
  std::int64_t step = halves ? 16 : 32;
  bool matrix = a.dtype == b.dtype && (halves || bytes) && a.cols % step == 0 && b.cols % 8 == 0 &&
                b.cols <= 256 && a.rows > 1;
  if (!matrix) return DotKind::kSimt;
  if (type(0).cols == b.cols) return DotKind::kWgmma;
  // Sums of A's rows: of registers, beside a B whose chunks of columns are whole.
  const Op* left = writer_of(agent.body, op.operands[1]);
  const Op* right = writer_of(agent.body, op.operands[2]);
  bool in_registers = left != nullptr && left->code == OpCode::kCast;
  bool as_stored = right != nullptr && right->code != OpCode::kTranspose;
  return in_registers && as_stored && halves && b.cols % 16 == 0 ? DotKind::kWgmma : DotKind::kSimt;
}

int column_parts(const Agent& agent, const Op& op) {
  constexpr std::int64_t kParts = 4, kStep = 8, kFewest = 64;
  bool named = (op.code == OpCode::kDot || op.code == OpCode::kDotAsync) && op.exprs.size() > 1;
  if (!named || dot_kind(agent, op) != DotKind::kWgmma) return 1;
  std::int64_t cols = agent.values[static_cast<std::size_t>(op.operands[2])].cols;
  return cols >= kFewest && cols % (kParts * kStep) == 0 ? static_cast<int>(kParts) : 1;
}

std::int64_t AgentPlan::rows_here(const ValueType& type) const {
  return type.rows > 1 ? type.rows / cluster : 1;
}

std::string AgentPlan::layout_text(const ValueType& type, const ValuePlan& plan) const {
  if (plan.fragment) {
    return fmt::format("MmaLayout<{}, {}, {}>", rows_here(type), type.cols, warpgroups());
  }
  return fmt::format("RowLayout<{}, {}, {}, {}, {}>", rows_here(type), type.cols, num_threads,
                     plan.lanes, plan.vec);
}

bool AgentPlan::copied_in_warps(const ValueType& type, const ValuePlan& plan) const {
  constexpr int kWarp = 32;
  if (num_threads <= kWarp) return false;
  bool shares_rows = plan.fragment || plan.lanes < num_threads;
  return (type.rows == 1 && shares_rows) ||
         (type.cols == 1 && !plan.fragment && plan.lanes > kWarp);
}

int AgentPlan::row_slots(const ValueType& type, const ValuePlan& plan) const {
  if (type.rows == 1) return 1;
  std::int64_t rows = rows_here(type);
  if (plan.fragment) return static_cast<int>(2 * ceil_div(rows, std::int64_t{num_threads / 2}));
  return static_cast<int>(ceil_div(rows, std::int64_t{num_threads / plan.lanes}));
}

int AgentPlan::col_slots(const ValueType& type, const ValuePlan& plan) const {
  if (type.cols == 1) return 1;
  if (plan.fragment) return static_cast<int>(ceil_div(type.cols, std::int64_t{8}) * 2);
  return static_cast<int>(ceil_div(type.cols, std::int64_t{plan.lanes} * plan.vec) * plan.vec);
}

AgentPlan plan_values(const Agent& agent, int cluster) {
  return ValuePlanner(agent, cluster).run();
}

}  // namespace stretto
