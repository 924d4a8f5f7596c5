#include "stretto/passes/epilogue_stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "stretto/ir/refuse.h"
#include "stretto/passes/prune.h"

namespace stretto {
namespace {

// Of a slot's row: what shared memory is swizzled by, so that threads and TMA meet no conflicts.
constexpr std::int64_t kRowBytes[] = {128, 64, 32};

Swizzle swizzle_of(std::int64_t row_bytes) {
  return row_bytes == 128 ? Swizzle::k128B : row_bytes == 64 ? Swizzle::k64B : Swizzle::k32B;
}

class EpilogueSplitter {
 public:
  EpilogueSplitter(Program& program, Role& role) : program_(program), role_(role) {
    survey(consumer().body);
    if (stored_.empty()) obstacle_ = "it stores nothing";
    // What lies here and is only stored elsewhere is another's to store. Should the other rank be
    // this one after all, the proof says so.
    auto both = [](const std::set<int>& a, const std::set<int>& b) {
      return std::any_of(a.begin(), a.end(), [&](int t) { return b.count(t) != 0; });
    };
    if (both(loaded_, stored_here_) || both(loaded_elsewhere_, stored_)) {
      obstacle_ = "it reads what it stores";
    }
  }

  const std::string& obstacle() const { return obstacle_; }

  void run() {
    Agent epilogue{.name = "epilogue", .kind = AgentKind::kEpilogue};
    epilogue.body = epilogue_block(consumer().body, epilogue);
    if (!public_) drop_waits(epilogue.body);
    prune(program_, epilogue.body);
    consumer().body = consumer_block(consumer().body);
    if (public_ && loaded_.empty() && !reads_tables_) drop_waits(consumer().body);
    prune(program_, consumer().body);
    for (Pipe& pipe : role_.pipes) {
      if (pipe.consumer < 0) pipe.consumer = static_cast<int>(role_.agents.size());
    }
    role_.agents.push_back(std::move(epilogue));
  }

 private:
  Agent& consumer() const { return role_.agents[1]; }
  const ValueType& type(const Op& store) const {
    return consumer().values[static_cast<std::size_t>(store.operands[0])];
  }

  static void drop_waits(Block& block) {
    std::erase_if(block, [](const Op& op) { return op.code == OpCode::kWait; });
    for (Op& op : block) {
      for (Block& body : op.bodies) drop_waits(body);
    }
  }

  void survey(const Block& block) {
    for (const Op& op : block) {
      for (const Block& body : op.bodies) survey(body);
      for (const Expr& e : op.exprs) reads_tables_ |= uses_table(e);
      switch (op.code) {
        case OpCode::kStore:
          survey_store(op);
          break;
        case OpCode::kLoad:
        case OpCode::kLoadRows:
          survey_load(*op.region);
          break;
        case OpCode::kNotify:
          if (stored_.empty()) obstacle_ = "it notifies of something other than stores";
          public_ = true;
          break;
        case OpCode::kStoreRows:
        case OpCode::kReduceStore:
        case OpCode::kCopy:
        case OpCode::kStorePacket:
        case OpCode::kLoadPacket:
        case OpCode::kFence:
        case OpCode::kArrive:
        case OpCode::kBarrierSync:
          obstacle_ = "its stores are not all that others see of it";
          break;
        default:
          break;
      }
    }
  }

  static bool is_here(const Region& r) { return !r.rank.has_value() || r.rank.same(Expr::var(0)); }

  void survey_load(const Region& r) {
    loaded_.insert(r.tensor);
    if (!is_here(r)) loaded_elsewhere_.insert(r.tensor);
  }

  void survey_store(const Op& op) {
    const Region& r = *op.region;
    const Tensor& tensor = program_.tensors[static_cast<std::size_t>(r.tensor)];
    bool plain = !r.col_end.has_value() && !tensor.packet;
    bool fits = type(op).dtype == tensor.dtype && is_float(tensor.dtype) && slot_cols(op) > 0;
    if (!plain || !fits) obstacle_ = "a store does not come in slots";
    stored_.insert(r.tensor);
    if (is_here(r)) stored_here_.insert(r.tensor);
    public_ |= tensor.kind != TensorKind::kOutput || tensor.space != Space::kLocal;
  }

  // Of a slot: as many as make a whole row of it. 0: none do.
  std::int64_t slot_cols(const Op& store) const {
    auto size = static_cast<std::int64_t>(size_bytes(type(store).dtype));
    for (std::int64_t bytes : kRowBytes) {
      if (type(store).cols * size % bytes == 0) return bytes / size;
    }
    return 0;
  }

  // Stores of one type share a pipe.
  int pipe_of(const Op& store) {
    ValueType slot{type(store).dtype, type(store).rows, slot_cols(store)};
    auto count = static_cast<int>(role_.pipes.size());
    for (int i = 0; i < count; ++i) {
      const Pipe& pipe = role_.pipes[static_cast<std::size_t>(i)];
      if (pipe.producer == 1 && pipe.type == slot) return i;
    }
    auto row_bytes = slot.cols * static_cast<std::int64_t>(size_bytes(slot.dtype));
    role_.pipes.push_back({.name = fresh_name(),
                           .type = slot,
                           .num_slots = role_.resource.store_slots,
                           .swizzle = swizzle_of(row_bytes),
                           .producer = 1,
                           .consumer = -1});
    return count;
  }

  std::string fresh_name() const {
    std::string candidate = "stores";
    auto taken = [&](const Pipe& pipe) { return pipe.name == candidate; };
    for (int i = 1; std::any_of(role_.pipes.begin(), role_.pipes.end(), taken); ++i) {
      candidate = fmt::format("stores_{}", i);
    }
    return candidate;
  }

  // Stores and notifies, with the waits, control and index arithmetic around them.
  Block epilogue_block(const Block& block, Agent& epilogue) {
    Block out;
    for (const Op& op : block) {
      if (op.code == OpCode::kStore) {
        store_slots(op, epilogue, out);
      } else if (op.code == OpCode::kLet || op.code == OpCode::kWait ||
                 op.code == OpCode::kNotify) {
        out.push_back(op);
      } else if (!op.bodies.empty()) {
        Op control = op;
        for (std::size_t b = 0; b < op.bodies.size(); ++b) {
          control.bodies[b] = epilogue_block(op.bodies[b], epilogue);
        }
        out.push_back(std::move(control));
      }
    }
    return out;
  }

  void store_slots(const Op& store, Agent& epilogue, Block& out) {
    int pipe = pipe_of(store);
    ValueType slot = role_.pipes[static_cast<std::size_t>(pipe)].type;
    auto reg = static_cast<int>(epilogue.values.size());
    epilogue.values.push_back(slot);
    auto var = static_cast<int>(program_.vars.size());
    program_.vars.push_back({fmt::format("{}_part_{}", role_.name, var), VarKind::kLoop});
    Op part = store;
    part.operands = {reg};
    part.region->cols = slot.cols;
    Expr& origin = part.region->origin[static_cast<std::size_t>(part.region->col_dim)];
    origin = origin + Expr::var(var) * slot.cols;
    Op loop{.code = OpCode::kLoop,
            .exprs = {0, type(store).cols / slot.cols},
            .var = var,
            .loc = store.loc};
    loop.bodies = {{{.code = OpCode::kPipeGet, .result = reg, .symbol = pipe, .loc = store.loc},
                    std::move(part),
                    {.code = OpCode::kPipeRelease, .symbol = pipe, .loc = store.loc}}};
    out.push_back(std::move(loop));
  }

  Block consumer_block(const Block& block) {
    Block out;
    for (const Op& op : block) {
      if (op.code == OpCode::kNotify) continue;
      if (op.code == OpCode::kStore) {
        int pipe = pipe_of(op);
        std::int64_t cols = role_.pipes[static_cast<std::size_t>(pipe)].type.cols;
        for (std::int64_t col = 0; col < type(op).cols; col += cols) {
          out.push_back({.code = OpCode::kPipeFill,
                         .operands = op.operands,
                         .exprs = {col},
                         .symbol = pipe,
                         .loc = op.loc});
        }
        continue;
      }
      out.push_back(op);
      for (Block& body : out.back().bodies) body = consumer_block(body);
    }
    return out;
  }

  Program& program_;
  Role& role_;
  std::string obstacle_;
  std::set<int> stored_, stored_here_, loaded_, loaded_elsewhere_;
  bool public_ =
      false;  // others than the caller may see the stores, so what it waits for orders them
  bool reads_tables_ = false;
};

bool is_split(const Role& role) {
  return role.agents.size() == 2 && role.agents[0].kind == AgentKind::kProducer &&
         role.agents[1].kind == AgentKind::kConsumer;
}

}  // namespace

Program epilogue_stores(Program program) {
  for (Role& role : program.roles) {
    if (role.resource.store_slots == 0) continue;
    const int slots = role.resource.store_slots;
    if (!is_split(role)) refuse(program, role, "store_slots", slots, "it was not split");
    EpilogueSplitter splitter(program, role);
    if (!splitter.obstacle().empty()) {
      refuse(program, role, "store_slots", slots, splitter.obstacle());
    }
    splitter.run();
  }
  return program;
}

}  // namespace stretto
