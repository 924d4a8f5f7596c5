#include "stretto/codegen/role_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "stretto/base/errors.h"
#include "stretto/codegen/expr_text.h"
#include "stretto/codegen/joined_steps.h"
#include "stretto/codegen/role_limits.h"

namespace stretto {
namespace {

constexpr std::size_t kSlotAlignment = 1024;
constexpr std::size_t kVectorAlignment = 128;
constexpr std::int64_t kChunkBytes = 128;  // of a row, that TMA loads at a time

std::size_t round_up(std::size_t v, std::size_t step) { return (v + step - 1) / step * step; }

void for_each_block(const Block& block, const std::function<void(const Block&)>& visit) {
  visit(block);
  for (const Op& op : block) {
    for (const Block& body : op.bodies) for_each_block(body, visit);
  }
}

class RolePlanner {
 public:
  RolePlanner(const Program& program, const Role& role, std::vector<TensorMapPlan>& maps,
              std::size_t shared_limit, int store_buffers, bool joins, const PlaceBeside* place)
      : program_(program), role_(role), maps_(maps), shared_limit_(shared_limit), joins_(joins) {
    plan_.store_buffers = store_buffers;
    if (place == nullptr) return;
    plan_.num_threads = place->first_thread;
    plan_.first_warpgroup = place->first_thread / 128;
    plan_.first_barrier = place->first_barrier;
    next_ = place->shared;
  }

  RolePlan run() {
    for (const Agent& agent : role_.agents) {
      plan_.agents.push_back(plan_values(agent, role_.resource.cluster_size));
    }
    place_agents();
    refuse_beyond_threads(role_, plan_);
    for (std::size_t i = 0; i < role_.pipes.size(); ++i) plan_.pipes.push_back(plan_pipe(i));
    group_pipes();
    if (joins_) join_steps(program_, role_, plan_);
    place_vectors();
    place_epilogues(program_, role_, plan_);
    place_fillers();
    place_staging();
    place_barriers();
    return std::move(plan_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(fmt::format("{}:{}: role '{}' on the GPU: {}", role_.loc.file, role_.loc.line,
                                role_.name, what));
  }

  // Consumers first, so that their warpgroups start at thread 0; producers and epilogue warps are
  // one each.
  void place_agents() {
    std::size_t count = role_.agents.size();
    plan_.first_thread.assign(count, 0);
    plan_.threads.assign(count, 0);
    plan_.registers.assign(count, 0);
    plan_.host.assign(count, -1);
    int next = plan_.num_threads;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t i = 0; i < count; ++i) {
        AgentKind kind = role_.agents[i].kind;
        bool moves = kind == AgentKind::kProducer || kind == AgentKind::kEpilogue;
        if (moves != (pass == 1)) continue;
        if (moves) plan_.agents[i].num_threads = 128;
        plan_.first_thread[i] = next;
        plan_.threads[i] = plan_.agents[i].num_threads;
        next += plan_.threads[i];
      }
    }
    plan_.num_threads = next;
  }

  // What one thread issues must not wait for what the others copy.
  void place_fillers() {
    for (int i = 0; i < static_cast<int>(role_.agents.size()); ++i) {
      auto agent = static_cast<std::size_t>(i);
      if (role_.agents[agent].kind != AgentKind::kProducer) continue;
      if (plan_.fills(role_, i) && plan_.issues(role_, i)) plan_.agents[agent].num_threads = 96;
    }
  }

  // What of the consumer's products reads a pipe: as left factor, right factor or neither.
  struct PipeUse {
    bool left = false, right = false, other = false;
    bool transposed = false;  // as left factor
    std::int64_t dot_rows = 0;
    // The matrix instruction takes 64 rows, but may read the same 8 again and again.
    bool few_rows(std::int64_t rows) const {
      return left && !right && !other && !transposed && rows <= 8;
    }
  };
  PipeUse find_use(std::size_t pipe) const {
    PipeUse use;
    const Agent& consumer = role_.agents[static_cast<std::size_t>(role_.pipes[pipe].consumer)];
    const AgentPlan& values = plan_.agents[static_cast<std::size_t>(role_.pipes[pipe].consumer)];
    std::vector<bool> holds(consumer.values.size(), false);
    for_each_block(consumer.body, [&](const Block& block) {
      for (const Op& op : block) {
        if (op.code == OpCode::kPipeGet && op.symbol == static_cast<int>(pipe)) {
          holds[static_cast<std::size_t>(op.result)] = true;
        }
      }
    });
    auto held = [&](int reg) {
      int slot = values.values[static_cast<std::size_t>(reg)].slot_reg;
      return slot >= 0 && holds[static_cast<std::size_t>(slot)];
    };
    for_each_block(consumer.body, [&](const Block& block) {
      for (const Op& op : block) {
        bool product = dot_kind(consumer, op) == DotKind::kWgmma;
        for (std::size_t i = 0; i < op.operands.size(); ++i) {
          if (!held(op.operands[i]) || op.code == OpCode::kTranspose) continue;
          auto factor = static_cast<std::size_t>(op.operands[i]);
          if (product && i == 1) {
            use.left = true;
            use.transposed |= values.values[factor].transposed;
            use.dot_rows = consumer.values[factor].rows;
          } else if (product && i == 2) {
            use.right = true;
          } else {
            use.other = true;
          }
        }
      }
    });
    return use;
  }

  PipePlan plan_pipe(std::size_t idx) {
    const Pipe& pipe = role_.pipes[idx];
    PipePlan p;
    bool loaded =
        role_.agents[static_cast<std::size_t>(pipe.producer)].kind == AgentKind::kProducer;
    if (!loaded) return plan_filled(idx, p);
    PipeUse use = find_use(idx);
    p.read_by_products = use.left || use.right;
    if (!p.read_by_products && is_long_vector(pipe.type)) return plan_vector(idx, p);
    const AgentPlan& consumer = plan_.agents[static_cast<std::size_t>(pipe.consumer)];
    int cluster = role_.resource.cluster_size;
    p.rows_loaded = pipe.type.rows;
    p.rows = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(pipe.type.rows), 8));
    if (cluster > 1) {
      bool rows_split = use.left && !use.right && pipe.type.rows == use.dot_rows;
      if (!rows_split && (use.left || use.other)) {
        fail("a cluster needs slots that one factor reads");
      }
      if (pipe.type.rows % (cluster * 8) != 0) fail("a cluster needs rows in multiples of 8");
      p.split = rows_split ? Split::kRows : Split::kMulticast;
      p.rows_loaded = pipe.type.rows / cluster;
      if (rows_split) p.rows = p.rows_loaded;
    }
    bool whole_factor = use.left && pipe.type.rows == use.dot_rows;
    if (whole_factor && !use.few_rows(pipe.type.rows)) {
      auto step = static_cast<std::size_t>(consumer.num_threads / 2);
      p.rows = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(p.rows), step));
    }
    std::size_t row_bytes = static_cast<std::size_t>(pipe.type.cols) * size_bytes(pipe.type.dtype);
    p.swizzle = swizzle_bytes(pipe.type);
    std::size_t chunks =
        (row_bytes + static_cast<std::size_t>(p.swizzle) - 1) / static_cast<std::size_t>(p.swizzle);
    p.slot_bytes =
        round_up(chunks * static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.swizzle),
                 kSlotAlignment);
    p.offset = place_of(pipe, p, pipe.num_slots);
    p.type_text = fmt::format("SmemTile<{}, {}, {}, {}>", element_text(pipe.type.dtype), p.rows,
                              pipe.type.cols, p.swizzle);
    p.alias = fmt::format("{}Slot", camel(role_.name + "_" + pipe.name));
    find_puts(idx, p);
    plan_views(pipe, p);
    return p;
  }

  std::size_t place_of(const Pipe& pipe, const PipePlan& p, int num_slots) {
    if (pipe.shares >= 0) return plan_.pipes[static_cast<std::size_t>(pipe.shares)].offset;
    std::size_t bytes = p.slot_bytes * static_cast<std::size_t>(num_slots);
    return take(bytes, p.packed ? kVectorAlignment : kSlotAlignment);
  }

  // In chunks of 8 rows it would take several times its size.
  static bool is_long_vector(const ValueType& type) {
    auto row_bytes = static_cast<std::int64_t>(size_bytes(type.dtype)) * type.cols;
    return type.cols == 1 || (type.rows == 1 && row_bytes > kChunkBytes);
  }

  // Each block of a cluster has the part of its own rows.
  PipePlan plan_vector(std::size_t idx, PipePlan& p) {
    const Pipe& pipe = role_.pipes[idx];
    int cluster = role_.resource.cluster_size;
    if (pipe.type.rows > 1 && pipe.type.rows % cluster != 0) fail("a cluster shares out all rows");
    p.packed = true;
    p.rows = p.rows_loaded = pipe.type.rows > 1 ? pipe.type.rows / cluster : 1;
    p.alias = fmt::format("{}Slot", camel(role_.name + "_" + pipe.name));
    p.why = "a vector";
    find_puts(idx, p);
    return std::move(p);
  }

  // Behind the tiles, once it is known which steps share a place.
  void place_vectors() {
    for (const PipeGroup& group : plan_.groups) {
      for (int i : group.pipes) {
        PipePlan& p = plan_.pipes[static_cast<std::size_t>(i)];
        if (!p.packed) continue;
        int together = p.joined ? group.steps : 1;
        const Pipe& pipe = role_.pipes[static_cast<std::size_t>(i)];
        auto elements = static_cast<std::size_t>(p.rows * pipe.type.cols * together);
        p.slot_bytes = round_up(elements * size_bytes(pipe.type.dtype), kVectorAlignment);
        p.offset = place_of(pipe, p, group.num_slots / together);
        std::string element = element_text(pipe.type.dtype);
        p.type_text = p.joined
                          ? fmt::format("SmemColumn<{}, {}, {}>", element, p.rows, together)
                          : fmt::format("SmemVector<{}, {}, {}>", element, p.rows, pipe.type.cols);
      }
    }
  }

  // Each block of a cluster fills its own rows.
  PipePlan plan_filled(std::size_t idx, PipePlan& p) {
    const Pipe& pipe = role_.pipes[idx];
    int cluster = role_.resource.cluster_size;
    if (pipe.type.rows % cluster != 0) fail("a cluster shares out all rows");
    p.filled = true;
    p.why = "registers";
    p.rows_loaded = pipe.type.rows / cluster;
    p.rows = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(p.rows_loaded), 8));
    p.swizzle = swizzle_bytes(pipe.type);
    p.slot_bytes = staged_bytes({.dtype = pipe.type.dtype, .rows = p.rows, .cols = pipe.type.cols});
    p.offset = place_of(pipe, p, pipe.num_slots);
    p.type_text = fmt::format("SmemTile<{}, {}, {}, {}>", element_text(pipe.type.dtype), p.rows,
                              pipe.type.cols, p.swizzle);
    p.alias = fmt::format("{}Slot", camel(role_.name + "_" + pipe.name));
    return std::move(p);
  }

  static std::string camel(const std::string& name) {
    std::string out;
    bool upper = true;
    for (char c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) {
        upper = true;
        continue;
      }
      out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
      upper = false;
    }
    return out;
  }

  void find_puts(std::size_t idx, PipePlan& p) const {
    const Agent& producer = role_.agents[static_cast<std::size_t>(role_.pipes[idx].producer)];
    for_each_block(producer.body, [&](const Block& block) {
      for (const Op& op : block) {
        if (op.code == OpCode::kPipePut && op.symbol == static_cast<int>(idx)) {
          p.puts.push_back(&op);
        }
      }
    });
    if (p.puts.empty()) fail(fmt::format("pipe '{}' is never filled", role_.pipes[idx].name));
  }

  // Empty where TMA can load the pipe's tiles into slots of the plan's layout.
  const char* tma_obstacle(const Pipe& pipe, const PipePlan& p, const Region& r,
                           TensorMapPlan& view) const {
    if (r.col_end.has_value()) return "a column limit";
    const Block& body = role_.agents[static_cast<std::size_t>(pipe.producer)].body;
    if (!tensor_map_of(program_, r, body, view)) return tma_refusal(program_, r, body);
    if (view.rank >= 0) return "another rank's memory";
    if (program_.tensors[static_cast<std::size_t>(r.tensor)].num_slots > 1) {
      return "a buffer with slots";
    }
    auto size = static_cast<std::int64_t>(size_bytes(pipe.type.dtype));
    if (pipe.type.cols * size < p.swizzle) return "rows of less than 32 bytes";
    view.box_rows = std::min(p.rows_loaded, kMaxBoxRows);
    if (p.rows_loaded % view.box_rows != 0) return "more than 256 rows, not in multiples";
    view.box_cols = p.swizzle / size;
    view.swizzle_bytes = p.swizzle;
    return "";
  }

  void plan_views(const Pipe& pipe, PipePlan& p) {
    for (const Op* put : p.puts) {
      TensorMapPlan view;
      const char* why = put->operands.empty() ? tma_obstacle(pipe, p, *put->region, view)
                                              : "rows that an index picks";
      if (*why != 0) {
        p.why = why;
        continue;
      }
      auto at = std::find(maps_.begin(), maps_.end(), view);
      p.views[put] = static_cast<int>(at - maps_.begin());
      if (at == maps_.end()) maps_.push_back(view);
    }
    if (!p.by_tma() && role_.resource.cluster_size > 1) {
      fail(fmt::format("a cluster loads pipe '{}' by TMA, which cannot: {}", pipe.name, p.why));
    }
    std::size_t row_bytes = static_cast<std::size_t>(pipe.type.cols) * size_bytes(pipe.type.dtype);
    std::int64_t rows = p.split == Split::kMulticast ? pipe.type.rows : p.rows_loaded;
    p.bytes_arriving =
        round_up(row_bytes, static_cast<std::size_t>(p.swizzle)) * static_cast<std::size_t>(rows);
  }

  // The sequence of one operation over pipes, block by block, says which pipes always go together.
  bool together(int a, int b) const {
    const Pipe& pa = role_.pipes[static_cast<std::size_t>(a)];
    const Pipe& pb = role_.pipes[static_cast<std::size_t>(b)];
    if (pa.num_slots != pb.num_slots || pa.producer != pb.producer || pa.consumer != pb.consumer) {
      return false;
    }
    const PipePlan& first = plan_.pipes[static_cast<std::size_t>(a)];
    const PipePlan& second = plan_.pipes[static_cast<std::size_t>(b)];
    // Threads that fill several slots arrive once, when their asynchronous copies are complete.
    auto copied = [](const Pipe& pipe, const PipePlan& p) {
      return p.packed && !p.by_tma() && size_bytes(pipe.type.dtype) >= 4;
    };
    bool alike = first.by_tma() ? second.by_tma() : copied(pa, first) && copied(pb, second);
    if (!alike) return false;
    bool ok = true;
    auto adjacent = [&](const Agent& agent, OpCode code) {
      for_each_block(agent.body, [&](const Block& block) {
        std::vector<int> order;
        for (const Op& op : block) {
          if (op.code == code) order.push_back(op.symbol);
          // Anything that may wait in between would wait for a slot not yet complete.
          if (op.code == OpCode::kDotAsync || op.code == OpCode::kDot || !op.bodies.empty() ||
              op.code == OpCode::kWait) {
            order.push_back(-1);
          }
        }
        for (std::size_t i = 0; i < order.size(); ++i) {
          if (order[i] == a && (i + 1 >= order.size() || order[i + 1] != b)) ok = false;
          if (order[i] == b && (i == 0 || order[i - 1] != a)) ok = false;
        }
      });
    };
    const Agent& producer = role_.agents[static_cast<std::size_t>(pa.producer)];
    const Agent& consumer = role_.agents[static_cast<std::size_t>(pa.consumer)];
    adjacent(producer, OpCode::kPipePut);
    adjacent(consumer, OpCode::kPipeGet);
    adjacent(consumer, OpCode::kPipeRelease);
    return ok;
  }

  void group_pipes() {
    for (int i = 0; i < static_cast<int>(role_.pipes.size()); ++i) {
      PipePlan& p = plan_.pipes[static_cast<std::size_t>(i)];
      if (!plan_.groups.empty() && together(plan_.groups.back().pipes.back(), i)) {
        plan_.groups.back().pipes.push_back(i);
      } else {
        plan_.groups.push_back(
            {.pipes = {i}, .num_slots = role_.pipes[static_cast<std::size_t>(i)].num_slots});
      }
      p.group = static_cast<int>(plan_.groups.size()) - 1;
    }
    if (std::string problem = share_rings(role_, plan_); !problem.empty()) fail(problem);
  }

  void place_staging() {
    std::vector<std::size_t> scratch(role_.agents.size(), 0);  // bytes
    for (std::size_t a = 0; a < role_.agents.size(); ++a) {
      const Agent& agent = role_.agents[a];
      AgentPlan& values = plan_.agents[a];
      for_each_block(agent.body, [&](const Block& block) {
        for (const Op& op : block) stage(agent, values, op, scratch[a]);
      });
    }
    // Behind all slots.
    if (plan_.ones != 0) plan_.ones = take(kOnesBytes, kSlotAlignment);
    // Agents reduce at the same time: one place serves where one of them does.
    for (std::size_t bytes : scratch) {
      plan_.scratch.push_back(bytes > 0 ? take(std::max(bytes, std::size_t{16}), 16) : 0);
    }
    bool any = std::any_of(scratch.begin(), scratch.end(), [](std::size_t b) { return b > 0; });
    std::size_t idle =
        any ? *std::max_element(plan_.scratch.begin(), plan_.scratch.end()) : take(16, 16);
    for (std::size_t& at : plan_.scratch) {
      if (at == 0) at = idle;
    }
  }

  // `scratch`: bytes that the agent needs so far.
  void stage(const Agent& agent, const AgentPlan& values, const Op& op, std::size_t& scratch) {
    auto type = [&](int reg) { return agent.values[static_cast<std::size_t>(reg)]; };
    auto slot = [&](int reg) { return values.values[static_cast<std::size_t>(reg)].from_slot; };
    std::size_t bytes = 0;
    DotKind kind = dot_kind(agent, op);
    if (kind != DotKind::kNone) {
      // Right after left, each as a slot.
      bool left_in_registers = kind == DotKind::kWgmma && !slot(op.operands[1]);
      if (!slot(op.operands[1]) && !left_in_registers) bytes += staged_bytes(type(op.operands[1]));
      if (!slot(op.operands[2])) bytes += staged_bytes(type(op.operands[2]));
      bool sums = type(op.result).cols > type(op.operands[2]).cols;
      if (kind == DotKind::kWgmma && sums) {
        plan_.ones = 1;  // placed at the end
        plan_.ones_dtype = type(op.operands[2]).dtype;
      }
    } else if (op.code == OpCode::kTranspose && !slot(op.operands[0])) {
      bytes = staged_bytes(type(op.operands[0]));
    }
    if (bytes > 0) plan_.staging[&op] = take(bytes, kSlotAlignment);
    // Threads that share a row of a fragment are of one warp.
    bool row_of_fragment = op.axis == 1 && op.code == OpCode::kReduce &&
                           values.values[static_cast<std::size_t>(op.operands[0])].fragment;
    if (op.code == OpCode::kReduce && !row_of_fragment) {
      scratch = std::max(scratch, static_cast<std::size_t>(values.num_threads) * 4);
    }
    bool to_memory = op.code == OpCode::kStore && size_bytes(type(op.operands[0]).dtype) >= 2;
    const ValuePlan* v =
        op.operands.empty() ? nullptr : &values.values[static_cast<std::size_t>(op.operands[0])];
    if (to_memory && v->fragment && plan_.store_stages == 0) {
      std::size_t block = std::size_t{kStoreBlock} * kStoreBlock * 2;
      std::size_t warpgroups = 0;  // of all agents that may store
      for (std::size_t a = 0; a < role_.agents.size(); ++a) {
        bool producer = role_.agents[a].kind == AgentKind::kProducer;
        if (!producer) warpgroups += static_cast<std::size_t>(plan_.agents[a].warpgroups());
      }
      block *= static_cast<std::size_t>(plan_.store_buffers);
      plan_.store_stages = take(block * warpgroups, kSlotAlignment);
    }
  }

  void place_barriers() {
    for (PipeGroup& g : plan_.groups) {
      g.barriers = g.shares >= 0
                       ? plan_.groups[static_cast<std::size_t>(g.shares)].barriers
                       : take(std::size_t{8} * static_cast<std::size_t>(g.num_barriers()), 16);
    }
    if (role_.resource.tickets) {
      if (role_.resource.cluster_size > 1) fail("tiles by ticket need clusters of one block");
      plan_.ticket_ring = take(48, 16);
    }
    if (role_.resource.stagger > 0) plan_.meeting = take(16, 16);
    plan_.shared_bytes = round_up(next_, 128);
    bool once_more = joins_ || (plan_.store_stages != 0 && plan_.store_buffers > 1);
    if (plan_.shared_bytes > shared_limit_ && !once_more) {
      fail(fmt::format("needs {} bytes of shared memory, a block has {}", plan_.shared_bytes,
                       shared_limit_));
    }
  }

  std::size_t take(std::size_t bytes, std::size_t alignment) {
    std::size_t at = round_up(next_, alignment);
    next_ = at + bytes;
    return at;
  }

  const Program& program_;
  const Role& role_;
  std::vector<TensorMapPlan>& maps_;
  std::size_t shared_limit_;  // of a block
  bool joins_;                // whether steps may be joined (joined_steps.h)
  RolePlan plan_;
  std::size_t next_ = 0;
};

}  // namespace

int swizzle_bytes(const ValueType& type) {
  std::size_t row_bytes = static_cast<std::size_t>(type.cols) * size_bytes(type.dtype);
  return row_bytes % 128 == 0 ? 128 : row_bytes % 64 == 0 ? 64 : 32;
}

std::size_t staged_bytes(const ValueType& type) {
  std::size_t row_bytes = static_cast<std::size_t>(type.cols) * size_bytes(type.dtype);
  auto swizzle = static_cast<std::size_t>(swizzle_bytes(type));
  return round_up(round_up(row_bytes, swizzle) * round_up(static_cast<std::size_t>(type.rows), 8),
                  kSlotAlignment);
}

RolePlan plan_role(const Program& program, const Role& role, std::vector<TensorMapPlan>& maps,
                   const GpuTarget& gpu, const PlaceBeside* place) {
  // Joined steps may take more slots than were asked for, and are left where there is no room.
  for (int store_buffers : {2, 1}) {
    for (bool joins : {true, false}) {
      RolePlan plan =
          RolePlanner(program, role, maps, gpu.shared_bytes, store_buffers, joins, place).run();
      if (plan.shared_bytes <= gpu.shared_bytes) return plan;
    }
  }
  throw InternalError("a role without room that was not refused");
}

}  // namespace stretto
