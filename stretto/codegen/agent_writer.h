// Behind agent_text.h: writes one agent, operation by operation. Split over files by kind of
// operation: agent_text.cc control, value_text.cc values, memory_text.cc memory, product_text.cc
// products and pipes, spread_text.cc reads that stand around a product, epilogue_text.cc pipes
// filled from registers, sync_text.cc signals, kept_text.cc what is kept from tile to tile,
// record_text.cc timestamps, delay_text.cc pauses of kernels under test.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/codegen/agent_text.h"
#include "stretto/codegen/elided_waits.h"
#include "stretto/codegen/expr_text.h"
#include "stretto/codegen/fixed_rings.h"
#include "stretto/codegen/program_lines.h"
#include "stretto/ir/sync_table.h"

namespace stretto {

// What warpgroups that store by TMA, or are apart, have named barriers for.
inline constexpr const char* kStores = "the warpgroups";

// Of the device vocabulary (device/sm90/tile.h).
const char* functor(BinaryOp op);

class AgentWriter {
 public:
  AgentWriter(KernelContext& kernel, const AgentSite& site)
      : kernel_(kernel),
        program_(kernel.program),
        site_(site),
        plan_(*site.plan),
        agent_(site.role->agents[static_cast<std::size_t>(site.agent_idx)]),
        values_(site.plan->agents[static_cast<std::size_t>(site.agent_idx)]),
        rings_(plan_, *site.role, site.agent_idx),
        elided_(site),
        place_(program_line_text(site.role->loc)) {}

  std::string write();
  std::string write_edge();
  std::string write_waits(const std::string& first, const std::string& step);

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    std::string body = fmt::format(text, std::forward<Args>(args)...);
    if (body[0] != '#') out_ += place_;
    out_ += (body[0] == '#' ? "" : std::string(2 * static_cast<std::size_t>(depth_), ' ')) + body;
    out_ += "\n";
  }

  void declare_pipes();
  void begin_turns(const Block& ops, std::size_t at);
  void find_passes(const Block& block, int group);
  void pass_turns(const void* behind);
  void write_issuer();
  void write_team(int first_thread);
  void write_tiles();
  void load_constants_ahead();
  void declare_epoch(std::size_t at);
  void declare_origin(std::size_t at);
  void put_ahead(const Op& op);
  bool begins_early(int group) const;
  void declare_values();
  void block(const Block& ops);
  void emit(const Op& op);
  // fn() writes lines that come of this one of the program.
  void at_line_of(const Op& op, const std::function<void()>& fn);
  void write_op(const Op& op);
  void ticket_loop(const std::string& tile);
  void loop(const Op& op);
  void loop_of_copies(const Op& op, int copies);
  void loop_body(const Op& op, int copy);
  void when(const Op& op);
  void find_turns(const Block& body);
  void grant_first_turn();
  bool takes_turns(const Block& ops);
  bool passes_turn(const Block& ops, std::size_t at) const;
  std::string take_turn_text() const;
  std::string pass_turn_text() const;
  bool multiplies_apart(const Block& body) const;
  bool staggered(const Op& loop) const;
  bool rescales(const Op& op) const;
  void value(const Op& op);
  void reduce(const Op& op);
  void columns(const Op& op);
  void transpose(const Op& op);
  void memory(const Op& op);
  std::string packet_types(const Op& op) const;
  std::string packet_source(const Op& op) const;
  void take_packets(const Op& op, const std::string& call);
  std::int64_t words_under_way() const;
  std::size_t end_of_packets(const Block& ops, std::size_t at) const;
  void packets_together(const Block& ops, std::size_t begin, std::size_t end);
  void product(const Op& op);
  void pipe(const Op& op);
  void sync(const Op& op);
  bool sync_loop(const Op& op);
  void notify_text(const Op& op);
  void wait_text(const Op& op);
  void counter_text(const Op& op);
  std::string threshold(const Op& wait) const;
  void wait_for_text(const Op& op, const std::string& count);
  void declare_passed_waits();
  void remembered_wait(const Op& op);
  void declare_kept_entries();
  bool kept_entry(const Op& op);
  // Signal, channel and count.
  using WaitKey = std::tuple<int, std::int64_t, std::int64_t>;
  static WaitKey key_of_wait(const Op& op);
  bool keeps(const Op& op) const;
  void kept_wait(const Op& op);
  bool tells_of_abort() const;
  std::string unless_lost(const Region& to) const;
  void take_over_abort();
  std::string epoch_of_wait() const;
  void step_text(const SyncStep& step);
  void notify_apart(const Op& op);
  void wait_apart(const Op& op);
  // What a kernel that records does at these places, and nothing in any other.
  void tile_begins();
  void tile_ends();
  bool records() const { return site_.lane >= 0 && (issuing_ || !issues_beside()); }
  void timer_text(const char* name);
  // A pause, where the kernel is to have them; `channel` may be absent.
  void delay_text(const Expr& channel);
  void settle_before_notify();
  void settle_copies();
  void settle_after_wait();
  void settle_after_elided_waits();
  bool uses_tma() const { return !plan_.groups.empty() || plan_.store_stages != 0; }

  // Of a group's ring, where it stands: the slot and round to get, the slot to release.
  std::string slot_text(int group) const;
  std::string round_text(int group) const;
  std::string freed_text(int group) const;
  std::string place_text(const PipePlan& plan) const;
  std::optional<std::string> at_step(int group, const std::string& slot, int step) const;
  void pass_slot(int group);
  void pass_freed(int group);
  void meet_in_warps() { apart_.clear(); }
  void let_lanes_part();
  void put(const Op& op, const PipePlan& plan);
  void put_by_tma(const Op& op, const PipePlan& plan);
  void get(const Op& op, const PipePlan& plan);
  void release(const Op& op, const PipePlan& plan);
  std::size_t bytes_of_slot(const PipeGroup& group) const;
  bool read_by_threads(const PipeGroup& group) const;
  bool holds_own_rows(const PipeGroup& group) const;
  std::string condition(const std::string& own) const;
  void fill(const Op& op);
  void fill_one(const Op& op, const PipePlan& plan, const std::string& at);
  void fill_joined(const Op& op, const PipePlan& plan);
  void leave_to_others(const PipePlan& plan);
  void fill_from_registers(const Op& op);
  void epilogue_store(const Op& op, TensorMapPlan view);
  void epilogue_release(const PipePlan& plan);
  int fill_width(const Region& r) const;
  void clear_past_end(const Op& op, const PipePlan& plan);
  bool loads_into_binary(const Block& ops, std::size_t load) const;
  void load_into_binary(const Op& load, const Op& binary);
  int quads_in_flight(const Op& load) const;
  void store(const Op& op);
  bool stores_by_tma(const Op& op, TensorMapPlan& view) const;
  void store_tma(const Op& op, const TensorMapPlan& view);
  void wgmma(const Op& op);
  // A row of which a thread's columns are read before the product that is issued next up to one,
  // and the rest behind it.
  struct SpreadRead {
    int reg = -1;
    int before = 0, all = 0;
  };
  bool load_spread(const Op& get);
  bool spreads(std::size_t get) const;
  int room_for_reads() const;
  int registers_of(int reg) const;
  std::string part_text(const SpreadRead& read, int from, int to) const;
  std::size_t write_behind(const Block& ops, std::size_t product);
  std::string any_row_text(const Op& op) const;
  bool may_leave_rows_out(const Op& op) const;
  std::string if_any_row(const Op& op) const;
  std::string parts_text(const Op& op) const;
  bool may_leave_columns_out(const Op& op) const;
  void find_any_rows(const Op& loop);
  void simt(const Op& op);
  void scaled(const Op& op);
  void add_product(const Op& op, const std::string& acc);
  void await(const Op& op);
  bool pinned(const Op& reduction) const;
  bool pinned_factor(const Op& cast) const;
  bool awaits_next(const std::function<bool(const Op&)>& other) const;
  std::string scratch_text(DType dtype) const;
  // "Operand<...>{...}" of a factor, after putting a register into its staging slot.
  std::string factor(const Op& op, std::size_t operand, std::size_t& staged);
  std::string stage_value(int reg, std::size_t offset);

  // UserError naming the line and the role.
  [[noreturn]] void refuse(const SourceLoc& loc, const std::string& what) const;
  bool producer() const;
  // One thread issues what TMA loads while others fill slots.
  bool issues_beside() const {
    return producer() && plan_.fills(*site_.role, site_.agent_idx) &&
           plan_.issues(*site_.role, site_.agent_idx);
  }
  // One thread does the agent's work, or that part of it which is being written.
  bool alone() const {
    bool issues = producer() && (issuing_ || !plan_.fills(*site_.role, site_.agent_idx));
    return issues || stores_alone();
  }
  // Its warpgroups are apart by part of a tile, and none waits for another at a wait or a notify.
  // Events are recorded by one thread of an agent, which then stands for all.
  bool apart() const {
    return plan_.meeting != 0 && !producer() && !alone() && values_.warpgroups() > 1 && !records();
  }
  bool stores_alone() const {
    return site_.role != nullptr && plan_.stores_alone(*site_.role, site_.agent_idx);
  }
  std::size_t agent_idx() const { return static_cast<std::size_t>(site_.agent_idx); }
  std::string expr(const Expr& e) const;
  const ValueType& type(int reg) const { return agent_.values[static_cast<std::size_t>(reg)]; }
  const ValuePlan& value_plan(int reg) const {
    return values_.values[static_cast<std::size_t>(reg)];
  }
  const Tensor& tensor(const Region& r) const {
    return program_.tensors[static_cast<std::size_t>(r.tensor)];
  }
  // "Box<T>{...}" under a region; `element`: T, with const where it is read. `picked`: all rows of
  // the tensor from the region's on, since a value chooses among them.
  std::string box(const Region& r, const std::string& element, bool picked = false) const;
  std::string row_to(const Region& r, const std::string& row) const;
  std::string base(const Region& r) const;
  int run_width(const Region& r, const ValuePlan& plan) const;
  // Whether the region ends, in its tensor, at a multiple of `run` columns of the tile.
  bool ends_between_runs(const Region& r, int run) const;
  std::string packet_form(const Region& r, const ValuePlan& plan) const;
  // Columns, rows and outer coordinate of a TMA access.
  std::string coordinate(const Region& r, int dim) const;
  std::string map_text(const Region& r, TensorMapPlan view);
  std::string outer_coordinate(const Region& r, const TensorMapPlan& view) const;
  std::string within_slot(const Region& r, const TensorMapPlan& view) const;
  bool never_negative(const Expr& e) const;
  bool zero_accumulator(const Op& op) const;
  int sync_site(const Op& op);
  int waits_to_come() const;
  int barrier_id(const Op& op);
  std::string& user_of_barrier(int id);
  void claim_barrier(int id, const std::string& user);
  int claim_warpgroups(int first, const std::string& use);
  int barrier_threads(int barrier) const;

  KernelContext& kernel_;
  const Program& program_;
  const AgentSite& site_;
  const RolePlan& plan_;
  const Agent& agent_;
  const AgentPlan& values_;
  FixedRings rings_;
  ElidedWaits elided_;
  std::string out_;
  int depth_ = 3;
  bool issuing_ = false;  // writing what one thread does beside the others, which fill slots
  bool ahead_ = false;    // writing the loads that come before the wait for the launch before
  bool remembers_waits_ = false;  // writing what one thread does that keeps what it waited for
  std::map<std::string, std::string> kept_entries_;  // names, by the text that reads them
  std::map<WaitKey, std::size_t> kept_waits_;        // bits of `waited`
  bool keeps_waits_ = false;
  std::map<int, int> slot_pipe_;  // by the register that a kPipeGet wrote
  std::set<int> threads_read_;    // pipes whose last kPipeGet is read into registers
  // Groups whose turn other consumers have behind an op or a block.
  std::map<const void*, std::vector<int>> passes_;
  // Groups for whose slot a lane may still wait, or that it may still read, while others of its
  // warp have gone on: before one lane arrives for all, they meet.
  std::set<int> apart_;
  std::vector<SpreadRead> spread_;   // around the product that is issued next, or was just now
  const Block* turns_in_ = nullptr;  // body of the loop that is being written
  const Op* later_in_ = nullptr;     // the loop of which a copy but the first is being written
  const Op* ends_at_ = nullptr;      // the condition by whose failure the loop around it ends
  std::string place_;                // in the program, of what is being written: a #line
  // By a number of rows that products leave none but these out of: whether a warpgroup has any.
  // By what tells which rows, or parts of columns, products leave out: the name that has it.
  std::map<std::string, std::string> any_rows_;
  int num_any_rows_ = 0;
  int turn_barrier_ = kFirstTurnBarrier;  // the first of those of warpgroups in turn
  int store_barrier_ = 0;                 // of those that store by TMA; 0: of none yet
  std::vector<int> in_flight_;            // accumulators of products under way, oldest first
  std::pair<const Block*, std::size_t> position_{nullptr, 0};
};

}  // namespace stretto
