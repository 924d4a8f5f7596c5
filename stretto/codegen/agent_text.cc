#include "stretto/codegen/agent_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/codegen/agent_writer.h"
#include "stretto/codegen/ending_loops.h"

namespace stretto {

namespace {

// What follows is of no line of the program.
std::string ended(const KernelContext& kernel, std::string text) {
  return text + program_line_text({.file = kernel.launch.kernel + ".cu", .line = 1});
}

}  // namespace

std::string agent_text(KernelContext& kernel, const AgentSite& site) {
  return ended(kernel, AgentWriter(kernel, site).write());
}

std::string edge_text(KernelContext& kernel, const AgentSite& site) {
  return ended(kernel, AgentWriter(kernel, site).write_edge());
}

std::string waits_text(KernelContext& kernel, const AgentSite& site, const std::string& first,
                       const std::string& step) {
  return ended(kernel, AgentWriter(kernel, site).write_waits(first, step));
}

std::string AgentWriter::write_waits(const std::string& first, const std::string& step) {
  depth_ = 2;
  std::string tile = var_text(program_, site_.role->tile_var);
  line("const int num_tiles = {};", expr(site_.role->num_tiles));
  line("for (int {} = {}; {} < num_tiles; {} += {}) {{", tile, first, tile, tile, step);
  ++depth_;
  block(agent_.body);
  --depth_;
  line("}}");
  return std::move(out_);
}

std::string AgentWriter::write_edge() {
  line("const Team team{{threadIdx.x, 1}};");
  take_over_abort();
  declare_values();
  block(agent_.body);
  return std::move(out_);
}

std::string AgentWriter::write() {
  declare_pipes();
  int first = plan_.first_thread[agent_idx()];
  if (issues_beside()) {
    write_issuer();
    line("if (threadIdx.x / 32 != {}) {{", first / 32);
    ++depth_;
    write_team(first + 32);
    --depth_;
    line("}}");
  } else if (alone()) {
    write_issuer();
  } else {
    write_team(first);
  }
  return std::move(out_);
}

void AgentWriter::write_issuer() {
  issuing_ = true;
  line("if (threadIdx.x / 32 == {} && elect_one()) {{", plan_.first_thread[agent_idx()] / 32);
  ++depth_;
  declare_passed_waits();
  declare_kept_entries();
  write_tiles();
  remembers_waits_ = false;
  --depth_;
  line("}}");
  issuing_ = false;
}

void AgentWriter::write_team(int first_thread) {
  line("const Team team{{threadIdx.x - {}, {}}};", first_thread,
       plan_.first_barrier + site_.agent_idx);
  claim_barrier(plan_.first_barrier + site_.agent_idx,
                fmt::format("agent '{}' of role '{}'", agent_.name, site_.role->name));
  std::size_t begin = out_.size();
  declare_values();
  if (apart()) {
    int own = kStoreBarrier + first_thread / 128;  // meet_in_warpgroup
    if (claim_warpgroups(own, kStores) != own) {
      refuse(site_.role->loc, "a stagger beside too many named barriers");
    }
    line("Meeting<{}> meeting{{reinterpret_cast<u32*>(smem + {})}};", values_.warpgroups(),
         plan_.meeting);
  }
  grant_first_turn();
  declare_kept_entries();
  write_tiles();
  if (!producer() && plan_.store_stages != 0) {
    line("if (team.tid % 128 == 0) tma_store_wait<0>();");
  }
  declare_origin(begin);
}

// Where products need it.
void AgentWriter::declare_origin(std::size_t at) {
  if (out_.find("dot_async", at) == std::string::npos) return;
  out_.insert(at, std::string(2 * static_cast<std::size_t>(depth_), ' ') +
                      "const Origin origin = origin_of(smem, team);\n");
}

void AgentWriter::write_tiles() {
  int cluster = site_.role->resource.cluster_size;
  std::string tile = var_text(program_, site_.role->tile_var);
  line("const int num_tiles = {};", expr(site_.role->num_tiles));
  if (!site_.early.groups.empty()) {
    if (producer() && alone()) load_constants_ahead();
    if (!site_.early.launched) line("wait_for_previous_launch();");
  }
  take_over_abort();
  std::size_t waited = out_.size();
  if (site_.role->resource.tickets) {
    ticket_loop(tile);
  } else {
    line("for (int {} = worker; {} < num_tiles; {} += {}) {{", tile, tile, tile,
         site_.role->resource.num_workers);
  }
  ++depth_;
  if (cluster > 1 && !producer()) line("// a block of the cluster holds its share of the rows");
  tile_begins();
  block(agent_.body);
  tile_ends();
  --depth_;
  line("}}");
  if (stores_alone()) line("tma_store_wait<0>();");
  if (!site_.early.groups.empty() && !site_.early.launched) declare_epoch(waited);
}

// Where the text from `at` on has a use for it: most producers have none.
void AgentWriter::declare_epoch(std::size_t at) {
  if (kernel_.epoch.empty() || out_.find("epoch", at) == std::string::npos) return;
  out_.insert(at, std::string(2 * static_cast<std::size_t>(depth_), ' ') + kernel_.epoch + "\n");
}

// The thread that issues loads draws, and tells the consumers and the threads that load beside it.
// Where no thread issues loads, the first one of those that load draws, or of a role's only agent.
void AgentWriter::ticket_loop(const std::string& tile) {
  bool only = site_.role->agents.size() == 1;
  bool first_draws = only || (producer() && !alone() && !issues_beside());
  std::string draw = fmt::format("draw_ticket(p.control + {}, {})", plan_.ticket_word,
                                 site_.role->resource.num_workers);
  line("TicketRing tickets{{smem + {}, 0}};", plan_.ticket_ring);
  line("for (int {} = worker;;) {{", tile);
  ++depth_;
  if (alone()) {
    line("if (tickets.count > 0) {} = {};", tile, draw);
    line("publish_ticket(tickets, {} < num_tiles ? {} : -1);", tile, tile);
    line("if ({} >= num_tiles) break;", tile);
  } else {
    if (first_draws) {
      line("if (team.tid == 0) {{");
      line("  TicketRing writer = tickets;");
      line("  {} = tickets.count > 0 ? {} : worker;", tile, draw);
      line("  publish_ticket(writer, {} < num_tiles ? {} : -1);", tile, tile);
      line("}}");
    }
    line("{} = read_ticket(tickets, team);", tile);
    line("if ({} < 0) break;", tile);
  }
  --depth_;
}

// The same way through tiles and loops as afterwards, up to the last slot.
void AgentWriter::load_constants_ahead() {
  ahead_ = true;
  std::string tile = var_text(program_, site_.role->tile_var);
  for (int g : site_.early.groups) {
    line("int ahead{} = 0;  // slots whose constants are under way", g);
  }
  line("for (int {} = worker; {}; {} += {}) {{", tile,
       condition(fmt::format("{} < num_tiles", tile)), tile, site_.role->resource.num_workers);
  ++depth_;
  block(agent_.body);
  --depth_;
  line("}}");
  ahead_ = false;
}

// Of a loop: while there are slots, too, where constants are loaded ahead. The groups fill
// together.
std::string AgentWriter::condition(const std::string& own) const {
  if (!ahead_) return own;
  int g = site_.early.groups[0];
  return fmt::format("{} && ahead{} < {}", own, g,
                     plan_.groups[static_cast<std::size_t>(g)].num_slots);
}

void AgentWriter::refuse(const SourceLoc& loc, const std::string& what) const {
  throw UserError(
      fmt::format("{}:{}: role '{}' on the GPU: {}", loc.file, loc.line, site_.role->name, what));
}

bool AgentWriter::producer() const { return agent_.kind == AgentKind::kProducer; }

void AgentWriter::declare_pipes() {
  for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
    const PipeGroup& group = plan_.groups[g];
    const Pipe& pipe = site_.role->pipes[static_cast<std::size_t>(group.pipes[0])];
    bool mine = pipe.producer == site_.agent_idx || pipe.consumer == site_.agent_idx;
    if (!mine) continue;
    line("u64* const full{} = reinterpret_cast<u64*>(smem + {});", g, group.barriers);
    line("u64* const empty{} = full{} + {};", g, g, group.num_slots);
    bool fills = pipe.producer == site_.agent_idx;
    if (fills && group.shares >= 0) {
      line("auto& ring{} = ring{};  // the same slots", g, group.shares);
      continue;
    }
    if (rings_.holds(static_cast<int>(g))) {
      line("u32 round{} = 0;", g);
      continue;
    }
    line("Ring<{}> ring{};", group.num_slots, g);
    if (fills) continue;
    line("Ring<{}> freed{};", group.num_slots, g);
    if (!group.is_shared()) continue;
    line("u64* const turn{} = empty{} + {};", g, g, group.num_slots);
    line("u64* const place{} = turn{} + {};", g, g, group.turn.num_turns);
    line("u32 turns{} = 0;", g);
    find_passes(agent_.body, static_cast<int>(g));
  }
}

void AgentWriter::declare_values() {
  for (std::size_t i = 0; i < agent_.values.size(); ++i) {
    const ValuePlan& p = values_.values[i];
    const ValueType& t = agent_.values[i];
    if (p.from_slot && !p.used_elsewhere) continue;
    line("Tile<{}, {}, {}> v{};  // {} x {}", element_text(t.dtype), values_.row_slots(t, p),
         values_.col_slots(t, p), i, t.rows, t.cols);
    line("using L{} = {};", i, values_.layout_text(t, p));
  }
}

void AgentWriter::block(const Block& ops) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    position_ = {&ops, i};
    auto issues = [&](std::size_t at) {
      return at < ops.size() && ops[at].code == OpCode::kDotAsync && &ops == turns_in_;
    };
    if (issues(i) && !issues(i - 1)) line("{}", take_turn_text());
    begin_turns(ops, i);
    if (loads_into_binary(ops, i)) {
      load_into_binary(ops[i], ops[i + 2]);
      i += 2;
      continue;
    }
    if (elided_.holds(ops[i])) continue;
    if (std::size_t end = end_of_packets(ops, i); end > i + 1) {
      packets_together(ops, i, end);
      i = end - 1;
      continue;
    }
    emit(ops[i]);
    pass_turns(&ops[i]);
    if (elided_.are_elided_by(ops[i])) settle_after_elided_waits();
    if (passes_turn(ops, i)) line("{}", pass_turn_text());
    if (ops[i].code == OpCode::kDotAsync && !spread_.empty()) i = write_behind(ops, i);
  }
  pass_turns(&ops);
}

// Once the products are issued that follow each other.
bool AgentWriter::passes_turn(const Block& ops, std::size_t at) const {
  if (&ops != turns_in_) return false;
  auto issues = [&](std::size_t i) { return i < ops.size() && ops[i].code == OpCode::kDotAsync; };
  return issues(at) && !issues(at + 1);
}

void AgentWriter::emit(const Op& op) {
  at_line_of(op, [&] { write_op(op); });
}

void AgentWriter::at_line_of(const Op& op, const std::function<void()>& fn) {
  std::string around = place_;
  if (op.loc.line > 0) place_ = program_line_text(op.loc);
  fn();
  place_ = std::move(around);
}

void AgentWriter::write_op(const Op& op) {
  // What the thread that issues loads has no use for.
  if (issuing_ && op.result >= 0 && !stores_alone()) return;
  if (ahead_ && op.code == OpCode::kWait) return;  // for what is no constant
  switch (op.code) {
    case OpCode::kLet:
      if (kept_entry(op)) return;
      line("const int {} = {};", var_text(program_, op.var), expr(op.exprs[0]));
      return;
    case OpCode::kLoop:
      loop(op);
      return;
    case OpCode::kWhen:
      when(op);
      return;
    case OpCode::kLoad:
    case OpCode::kLoadRows:
    case OpCode::kStore:
    case OpCode::kStoreRows:
    case OpCode::kReduceStore:
    case OpCode::kCopy:
    case OpCode::kStorePacket:
    case OpCode::kLoadPacket:
      memory(op);
      return;
    case OpCode::kDot:
    case OpCode::kDotAsync:
    case OpCode::kDotScaled:
    case OpCode::kAwait:
      product(op);
      return;
    case OpCode::kPipePut:
    case OpCode::kPipeFill:
    case OpCode::kPipeGet:
    case OpCode::kPipeRelease:
      pipe(op);
      return;
    case OpCode::kNotify:
    case OpCode::kWait:
    case OpCode::kFence:
    case OpCode::kArrive:
    case OpCode::kBarrierSync:
      sync(op);
      if (site_.rings && op.code == OpCode::kWait)
        line("ring_release_sys(p.engine_bells + bell++);");
      return;
    default:
      value(op);
  }
}

// The warpgroups of an agent issue the products of a software pipeline in turn, one or several that
// follow each other, so that one computes while another multiplies. The tensor core takes no more
// than it is about to work on: without turns, all issue at once and then all compute.
void AgentWriter::find_turns(const Block& body) {
  turns_in_ = nullptr;
  if (values_.warpgroups() < 2) return;
  bool in_turn = site_.role->resource.products == ProductOrder::kInTurn;
  bool staged = std::any_of(body.begin(), body.end(), [&](const Op& op) {
    return op.code == OpCode::kDotAsync && (in_turn || op.stage != 0);
  });
  if (staged && multiplies_apart(body)) turns_in_ = &body;
}

// Whether there are products, none of which needs all warpgroups at a barrier: those by threads and
// those whose factors are put into shared memory first do, and would wait for each other's turns.
bool AgentWriter::multiplies_apart(const Block& body) const {
  bool any = false;
  for (const Op& op : body) {
    if (op.code != OpCode::kDotAsync) continue;
    any = true;
    if (dot_kind(agent_, op) != DotKind::kWgmma || plan_.staging.contains(&op)) return false;
  }
  return any;
}

// The first turn of all is the first warpgroup's.
void AgentWriter::grant_first_turn() {
  if (!takes_turns(agent_.body)) return;
  turn_barrier_ = claim_warpgroups(kFirstTurnBarrier, "the turns");
  line("if (team.tid / 128 == {}) {}", values_.warpgroups() - 1, pass_turn_text());
}

bool AgentWriter::takes_turns(const Block& ops) {
  for (const Op& op : ops) {
    for (const Block& body : op.bodies) {
      if (takes_turns(body)) return true;
    }
    if (op.code != OpCode::kLoop) continue;
    find_turns(op.bodies[0]);
    if (turns_in_ != nullptr || staggered(op)) return true;
  }
  return false;
}

// Whether the warpgroups end this loop one after another. Until its turn, a warpgroup holds no more
// than the slots of its last steps, which are fewer than there are, so those before it get on.
bool AgentWriter::staggered(const Op& loop) const {
  bool asked = site_.role != nullptr && site_.role->resource.stagger > 0;
  if (!asked || values_.warpgroups() < 2) return false;
  const Block& body = loop.bodies[0];
  if (!multiplies_apart(body)) return false;
  bool in_turn = std::any_of(body.begin(), body.end(), [](const Op& op) { return op.stage != 0; });
  if (in_turn) refuse(loop.loc, "a stagger of two products that overlap");
  // A round of several steps (passes/stagger_products.h) holds more slots than its last ones.
  auto awaits = [](const Op& op) { return op.code == OpCode::kAwait; };
  bool rounds = std::count_if(body.begin(), body.end(), awaits) > 1;
  if (rounds) refuse(loop.loc, "a stagger of products that threads take further");
  return true;
}

void AgentWriter::loop(const Op& op) {
  if (sync_loop(op)) return;
  std::string var = var_text(program_, op.var);
  bool in_stagger = staggered(op);
  if (in_stagger) {
    line("const int alone_{} = max({}, {} - {});  // from here on in turn", var, expr(op.exprs[0]),
         expr(op.exprs[1]), site_.role->resource.stagger);
  }
  int copies = rings_.copies(op);
  rings_.enter(op);
  const std::set<int> before = apart_;
  let_lanes_part();  // as the step before may leave them
  const std::map<std::string, std::string> any_rows = any_rows_;
  find_any_rows(op);
  line("#pragma unroll 1");
  if (copies == 1) {
    line("for (int {} = {}, end_{} = {}; {}; ++{}) {{", var, expr(op.exprs[0]), var,
         expr(op.exprs[1]), condition(fmt::format("{} < end_{}", var, var)), var);
    loop_body(op, 0);
    line("}}");
  } else {
    loop_of_copies(op, copies);
  }
  any_rows_ = any_rows;
  apart_.insert(before.begin(), before.end());  // of a loop without a step
  if (!in_stagger) return;
  Expr any = op.exprs[0] < op.exprs[1];
  line("{}{}", any.is_const(1) ? "" : fmt::format("if ({}) ", expr(any)), pass_turn_text());
}

// Whole rounds of the slots, which are constants then.
void AgentWriter::loop_of_copies(const Op& op, int copies) {
  std::string var = var_text(program_, op.var);
  line("for (int first_{} = {}, end_{} = {}; first_{} < end_{}; first_{} += {}) {{", var,
       expr(op.exprs[0]), var, expr(op.exprs[1]), var, var, var, copies);
  ++depth_;
  for (int copy = 0; copy < copies; ++copy) {
    line("{{  // slots are constants");
    line("  const int {} = first_{} + {};", var, var, copy);
    loop_body(op, copy);
    line("}}");
  }
  --depth_;
  line("}}");
}

// Once, or as one of several copies that follow each other.
void AgentWriter::loop_body(const Op& op, int copy) {
  ++depth_;
  std::string var = var_text(program_, op.var);
  if (staggered(op)) line("if ({} == alone_{}) {}", var, var, take_turn_text());
  find_turns(op.bodies[0]);
  const Op* around = std::exchange(later_in_, copy > 0 ? &op : nullptr);
  const Op* last =
      rings_.copies(op) == 1 && ends_with_condition(op) ? &op.bodies[0].back() : nullptr;
  std::swap(ends_at_, last);
  block(op.bodies[0]);
  ends_at_ = last;
  later_in_ = around;
  turns_in_ = nullptr;
  --depth_;
}

void AgentWriter::when(const Op& op) {
  if (later_in_ != nullptr && releases_previous(op, *later_in_)) return block(op.bodies[0]);
  if (ends_at_ == &op) {
    line("if (!({})) break;", expr(op.exprs[0]));
    return block(op.bodies[0]);
  }
  line("if ({}) {{", expr(op.exprs[0]));
  ++depth_;
  const std::vector<int> under_way = in_flight_;
  const FixedRings before = rings_;
  std::set<int> apart = apart_;
  block(op.bodies[0]);
  --depth_;
  std::swap(apart, apart_);
  bool otherwise =
      op.bodies.size() > 1 && (!op.bodies[1].empty() || passes_.contains(&op.bodies[1]));
  if (otherwise) {
    in_flight_ = under_way;
    rings_ = before;
    line("}} else {{");
    ++depth_;
    block(op.bodies[1]);
    --depth_;
  }
  apart_.merge(apart);
  line("}}");
}

std::string AgentWriter::expr(const Expr& e) const { return expr_text(program_, e); }

}  // namespace stretto
