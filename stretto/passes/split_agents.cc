#include "stretto/passes/split_agents.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "stretto/ir/refuse.h"
#include "stretto/passes/prune.h"
#include "stretto/passes/split_survey.h"
#include "stretto/passes/unseen_rows.h"

namespace stretto {
namespace {

Swizzle swizzle_of(const ValueType& type) {
  std::size_t row_bytes = static_cast<std::size_t>(type.cols) * size_bytes(type.dtype);
  if (row_bytes % 128 == 0) return Swizzle::k128B;
  if (row_bytes % 64 == 0) return Swizzle::k64B;
  return row_bytes % 32 == 0 ? Swizzle::k32B : Swizzle::kNone;
}

class RoleSplitter {
 public:
  RoleSplitter(const Program& program, Role& role, const SplitSurvey& survey)
      : program_(program),
        role_(role),
        survey_(survey),
        unseen_(loads_of_unseen_rows(program, role.agents[0])) {}

  void run() {
    const Block& body = role_.agents[0].body;
    make_pipes(body);
    Agent producer{.name = "producer", .kind = AgentKind::kProducer};
    collect_indices(body, producer);
    producer.body = producer_block(body, false);
    prune(program_, producer.body);
    bool producer_waits = needs_waits(producer.body);
    if (producer_waits) {
      producer.body = producer_block(body, true);
      drop_last_waits(producer.body, false);
      prune(program_, producer.body);
    }
    Agent consumer{.name = "consumer",
                   .kind = AgentKind::kConsumer,
                   .num_threads = role_.agents[0].num_threads};
    consumer.values = role_.agents[0].values;
    consumer.body = consumer_block(body, nullptr);
    if (producer_waits && !needs_waits(consumer.body)) drop_waits(consumer.body);
    prune(program_, consumer.body);
    role_.agents = {std::move(producer), std::move(consumer)};
  }

 private:
  // A pipe, and the load that used it last with its block: two loads of one block need slots at the
  // same time, and so do those of a block and of a loop inside it.
  struct PipeUse {
    int pipe;
    const Block* block;
    const Op* load;
  };
  struct OpPosition {
    const Block* block;
    std::size_t at;
  };

  // Row numbers get registers of the producer's own.
  void collect_indices(const Block& block, Agent& producer) {
    for (const Op& op : block) {
      for (const Block& body : op.bodies) collect_indices(body, producer);
      if (!survey_.picks_rows(op)) continue;
      index_of_[op.result] = static_cast<int>(producer.values.size());
      producer.values.push_back(role_.agents[0].values[static_cast<std::size_t>(op.result)]);
    }
  }

  int slots_of(const Op& load) const {
    if (survey_.is_ahead(load)) return role_.resource.load_slots;
    return survey_.is_in_loop(load) ? role_.resource.num_stages : role_.resource.tile_slots;
  }

  // Whether the load that used a pipe last may hold its slot still: it lies in the block that is
  // visited, or in one around it. One that is made ahead has released it once nothing more reads
  // it there.
  bool is_held(const PipeUse& last) const {
    auto around = std::find_if(around_.begin(), around_.end(),
                               [&](const OpPosition& op) { return op.block == last.block; });
    if (around == around_.end()) return false;
    if (!survey_.is_ahead(*last.load)) return true;
    return std::any_of(
        around->block->begin() + static_cast<std::ptrdiff_t>(around->at), around->block->end(),
        [&](const Op& later) { return SplitSurvey::names(later, last.load->result); });
  }

  void make_pipes(const Block& block) {
    around_.push_back({&block, 0});
    for (const Op& op : block) {
      around_.back().at = static_cast<std::size_t>(&op - block.data());
      for (const Block& body : op.bodies) make_pipes(body);
      if (!survey_.is_piped(op)) continue;
      const Tensor& tensor = program_.tensors[static_cast<std::size_t>(op.region->tensor)];
      ValueType type{tensor.dtype, op.region->rows, op.region->cols};
      int num_slots = slots_of(op);
      // Loads in different blocks take turns in one pipe, of the same tensor where there is one.
      auto fits = [&](const PipeUse& last) {
        const Pipe& pipe = role_.pipes[static_cast<std::size_t>(last.pipe)];
        return !is_held(last) && pipe.type == type && pipe.num_slots == num_slots;
      };
      auto shared = std::find_if(uses_.begin(), uses_.end(), [&](const PipeUse& last) {
        return fits(last) && tensor_of_.at(last.pipe) == op.region->tensor;
      });
      if (shared == uses_.end()) shared = std::find_if(uses_.begin(), uses_.end(), fits);
      if (shared != uses_.end()) {
        pipe_of_[op.result] = shared->pipe;
        shared->block = &block;
        shared->load = &op;
        continue;
      }
      int idx = static_cast<int>(role_.pipes.size());
      pipe_of_[op.result] = idx;
      uses_.push_back({idx, &block, &op});
      tensor_of_[idx] = op.region->tensor;
      role_.pipes.push_back({.name = fresh_name(tensor.name),
                             .type = type,
                             .num_slots = num_slots,
                             .swizzle = swizzle_of(type),
                             .producer = 0,
                             .consumer = 1});
    }
    around_.pop_back();
  }

  std::string fresh_name(const std::string& stem) const {
    std::string candidate = stem;
    auto taken = [&](const Pipe& pipe) { return pipe.name == candidate; };
    for (int i = 1; std::any_of(role_.pipes.begin(), role_.pipes.end(), taken); ++i) {
      candidate = fmt::format("{}_{}", stem, i);
    }
    return candidate;
  }

  // The loads, and the control and index arithmetic around them. The survey knows operations by
  // their place in the role, so only the original is walked.
  Block producer_block(const Block& block, bool with_waits) const {
    Block out;
    for (const Op& op : block) {
      if (survey_.is_piped(op)) {
        out.push_back({.code = OpCode::kPipePut,
                       .region = op.region,
                       .symbol = pipe_of_.at(op.result),
                       .loc = op.loc});
        for (int index : op.operands) out.back().operands.push_back(index_of_.at(index));
      } else if (survey_.picks_rows(op)) {
        out.push_back(op);
        out.back().result = index_of_.at(op.result);
        for (int& operand : out.back().operands) operand = index_of_.at(operand);
      } else if (op.code == OpCode::kLet || (op.code == OpCode::kWait && with_waits)) {
        out.push_back(op);
      } else if (!op.bodies.empty()) {
        Op control = op;
        for (std::size_t b = 0; b < op.bodies.size(); ++b) {
          control.bodies[b] = producer_block(op.bodies[b], with_waits);
        }
        out.push_back(std::move(control));
      }
    }
    return out;
  }

  Op get(const Op& load) const {
    Op op{.code = OpCode::kPipeGet,
          .result = load.result,
          .symbol = pipe_of_.at(load.result),
          .loc = load.loc};
    const Region& r = *load.region;
    bool limited = load.code == OpCode::kLoad && r.row_end.has_value() && r.row_dim >= 0;
    if (limited && !unseen_.contains(&load)) {
      op.exprs = {r.row_end - r.origin[static_cast<std::size_t>(r.row_dim)]};
    }
    return op;
  }
  Op release(int reg, const SourceLoc& loc) const {
    return {.code = OpCode::kPipeRelease, .symbol = pipe_of_.at(reg), .loc = loc};
  }
  static Op await(std::int64_t keep, const SourceLoc& loc) {
    return {.code = OpCode::kAwait, .exprs = {keep}, .loc = loc};
  }
  static Op when(const Expr& condition, Block then, const SourceLoc& loc) {
    Op op{.code = OpCode::kWhen, .exprs = {condition}, .loc = loc};
    op.bodies = {std::move(then), Block{}};
    return op;
  }

  // Everything but the piped loads. `loop`: the loop whose body the block is, if any.
  Block consumer_block(const Block& block, const Op* loop) const {
    SlotUses uses = survey_.slot_uses(block);
    bool overlapped = loop != nullptr && uses.overlaps;
    Block out;
    Block later;  // vectors, and what follows from them alone: while a product is under way
    bool vectors_held = std::any_of(uses.slots.begin(), uses.slots.end(),
                                    [](const SlotUses::Slot& slot) { return slot.vector; });
    auto flush = [&] {
      out.insert(out.end(), later.begin(), later.end());
      later.clear();
    };
    // All at once, so that they can share barriers.
    auto release_vectors = [&](std::size_t at) {
      if (!vectors_held || overlapped || !later.empty() || at < uses.last_vector_use) return;
      for (const SlotUses::Slot& slot : uses.slots) {
        if (slot.vector) out.push_back(release(slot.reg, slot.loc));
      }
      vectors_held = false;
    };
    for (std::size_t i = 0; i < block.size(); ++i) {
      const Op& op = block[i];
      if (survey_.only_picks_rows(op)) continue;
      if (survey_.is_vector(op)) {
        later.push_back(get(op));
        continue;
      }
      if (follows_from(later, op)) {
        later.push_back(op);
        continue;
      }
      if (names_any(op, later)) flush();
      out.push_back(survey_.is_piped(op) ? get(op) : op);
      Op& copy = out.back();
      for (std::size_t b = 0; b < op.bodies.size(); ++b) {
        copy.bodies[b] = consumer_block(op.bodies[b], op.code == OpCode::kLoop ? &op : nullptr);
      }
      bool async = survey_.is_async(op);
      if (async) {
        copy.code = OpCode::kDotAsync;
        flush();
      }
      if (op.code == OpCode::kLoop) drain(op, out);
      if (overlapped) {
        if (i == uses.last_dot) release_previous(*loop, uses, op.loc, out);
        continue;
      }
      if (async) out.push_back(await(0, op.loc));
      for (const SlotUses::Slot& slot : uses.slots) {
        if (slot.last_use == i && !slot.vector) out.push_back(release(slot.reg, slot.loc));
      }
      release_vectors(i);
    }
    flush();
    release_vectors(block.size());
    return out;
  }

  static bool names_any(const Op& op, const Block& others) {
    return std::any_of(others.begin(), others.end(),
                       [&](const Op& other) { return SplitSurvey::names(op, other.result); });
  }

  // An operation without effect that reads nothing but what the others make.
  static bool follows_from(const Block& others, const Op& op) {
    bool pure = op.code == OpCode::kBroadcast || op.code == OpCode::kCast ||
                op.code == OpCode::kUnary || op.code == OpCode::kBinary;
    return pure && std::all_of(op.operands.begin(), op.operands.end(), [&](int reg) {
             return std::any_of(others.begin(), others.end(),
                                [&](const Op& other) { return other.result == reg; });
           });
  }

  // One iteration's dots stay in flight, so what is complete is the iteration before.
  void release_previous(const Op& loop, const SlotUses& uses, const SourceLoc& loc,
                        Block& out) const {
    out.push_back(await(uses.num_dots, loc));
    out.push_back(when(loop.exprs[0] < Expr::var(loop.var), releases(uses), loc));
  }

  // After a loop that left its last iteration in flight.
  void drain(const Op& loop, Block& out) const {
    SlotUses uses = survey_.slot_uses(loop.bodies[0]);
    if (!uses.overlaps) return;
    out.push_back(await(0, loop.loc));
    Expr any = loop.exprs[0] < loop.exprs[1];
    Block last = releases(uses);
    if (any.is_const(1)) {
      out.insert(out.end(), last.begin(), last.end());
    } else {
      out.push_back(when(any, std::move(last), loop.loc));
    }
  }

  Block releases(const SlotUses& uses) const {
    Block out;
    for (const SlotUses::Slot& slot : uses.slots) out.push_back(release(slot.reg, slot.loc));
    return out;
  }

  // Whether an access in the block may conflict with another agent's. An own input is written by
  // nobody during a launch; a local output is read by the caller alone, in stream order.
  bool needs_waits(const Block& block) const {
    return std::any_of(block.begin(), block.end(), [&](const Op& op) {
      return needs_wait(op) || std::any_of(op.bodies.begin(), op.bodies.end(),
                                           [&](const Block& body) { return needs_waits(body); });
    });
  }

  bool needs_wait(const Op& op) const {
    switch (op.code) {
      case OpCode::kLoad:
      case OpCode::kLoadRows:
      case OpCode::kPipePut:
        return !survey_.own_input(*op.region);
      case OpCode::kStore:
      case OpCode::kStoreRows:
      case OpCode::kReduceStore:
        return !local_output(*op.region);
      case OpCode::kCopy:
        return !survey_.own_input(*op.region) || !local_output(*op.region2);
      case OpCode::kLet:
        return survey_.reads_table_of_launch(op.exprs[0]);
      case OpCode::kNotify:
      case OpCode::kStorePacket:
      case OpCode::kFence:
        return true;  // a wait before it may be what it passes on
      default:
        return false;
    }
  }

  bool local_output(const Region& r) const {
    return tensor(r).kind == TensorKind::kOutput && tensor(r).space == Space::kLocal;
  }
  const Tensor& tensor(const Region& r) const {
    return program_.tensors[static_cast<std::size_t>(r.tensor)];
  }

  // Waits after which, within the tile, nothing is put: they would hold up what is loaded ahead.
  // `puts`: something is put after the block. Whether something is from its beginning on.
  static bool drop_last_waits(Block& block, bool puts) {
    Block kept;
    for (auto op = block.rbegin(); op != block.rend(); ++op) {
      if (op->code == OpCode::kWait && !puts) continue;
      bool again = op->code == OpCode::kLoop && puts_any(op->bodies[0]);
      bool before = puts || op->code == OpCode::kPipePut;
      for (Block& body : op->bodies) before |= drop_last_waits(body, puts || again);
      puts = before;
      kept.push_back(std::move(*op));
    }
    block.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
    return puts;
  }

  static bool puts_any(const Block& block) {
    return std::any_of(block.begin(), block.end(), [](const Op& op) {
      return op.code == OpCode::kPipePut ||
             std::any_of(op.bodies.begin(), op.bodies.end(), puts_any);
    });
  }

  static void drop_waits(Block& block) {
    std::erase_if(block, [](const Op& op) { return op.code == OpCode::kWait; });
    for (Op& op : block) {
      for (Block& body : op.bodies) drop_waits(body);
    }
  }

  const Program& program_;
  Role& role_;
  const SplitSurvey& survey_;
  const std::set<const Op*> unseen_;  // loads whose rows past their end need not be zero
  std::map<int, int> pipe_of_;        // by the register that the load wrote
  std::map<int, int> tensor_of_;      // by pipe
  std::map<int, int> index_of_;       // the producer's register, by the role's
  std::vector<PipeUse> uses_;         // of every pipe the last
  std::vector<OpPosition> around_;    // in the block that is visited and in those it lies in
};

}  // namespace

Program split_agents(Program program) {
  for (Role& role : program.roles) {
    const Resource& asked = role.resource;
    const bool holds = asked.tile_slots != Resource{}.tile_slots;
    if (holds && asked.num_stages == 0) {
      refuse(program, role, "tile_slots", asked.tile_slots, "only roles with stages have pipes");
    }
    if (asked.num_stages == 0 || role.agents.size() != 1) continue;
    SplitSurvey survey(program, role);
    if (!survey.obstacle().empty()) {
      refuse(program, role, "num_stages", asked.num_stages, survey.obstacle());
    }
    if (asked.load_slots > 0 && !survey.loads_ahead()) {
      refuse(program, role, "load_slots", asked.load_slots,
             "beside the factors of a product it loads no matrix, or a table that launches change "
             "decides about it");
    }
    if (holds && !survey.loads_once()) {
      refuse(program, role, "tile_slots", asked.tile_slots,
             "nothing that it loads once a tile goes through a pipe");
    }
    RoleSplitter(program, role, survey).run();
  }
  return program;
}

}  // namespace stretto
