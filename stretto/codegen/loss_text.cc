#include "stretto/codegen/loss_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/codegen/block_ops.h"
#include "stretto/ir/tables.h"

namespace stretto {

bool of_another_rank(const Region& region) {
  return region.rank.has_value() && !region.rank.same(Expr::var(0));
}

bool reaches_others(const Block& block) {
  return any_op(block, [](const Op& op) {
    switch (op.code) {
      case OpCode::kNotify:
        return true;
      case OpCode::kStore:
      case OpCode::kStoreRows:
      case OpCode::kStorePacket:
        return of_another_rank(*op.region);
      case OpCode::kCopy:
        return of_another_rank(*op.region2);
      default:
        return false;
    }
  });
}

std::string lost_word_text(const Program& program, LaunchPlan& launch) {
  auto packet = [](const Tensor& t) { return t.packet; };
  bool waits = !program.signals.empty() ||
               std::any_of(program.tensors.begin(), program.tensors.end(), packet);
  bool makes_tables = std::any_of(program.tensors.begin(), program.tensors.end(), is_made_table);
  if (!makes_tables && !(waits && program.world_size > 1)) return "";
  constexpr std::size_t kBytes = 16;
  std::size_t at = (launch.shared_bytes + kBytes - 1) / kBytes * kBytes;
  launch.shared_bytes = at + kBytes;
  return fmt::format("reinterpret_cast<volatile u32*>(smem + {})", at);
}

std::string begin_lost_word_text(const std::string& word) {
  return word.empty() ? ""
                      : fmt::format("  if (threadIdx.x == 0) *{} = 0;\n  __syncthreads();\n", word);
}

}  // namespace stretto
