// Products, and the pipes that feed them.
#include <algorithm>
#include <functional>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/codegen/agent_writer.h"
#include "stretto/codegen/early_loads.h"
#include "stretto/codegen/products_under_way.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

constexpr int kRowsOfWarpgroup = 64;
constexpr int kComplete = -1;  // stands for a product by threads

WgmmaType wgmma_type(DType dtype) {
  if (dtype == DType::kBF16) return WgmmaType::kBF16;
  return dtype == DType::kF16 ? WgmmaType::kF16 : WgmmaType::kE4M3;
}

}  // namespace

std::string AgentWriter::factor(const Op& op, std::size_t operand, std::size_t& staged) {
  int reg = op.operands[operand];
  const ValuePlan& v = value_plan(reg);
  if (v.from_slot) {
    const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(slot_pipe_.at(v.slot_reg))];
    if (rings_.holds(plan.group)) {
      return fmt::format("FixedOperand<{}, {}>{{{{s{}}}}}", plan.alias, v.transposed, v.slot_reg);
    }
    return fmt::format("Operand<{}, {}>{{s{}}}", plan.alias, v.transposed, v.slot_reg);
  }
  std::string slot = stage_value(reg, staged);
  staged += staged_bytes(type(reg));
  return fmt::format("Operand<decltype({}), false>{{{}}}", slot, slot);
}

void AgentWriter::product(const Op& op) {
  if (op.code == OpCode::kAwait) return await(op);
  if (op.code == OpCode::kDotScaled) return scaled(op);
  if (op.result != op.operands[0] && !zero_accumulator(op)) {
    line("assign(v{}, v{});", op.result, op.operands[0]);
  }
  if (dot_kind(agent_, op) == DotKind::kWgmma) {
    wgmma(op);
  } else {
    simt(op);
  }
}

void AgentWriter::wgmma(const Op& op) {
  const ValueType& a = type(op.operands[1]);
  const ValueType& b = type(op.operands[2]);
  bool sums = type(op.result).cols > b.cols;
  int columns = static_cast<int>(b.cols), chunk = swizzle_bytes(b) / 2;
  if (!sums) {
    kernel_.wgmmas.insert({wgmma_type(a.dtype), columns});
  } else {
    kernel_.wgmmas.insert({wgmma_type(a.dtype), chunk + static_cast<int>(kSumColumns)});
    if (columns > chunk) kernel_.wgmmas.insert({wgmma_type(a.dtype), columns - chunk});
  }
  bool staged_any = plan_.staging.count(&op) != 0;
  std::size_t staged = staged_any ? plan_.staging.at(&op) : 0;
  if (staged_any) line("named_barrier_sync(team.barrier, {});", values_.num_threads);
  std::string left = value_plan(op.operands[1]).from_slot ? factor(op, 1, staged)
                                                          : fmt::format("v{}", op.operands[1]);
  std::string right = factor(op, 2, staged);
  if (staged_any) {
    line("fence_proxy_async_shared();");
    line("named_barrier_sync(team.barrier, {});", values_.num_threads);
  }
  if (sums) {
    line("dot_async_with_sums<{}, {}, {}>(v{}, {}, {}, {}, origin);", b.cols, a.cols,
         zero_accumulator(op), op.result, left, right, plan_.ones / 16);
  } else if (may_leave_columns_out(op)) {
    const int parts = column_parts(agent_, op);
    for (int part = 1; part < parts; ++part) {
      kernel_.wgmmas.insert({wgmma_type(a.dtype), columns / parts * part});
    }
    auto known = any_rows_.find(parts_text(op));
    line("dot_async_of_parts<{}, {}, {}>(v{}, {}, {}, {}, origin);", b.cols, a.cols, parts,
         op.result, left, right, known != any_rows_.end() ? known->second : parts_text(op));
  } else {
    line("{}dot_async<{}, {}, {}>(v{}, {}, {}, origin);", if_any_row(op), b.cols, a.cols,
         zero_accumulator(op), op.result, left, right);
  }
  if (op.code == OpCode::kDot) {
    line("wgmma_wait<0>();");
    meet_in_warps();
    line("settle(v{});", op.result);
  } else {
    in_flight_.push_back(op.result);
  }
}

// A warpgroup whose rows are all left out has nothing to multiply. The assembler has to see that
// the branch is the same for all threads of a warp: elsewhere it ends each product before the next
// begins, and warns of nothing.
std::string AgentWriter::any_row_text(const Op& op) const {
  return fmt::format("int(uniform(u32({}))) > int(origin.group) * {}", expr(op.exprs[0]),
                     kRowsOfWarpgroup);
}

bool AgentWriter::may_leave_rows_out(const Op& op) const {
  bool product = op.code == OpCode::kDot || op.code == OpCode::kDotAsync;
  bool named = product && op.exprs.size() == 1;
  if (!named || site_.role->resource.cluster_size > 1) return false;
  int warpgroups = values_.warpgroups();
  return warpgroups > 1 && type(op.result).rows == kRowsOfWarpgroup * warpgroups;
}

std::string AgentWriter::if_any_row(const Op& op) const {
  if (!may_leave_rows_out(op) || zero_accumulator(op)) return "";
  auto known = any_rows_.find(expr(op.exprs[0]));
  return fmt::format("if ({}) ", known != any_rows_.end() ? known->second : any_row_text(op));
}

// How many parts of its columns a product has to multiply, the same for all threads of a warp.
std::string AgentWriter::parts_text(const Op& op) const {
  const std::int64_t cols = type(op.operands[2]).cols / column_parts(agent_, op);
  return fmt::format("(int(uniform(u32({}))) + {}) / {}", expr(op.exprs[1]), cols - 1, cols);
}

bool AgentWriter::may_leave_columns_out(const Op& op) const {
  return column_parts(agent_, op) > 1 && !zero_accumulator(op) &&
         value_plan(op.operands[1]).from_slot;
}

// What the steps of a loop would all find.
void AgentWriter::find_any_rows(const Op& loop) {
  std::vector<int> vars;  // of a step
  std::vector<const Op*> products;
  std::function<void(const Op&)> survey = [&](const Op& op) {
    if (op.code == OpCode::kLet || op.code == OpCode::kLoop) vars.push_back(op.var);
    if (may_leave_rows_out(op) || may_leave_columns_out(op)) products.push_back(&op);
    for (const Block& body : op.bodies) std::for_each(body.begin(), body.end(), survey);
  };
  survey(loop);
  for (const Op* op : products) {
    const bool columns = may_leave_columns_out(*op);
    const Expr& limit = op->exprs[columns ? 1 : 0];
    auto changes = [&](int var) { return uses_var(limit, var); };
    if (std::any_of(vars.begin(), vars.end(), changes)) continue;
    std::string name = fmt::format("{}{}", columns ? "parts" : "any_rows", num_any_rows_);
    if (!any_rows_.emplace(columns ? parts_text(*op) : expr(limit), name).second) continue;
    ++num_any_rows_;
    line("[[maybe_unused]] const {} {} = {};", columns ? "int" : "bool", name,
         columns ? parts_text(*op) : any_row_text(*op));
  }
}

void AgentWriter::simt(const Op& op) {
  if (zero_accumulator(op)) line("fill(v{}, 0.f);", op.result);
  add_product(op, fmt::format("v{}", op.result));
  if (op.code == OpCode::kDotAsync) in_flight_.push_back(kComplete);
}

// Of a role without stages; those with stages have none left (passes/expand_scaled_products.h).
void AgentWriter::scaled(const Op& op) {
  if (op.result != op.operands[0]) line("assign(v{}, v{});", op.result, op.operands[0]);
  line("{{");
  ++depth_;
  line("decltype(v{}) part;", op.result);
  line("fill(part, 0.f);");
  add_product(op, "part");
  line("map(part, part, v{}, Mul());", op.operands[3]);
  line("map(part, part, v{}, Mul());", op.operands[4]);
  line("map(v{}, v{}, part, Add());", op.result, op.result);
  --depth_;
  line("}}");
}

// `acc` += the product, by the threads' own arithmetic.
void AgentWriter::add_product(const Op& op, const std::string& acc) {
  bool staged_any = plan_.staging.count(&op) != 0;
  std::size_t staged = staged_any ? plan_.staging.at(&op) : 0;
  if (staged_any) line("named_barrier_sync(team.barrier, {});", values_.num_threads);
  std::string left = factor(op, 1, staged);
  std::string right = factor(op, 2, staged);
  for (std::size_t i : {1, 2}) {
    const ValuePlan& v = value_plan(op.operands[i]);
    if (v.from_slot) threads_read_.insert(slot_pipe_.at(v.slot_reg));
  }
  if (staged_any) line("named_barrier_sync(team.barrier, {});", values_.num_threads);
  line("dot_simt<L{}, {}, {}>({}, {}, {}, team);", op.result, type(op.operands[1]).cols,
       type(op.operands[2]).cols, acc, left, right);
  let_lanes_part();
}

namespace {

// The block that holds the operation.
const Block* block_of(const Block& block, const Op& op) {
  for (const Op& o : block) {
    if (&o == &op) return &block;
    for (const Block& body : o.bodies) {
      if (const Block* found = block_of(body, op)) return found;
    }
  }
  return nullptr;
}

}  // namespace

// The accumulator was filled with zero before in the same block, by a register of its own.
bool AgentWriter::zero_accumulator(const Op& op) const {
  int acc = op.operands[0];
  if (op.result == acc) return false;
  const Block* ops = block_of(agent_.body, op);
  if (ops == nullptr) return false;
  for (auto at = static_cast<std::size_t>(&op - ops->data()); at-- > 0;) {
    const Op& other = (*ops)[at];
    if (other.result == acc) return other.code == OpCode::kFill && other.value == 0;
    if (!other.bodies.empty()) return false;
  }
  return false;
}

// The last reduction before a wait for products, which depends on most of what was computed while
// they were under way: it is held there, so that the computation does not move behind the wait.
bool AgentWriter::pinned(const Op& reduction) const {
  auto reduces = [&](const Op& op) {
    return op.code == OpCode::kReduce && op.axis == 1 && type(op.result).dtype == DType::kF32;
  };
  return reduces(reduction) && awaits_next(reduces);
}

// The same of a factor of products that comes from the last conversion before such a wait.
bool AgentWriter::pinned_factor(const Op& cast) const {
  bool multiplies =
      std::any_of(in_flight_.begin(), in_flight_.end(), [](int reg) { return reg != kComplete; });
  if (cast.code != OpCode::kCast || !multiplies) return false;
  const ValuePlan& plan = value_plan(cast.result);
  const ValueType& t = type(cast.result);
  bool factor = plan.fragment && plan.used_by_dot && size_bytes(t.dtype) == 2;
  return factor && t.cols % 16 == 0 && awaits_next([](const Op&) { return false; });
}

// Whether the next product or wait for products, or operation of which `other` holds, after the one
// that is being written is a wait.
bool AgentWriter::awaits_next(const std::function<bool(const Op&)>& other) const {
  const auto& [ops, at] = position_;
  auto next = std::find_if(
      ops->begin() + static_cast<std::ptrdiff_t>(at) + 1, ops->end(), [&](const Op& op) {
        return op.code == OpCode::kAwait || op.code == OpCode::kDotAsync || other(op);
      });
  return next != ops->end() && next->code == OpCode::kAwait;
}

// A product is complete when no more than `keep` younger ones are under way; the compiler learns
// here which accumulators it may touch.
void AgentWriter::await(const Op& op) {
  auto keep = static_cast<std::size_t>(op.exprs[0].const_value());
  auto leaves_out = [&](const Op& o) { return may_leave_rows_out(o) && !zero_accumulator(o); };
  line("wgmma_wait<{}>();", groups_under_way(agent_, op, leaves_out));
  meet_in_warps();
  std::vector<int> complete;
  while (in_flight_.size() > keep) {
    complete.push_back(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
  }
  std::sort(complete.begin(), complete.end());
  complete.erase(std::unique(complete.begin(), complete.end()), complete.end());
  for (int reg : complete) {
    if (reg == kComplete) continue;
    if (std::find(in_flight_.begin(), in_flight_.end(), reg) == in_flight_.end()) {
      line("settle(v{});", reg);
    }
  }
}

void AgentWriter::pipe(const Op& op) {
  if (ahead_) return put_ahead(op);
  const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(op.symbol)];
  switch (op.code) {
    case OpCode::kPipePut:
      if (!producer()) refuse(op.loc, "a pipe_put by an agent that is no producer");
      if (alone() != plan.by_tma(op)) return leave_to_others(plan);
      return alone() ? put_by_tma(op, plan) : fill(op);
    case OpCode::kPipeFill:
      return fill_from_registers(op);
    case OpCode::kPipeGet:
      return get(op, plan);
    default:
      return stores_alone() ? epilogue_release(plan) : release(op, plan);
  }
}

// The pipes of a group share a ring: what is done once a slot, the first or the last of them does.
void AgentWriter::put_by_tma(const Op& op, const PipePlan& plan) {
  int g = plan.group;
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(g)];
  if (group.pipes.front() == op.symbol) {
    bool cluster = site_.role->resource.cluster_size > 1, read = read_by_threads(group);
    bool acquires = !cluster || (read && holds_own_rows(group));
    std::string wait = fmt::format("mbarrier_wait_{}(&empty{}[ring{}.slot()], ring{}.round() ^ 1);",
                                   acquires ? "acquire_cta" : "relaxed_cluster", g, g, g);
    if (!acquires && read) wait += " fence_acq_rel_cluster();";
    std::string announce = fmt::format("mbarrier_arrive_expect_tx(&full{}[ring{}.slot()], {});", g,
                                       g, bytes_of_slot(group));
    if (begins_early(g)) {
      // Slots filled ahead were empty. To wait for that now would be for ever where their readers
      // have freed them meanwhile: the wait is for the phase before.
      line("if (ahead{} == 0) {{", g);
      line("  {}", wait);
      line("  {}", announce);
      line("}}");
    } else {
      line("{}", wait);
      // What threads have written to the slot before comes before what TMA writes.
      if (plan.in_turn()) line("fence_proxy_async_shared();");
      line("{}", announce);
    }
  }
  if (begins_early(g) && is_constant(*op.region, site_.early.tensors)) {
    line("if (ahead{} == 0) {{", g);
    ++depth_;
    put(op, plan);
    --depth_;
    line("}}");
  } else {
    put(op, plan);
  }
  if (group.pipes.back() != op.symbol) return;
  line("ring{}.next();", g);
  if (begins_early(g)) line("if (ahead{} > 0) --ahead{};", g, g);
}

void AgentWriter::get(const Op& op, const PipePlan& plan) {
  int g = plan.group;
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(g)];
  slot_pipe_[op.result] = op.symbol;
  threads_read_.erase(op.symbol);
  apart_.insert(g);
  std::optional<std::string> first = at_step(g, slot_text(g), 0);
  if (first && group.pipes.front() == op.symbol) {
    line("{}mbarrier_wait_acquire_cta(&full{}[{}], {});", *first, g, slot_text(g), round_text(g));
  }
  // What threads have written, the tensor core sees after a fence.
  if (!plan.by_tma() && plan.read_by_products) line("fence_proxy_async_shared();");
  line("const {} s{}{{smem + {}}};", plan.alias, op.result, place_text(plan));
  clear_past_end(op, plan);
  if (value_plan(op.result).used_elsewhere && !alone()) {
    if (!load_spread(op)) line("load_smem<L{}>(v{}, s{}, team);", op.result, op.result, op.result);
    threads_read_.insert(op.symbol);
  }
  if (group.pipes.back() == op.symbol) pass_slot(g);
}

// One arrival per warp: each warp's own accesses have completed.
void AgentWriter::release(const Op& op, const PipePlan& plan) {
  int g = plan.group;
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(g)];
  const std::vector<int>& pipes = group.pipes;
  if (pipes.back() != op.symbol) return;
  std::optional<std::string> last = at_step(g, freed_text(g), group.steps - 1);
  if (!last) return pass_freed(g);
  int cluster = plan.by_tma() ? site_.role->resource.cluster_size : 1;
  bool read =
      std::any_of(pipes.begin(), pipes.end(), [&](int p) { return threads_read_.contains(p); });
  bool fences = cluster > 1 && read;
  if (!alone() && (apart_.contains(g) || fences)) {
    line("__syncwarp();");
    meet_in_warps();
  }
  if (cluster == 1) {
    line("{}if (team.tid % 32 == 0) mbarrier_arrive_release_cta(&empty{}[{}]);", *last, g,
         freed_text(g));
    return pass_freed(g);
  }
  // For who fills the slot again: the own block, or others, too.
  if (fences) line("fence_acq_rel_{}();", holds_own_rows(group) ? "cta" : "cluster");
  line("if (team.tid % 32 < {}) mbarrier_arrive_relaxed_cluster(&empty{}[{}], team.tid % 32);",
       cluster, g, freed_text(g));
  pass_freed(g);
}

void AgentWriter::let_lanes_part() {
  for (std::size_t g = 0; g < plan_.groups.size(); ++g) apart_.insert(static_cast<int>(g));
}

std::string AgentWriter::slot_text(int group) const {
  return rings_.holds(group) ? fmt::format("{}", rings_.next(group))
                             : fmt::format("ring{}.slot()", group);
}

std::string AgentWriter::round_text(int group) const {
  return rings_.holds(group) ? fmt::format("round{}", group) : fmt::format("ring{}.round()", group);
}

std::string AgentWriter::freed_text(int group) const {
  return rings_.holds(group) ? fmt::format("{}", rings_.oldest(group))
                             : fmt::format("freed{}.slot()", group);
}

// Where in shared memory the slot that is got next begins.
std::string AgentWriter::place_text(const PipePlan& plan) const {
  std::string slot = slot_text(plan.group);
  if (!plan.joined) return fmt::format("{} + {} * {}", plan.offset, slot, plan.slot_bytes);
  int steps = plan_.groups[static_cast<std::size_t>(plan.group)].steps;
  return fmt::format("{} + {} / {} * {} + {} % {} * 4", plan.offset, slot, steps, plan.slot_bytes,
                     slot, steps);
}

// The condition, or "" where it holds here, that `slot` is that of one of the steps that are handed
// over together; nothing where it is that of another one.
std::optional<std::string> AgentWriter::at_step(int group, const std::string& slot,
                                                int step) const {
  int steps = plan_.groups[static_cast<std::size_t>(group)].steps;
  if (steps == 1) return "";
  if (!rings_.holds(group)) return fmt::format("if ({} % {} == {}) ", slot, steps, step);
  if (std::stoi(slot) % steps != step) return std::nullopt;
  return "";
}

void AgentWriter::pass_slot(int group) {
  if (!rings_.holds(group)) return line("ring{}.next();", group);
  if (rings_.pass_next(group)) line("round{} ^= 1;", group);
}

void AgentWriter::pass_freed(int group) {
  if (!rings_.holds(group)) return line("freed{}.next();", group);
  rings_.pass_oldest(group);
}

std::size_t AgentWriter::bytes_of_slot(const PipeGroup& group) const {
  std::size_t bytes = 0;
  for (int p : group.pipes) bytes += plan_.pipes[static_cast<std::size_t>(p)].bytes_arriving;
  return bytes;
}

bool AgentWriter::begins_early(int group) const {
  const std::vector<int>& early = site_.early.groups;
  return std::find(early.begin(), early.end(), group) != early.end();
}

// Of a slot of the first round, which is free: what is constant. The rest of its bytes follows.
void AgentWriter::put_ahead(const Op& op) {
  const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(op.symbol)];
  int g = plan.group;
  if (!begins_early(g)) return;
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(g)];
  if (group.pipes.front() == op.symbol) {
    line("mbarrier_arrive_expect_tx(&full{}[ahead{}], {});", g, g, bytes_of_slot(group));
  }
  if (is_constant(*op.region, site_.early.tensors)) put(op, plan);
  if (group.pipes.back() == op.symbol) line("++ahead{};", g);
}

void AgentWriter::put(const Op& op, const PipePlan& plan) {
  const Region& r = *op.region;
  int map = plan.views.at(&op);
  const TensorMapPlan& view = kernel_.launch.maps[static_cast<std::size_t>(map)];
  const Pipe& pipe = site_.role->pipes[static_cast<std::size_t>(op.symbol)];
  int g = plan.group;
  std::string slot = ahead_ ? fmt::format("ahead{}", g) : fmt::format("ring{}.slot()", g);
  std::string x = coordinate(r, r.col_dim), y = coordinate(r, view.row_dim),
              z = coordinate(r, view.outer_dim);
  int cluster = site_.role->resource.cluster_size;
  std::string row_in_slot = "0";
  if (plan.split == Split::kRows) y += fmt::format(" + cta * {}", plan.rows_loaded);
  if (plan.split == Split::kMulticast) {
    y += fmt::format(" + cta * {}", plan.rows_loaded);
    row_in_slot = fmt::format("cta * {}", plan.rows_loaded);
  }
  std::int64_t chunk_bytes = plan.rows * plan.swizzle;
  for (std::int64_t col = 0, chunk = 0; col < pipe.type.cols; col += view.box_cols, ++chunk) {
    for (std::int64_t row = 0; row < plan.rows_loaded; row += view.box_rows) {
      std::string to = fmt::format("smem + {} + {} * {} + {}", plan.offset, slot, plan.slot_bytes,
                                   chunk * chunk_bytes + row * plan.swizzle);
      if (row_in_slot != "0") to += fmt::format(" + {} * {}", row_in_slot, plan.swizzle);
      if (plan.split == Split::kMulticast) {
        line(
            "tma_load_3d_multicast({}, &p.maps[{}], &full{}[{}], {} + {}, {} + {}, {}, "
            "{});",
            to, map, g, slot, x, col, y, row, z, (1 << cluster) - 1);
      } else {
        line("tma_load_3d({}, &p.maps[{}], &full{}[{}], {} + {}, {} + {}, {});", to, map, g, slot,
             x, col, y, row, z);
      }
    }
  }
}

// Rows past the end of what was put are zero; TMA knows only the tensor's own end.
void AgentWriter::clear_past_end(const Op& op, const PipePlan& plan) {
  if (plan.views.empty()) return;  // the threads that filled the slot know the limits
  if (op.exprs.empty()) return;
  bool cluster = site_.role->resource.cluster_size > 1;
  if (cluster && plan.split != Split::kMulticast) {
    refuse(op.loc, "a row limit on rows that a cluster shares out");
  }
  std::string limit = expr(op.exprs[0]);
  // Either of two warpgroups apart clears what it is going to read, the second once more.
  line("if ({} < {}) {{", limit, type(op.result).rows);
  line("  clear_rows(s{}, max({}, 0), {}, {});", op.result, limit,
       apart() ? "Team{team.tid % 128, 0}" : "team", apart() ? 128 : values_.num_threads);
  line("  fence_proxy_async_shared();");
  // The release of a slot that all blocks of the cluster fill again is relaxed.
  if (cluster) line("  fence_acq_rel_cluster();");
  apart() ? line("  meet_in_warpgroup();")
          : line("  named_barrier_sync(team.barrier, {});", values_.num_threads);
  line("}}");
}

}  // namespace stretto
