#include "stretto/codegen/kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/codegen/abort_text.h"
#include "stretto/codegen/agent_text.h"
#include "stretto/codegen/barrier_text.h"
#include "stretto/codegen/delay_text.h"
#include "stretto/codegen/early_loads.h"
#include "stretto/codegen/end_text.h"
#include "stretto/codegen/engine_waits.h"
#include "stretto/codegen/expr_text.h"
#include "stretto/codegen/gate_text.h"
#include "stretto/codegen/index_width.h"
#include "stretto/codegen/packet_lines.h"
#include "stretto/codegen/params_text.h"
#include "stretto/codegen/program_lines.h"
#include "stretto/codegen/record_text.h"
#include "stretto/codegen/residency.h"
#include "stretto/codegen/table_text.h"
#include "stretto/device/device_sources.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

constexpr const char* kHeaders[] = {"dot.h",    "copy.h",  "global.h", "meeting.h", "packet.h",
                                    "reduce.h", "ring.h",  "signal.h", "ticket.h",  "smem.h",
                                    "store.h",  "table.h", "tile.h"};

// Stands in the text until all TMA views are known.
constexpr const char* kPrefetch = "@prefetch@";

class KernelWriter {
 public:
  KernelWriter(const Program& program, const KernelOptions& options)
      : program_(program), options_(options), context_{program, launch_, {}, {}} {
    context_.constant.resize(program.tensors.size());
    for (const std::string& name : options.constants) mark_constant(name);
    context_.delays = options.delays.has_value();
  }

  GeneratedKernel run() {
    launch_.kernel = identifier(program_.name);
    place_signals();
    launch_.engines = plan_engines(program_, launch_.signal_offsets);
    if (has_engines()) launch_.gate = launch_.kernel + "_gate";
    launch_.beside_gate =
        has_engines() && only<OpCode::kNotify>(program_.on_start.body) && !options_.record;
    launch_.cooperative = !launch_.beside_gate && needs_all_resident(program_, kMostWaitingBlocks);
    plan_roles();
    std::string body = gate_kernel() + kernel_body();
    std::string prefetch;
    if (!launch_.maps.empty()) {
      prefetch = fmt::format("  if (threadIdx.x < {}) tma_prefetch_map(&p.maps[threadIdx.x]);\n",
                             launch_.maps.size());
    }
    // Nothing in memory but constants may be looked at before what the stream holds before this
    // launch is complete.
    prefetch += stream_order_text(launch_.beside_gate, roles_wait_);
    body.insert(body.find(kPrefetch), prefetch);
    body.erase(body.find(kPrefetch), std::string(kPrefetch).size());
    GeneratedKernel out;
    body = header() + params_text(program_, launch_, options_.record) + body;
    out.source = without_program_lines(body);
    out.expanded = expand_includes(body);
    out.launch = std::move(launch_);
    return out;
  }

 private:
  void mark_constant(const std::string& name) {
    int t = program_.find_tensor(name);
    bool input = t >= 0 && program_.tensors[static_cast<std::size_t>(t)].kind == TensorKind::kInput;
    if (!input) {
      throw UserError(
          fmt::format("{}: '{}' is not an input that could be constant", program_.name, name));
    }
    context_.constant[static_cast<std::size_t>(t)] = true;
  }

  // Whether roles wait for the launch before, each where it must: no memory is read until then.
  // The epoch is memory, too: roles read it once they have waited.
  bool may_wait_in_roles() const {
    bool scalars = std::any_of(program_.vars.begin(), program_.vars.end(),
                               [](const Var& v) { return v.kind == VarKind::kScalar; });
    bool tables =
        std::any_of(program_.tensors.begin(), program_.tensors.end(),
                    [](const Tensor& t) { return t.contract.kind != ContractKind::kNone; });
    bool edges = !program_.on_start.body.empty() || !program_.on_end.body.empty();
    return !edges && !options_.record && !has_engines() && !scalars && !tables &&
           launch_.cluster == 1;
  }

  // Each block has a word for its launches so far, of which it alone knows when it may count on.
  // Else one word stands for all, and the last block to finish counts: where on_end announces to
  // other ranks that this rank is done, where tickets are put back, and where another kernel, the
  // gate, reads the epoch.
  bool may_count_by_block() const {
    return has_epoch_ && !has_engines() && only<OpCode::kWait>(program_.on_end.body) &&
           std::none_of(plans_.begin(), plans_.end(),
                        [](const RolePlan& plan) { return plan.ticket_word >= 0; });
  }

  static std::string identifier(const std::string& name) {
    std::string out = "stretto_";
    for (char c : name) out += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    return out;
  }

  void place_signals() {
    for (const Signal& s : program_.signals) {
      launch_.signal_offsets.push_back(launch_.num_counters);
      launch_.num_counters += s.num_channels;
    }
  }

  void plan_roles() {
    launch_.grid = 0;
    launch_.block = 128;
    for (const Role& role : program_.roles) roles_.push_back(on_sms(role));
    for (std::size_t i = 0; i < roles_.size(); ++i) {
      Role& role = roles_[i];
      PlaceBeside place;
      bool shares = role.resource.beside >= 0;
      if (shares) {
        place = place_beside(roles_[at(role.resource.beside)], plans_[at(role.resource.beside)]);
        role.agents[0].num_threads = place.num_threads;
      }
      plans_.push_back(
          plan_role(program_, role, launch_.maps, options_.target, shares ? &place : nullptr));
      if (by_engine(i)) continue;
      launch_.grid += role.resource.num_own_sms();
      launch_.block = std::max(launch_.block, plans_.back().num_threads);
      launch_.cluster = std::max(launch_.cluster, role.resource.cluster_size);
      launch_.shared_bytes = std::max(launch_.shared_bytes, plans_.back().shared_bytes);
    }
    for (std::size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i].resource.beside >= 0) continue;
      int beside = role_beside(i);
      budget_registers(roles_[i], launch_.block, plans_[i],
                       beside >= 0 ? &plans_[at(beside)] : nullptr);
    }
    context_.lines = tensors_in_lines(program_, roles_, plans_);
    on_start_ = plan_edge(program_.on_start, "on_start");
    on_end_ = plan_edge(program_.on_end, "on_end");
    launch_.shared_bytes =
        std::max({launch_.shared_bytes, on_start_.plan.shared_bytes, on_end_.plan.shared_bytes});
    heeds_aborts_ = roles_that_heed_aborts(program_, roles_);
    context_.aborted = aborted_word_text(program_, heeds_aborts_, launch_);
    first_bell_block_ = launch_.grid;
    launch_.grid += num_bell_blocks();
    launch_.grid =
        (std::max(launch_.grid, 1) + launch_.cluster - 1) / launch_.cluster * launch_.cluster;
    has_epoch_ = !program_.signals.empty() || !program_.on_start.body.empty() ||
                 !program_.on_end.body.empty();
    int word = kControlTickets;
    for (std::size_t r = 0; r < plans_.size(); ++r) {
      if (!program_.roles[r].resource.tickets) continue;
      if (word >= kControlAborted) throw UserError("too many roles by ticket in one program");
      plans_[r].ticket_word = word++;
      has_epoch_ = true;
    }
    for (const Tensor& t : program_.tensors) has_epoch_ |= t.num_slots > 1 || t.packet;
    has_epoch_ |= has_engines() || options_.record;
    if (options_.record) plan_lanes();
    roles_wait_ = may_wait_in_roles();
    counts_by_block_ = may_count_by_block();
    if (has_epoch_) launch_.num_control_words = kNumControlWords + launch_.grid;
    if (has_epoch_ && roles_wait_) context_.epoch = epoch_text();
    context_.epoch_read = epoch_read();
  }

  // Those of the roles' blocks, then on_start's and on_end's.
  void plan_lanes() {
    for (std::size_t i = 0; i < roles_.size(); ++i) {
      num_lanes_ = std::max(num_lanes_, int(roles_[i].agents.size()) + (role_beside(i) >= 0));
    }
    for (std::size_t i = 0; i < roles_.size(); ++i) {
      if (by_engine(i)) continue;
      add_lanes(roles_[i], int(i), role_beside(i), num_lanes_, launch_);
    }
    launch_.event_lanes.resize(std::size_t(launch_.grid * num_lanes_));
    launch_.event_lanes.push_back({.agent = 0});
    launch_.event_lanes.push_back({.agent = 1});
  }

  std::string open_lanes(bool in_cluster) {
    if (!options_.record) return "";
    return open_lanes_text(num_lanes_, launch_.grid, in_cluster, options_.target.shared_bytes,
                           launch_);
  }
  std::string close_lanes() const { return options_.record ? close_lanes_text(num_lanes_) : ""; }

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int role_beside(std::size_t role) const {  // -1: none
    for (std::size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i].resource.beside == int(role)) return int(i);
    }
    return -1;
  }

  bool has_engines() const { return !launch_.engines.roles.empty(); }
  bool by_engine(std::size_t role) const {
    return launch_.engines.find(static_cast<int>(role)) != nullptr;
  }

  // A block stands in for each copy queue and host thread that is not to be had: the same tiles in
  // the same order.
  static Role on_sms(const Role& role) {
    Role out = role;
    if (role.resource.kind == ResourceKind::kSm) return out;
    out.resource = Resource::sms(role.resource.num_workers);
    return out;
  }

  std::string header() const {
    std::string out =
        fmt::format("// {}: {} blocks of {} threads", program_.name, launch_.grid, launch_.block);
    if (launch_.cluster > 1) out += fmt::format(" in clusters of {}", launch_.cluster);
    out += fmt::format(", {} bytes of shared memory\n", launch_.shared_bytes);
    for (const EngineRole& engine : launch_.engines.roles) {
      const Role& role = program_.roles[static_cast<std::size_t>(engine.role)];
      std::set<int> queues(engine.queue_of_worker.begin(), engine.queue_of_worker.end());
      out += fmt::format("// role '{}' runs on {} queues of the copy engines{}\n", role.name,
                         queues.size(), engine.num_bells > 0 ? ", which wait for doorbells" : "");
    }
    for (const RoleOnSms& on_sms : launch_.engines.on_sms) {
      const Role& role = program_.roles[static_cast<std::size_t>(on_sms.role)];
      bool host = role.resource.kind == ResourceKind::kHost;
      out += fmt::format(
          "// role '{}' is meant for {} {}: blocks of the kernel stand in, since {}\n", role.name,
          role.resource.num_workers, host ? "host threads" : "copy queues", on_sms.why);
    }
    if (!options_.watchdog) out += "#define STRETTO_WITHOUT_WATCHDOG\n";
    for (const char* h : kHeaders) out += fmt::format("#include \"stretto/device/sm90/{}\"\n", h);
    if (launch_.engines.num_bells > 0) out += "#include \"stretto/device/sm90/doorbell.h\"\n";
    if (options_.record) out += "#include \"stretto/device/sm90/event.h\"\n";
    if (options_.delays) out += delays_text(*options_.delays);
    out += "\n";
    for (auto [type, n] : context_.wgmmas) out += wgmma_text(type, n) + "\n";
    for (const RolePlan& plan : plans_) {
      for (const PipePlan& p : plan.pipes) {
        out += fmt::format("using {} = {};\n", p.alias, p.type_text);
      }
    }
    return out;
  }

  std::string vars_text() const {
    std::string out = run_time_values_text(program_);
    if (has_epoch_ && !roles_wait_) out += "  " + epoch_text() + "\n";
    return out;
  }

  std::string epoch_word() const {
    return counts_by_block_ ? fmt::format("p.control + {} + blockIdx.x", int{kNumControlWords})
                            : "p.control";
  }
  std::string epoch_read() const { return fmt::format("load_relaxed_sys({})", epoch_word()); }
  std::string epoch_text() const {
    return fmt::format("[[maybe_unused]] const u64 epoch = {};", epoch_read());
  }

  // on_start, then every wait of the engines' roles that it answers, a tile for each thread.
  std::string gate_kernel() {
    if (!has_engines()) return "";
    std::size_t shared = std::exchange(launch_.shared_bytes, on_start_.plan.shared_bytes);
    std::string aborted = std::exchange(context_.aborted, aborted_word_text(program_, {}, launch_));
    std::string out = kernel_head_text(launch_.gate, 128);
    if (launch_.beside_gate) out += gate_begin_text();
    out += vars_text() + open_lanes(false) + begin_aborted_word_text(context_.aborted) +
           edge(on_start_, "true") + "  __syncthreads();\n";
    for (const EngineRole& engine : launch_.engines.roles) {
      const Role& role = waits_of(engine.role, WaitsOf::kGate);
      if (role.agents[0].body.empty()) continue;
      AgentSite site{&role, engine.role, 0, &plan_of(role)};
      out += fmt::format("  {{  // role '{}', {}:{}\n{}  }}\n", role.name, role.loc.file,
                         role.loc.line, waits_text(context_, site, "threadIdx.x", "blockDim.x"));
    }
    out += let_queues_go_text(launch_.engines) + close_lanes() + "}\n\n";
    launch_.gate_shared_bytes = std::exchange(launch_.shared_bytes, shared);
    context_.aborted = std::move(aborted);
    return out;
  }

  const Role& waits_of(int role, WaitsOf which) {
    const Role& source = program_.roles[static_cast<std::size_t>(role)];
    edges_.push_back(std::make_unique<Role>(role_waits(program_, source, which)));
    return *edges_.back();
  }

  const RolePlan& plan_of(const Role& role) {
    edge_plans_.push_back(
        std::make_unique<RolePlan>(plan_role(program_, role, launch_.maps, options_.target)));
    return *edge_plans_.back();
  }

  // A warp keeps the waits of each queue that needs bells.
  int num_bell_blocks() const {
    int warps = 0;
    for (const EngineRole& engine : launch_.engines.roles) {
      if (engine.num_bells > 0) warps += static_cast<int>(engine.queue_of_worker.size());
    }
    return (warps + launch_.block / 32 - 1) / (launch_.block / 32);
  }

  // Ahead of the roles: behind threads that gave registers away the assembler has as few for those
  // who ring. These read the epoch again, which every role would hold for them.
  std::string bells_text() {
    std::string out;
    int warp = 0, per_block = launch_.block / 32;
    for (const EngineRole& engine : launch_.engines.roles) {
      if (engine.num_bells == 0) continue;
      const Role& role = waits_of(engine.role, WaitsOf::kBells);
      AgentSite site{&role, engine.role, 0, &plan_of(role), true};
      for (int w = 0; w < role.resource.num_workers; ++w, ++warp) {
        out += fmt::format(
            "  if (blockIdx.x == {} && threadIdx.x == {}) {{  // queue {} of role '{}', {}:{}\n"
            "    {}\n    int bell = {};\n{}  }}\n",
            first_bell_block_ + warp / per_block, warp % per_block * 32, w, role.name,
            role.loc.file, role.loc.line, epoch_text(),
            engine.first_bell + std::int64_t{w} * engine.num_bells,
            waits_text(context_, site, fmt::format("{}", w),
                       fmt::format("{}", role.resource.num_workers)));
      }
    }
    return out;
  }

  std::string kernel_body() {
    std::string out = kernel_head_text(launch_.kernel, launch_.block) + kPrefetch + vars_text();
    if (launch_.cluster > 1) out += "  const int cta = int(cluster_cta_rank());\n";
    out += table_checks_text(program_, launch_);
    out += open_lanes(launch_.cluster > 1);
    out += begin_aborted_word_text(context_.aborted);
    if (launch_.gate.empty()) out += start_text();
    out += bells_text();
    int first_block = 0;
    for (std::size_t i = 0; i < roles_.size(); ++i) {
      int blocks = roles_[i].resource.num_own_sms();
      if (by_engine(i) || blocks == 0) continue;
      std::string condition =
          fmt::format("blockIdx.x >= {} && blockIdx.x < {}", first_block, first_block + blocks);
      if (first_block == 0) condition = fmt::format("blockIdx.x < {}", blocks);
      out += role_text(i, condition, first_block);
      first_block += blocks;
    }
    if (launch_.cluster > 1) {
      out +=
          "  // no block may leave while others still reach into its shared memory\n"
          "  __syncwarp();\n  cluster_arrive_release();\n  cluster_wait_acquire();\n";
    }
    out += end_text() + close_lanes();
    return out + "}\n";
  }

  std::string role_text(std::size_t idx, const std::string& condition, int first_block) {
    const Role& role = roles_[idx];
    const RolePlan& plan = plans_[idx];
    std::string out = fmt::format("  if ({}) {{  // role '{}', {}:{}\n", condition, role.name,
                                  role.loc.file, role.loc.line);
    out += fmt::format("    const int worker = (int(blockIdx.x) - {}) / {};\n", first_block,
                       role.resource.cluster_size);
    out += barrier_setup_text(role, plan);
    EarlyLoads early =
        early_loads(program_, role, plan, roles_wait_ ? context_.constant : std::vector<bool>());
    if (roles_wait_ && early.launched) {
      out += "    wait_for_previous_launch();\n";
      if (has_epoch_) out += "    " + context_.epoch + "\n";
    }
    int beside = role_beside(idx);
    int beside_from = beside >= 0 ? plans_[at(beside)].first_thread[0] : -1;
    bool waits = roles_wait_ && !early.launched;
    for (std::size_t a : plan.branches()) {
      int first = plan.first_thread[a], threads = plan.threads[a];
      std::string from = first == 0 ? "" : fmt::format("threadIdx.x >= {} && ", first);
      out += fmt::format("    {}if ({}threadIdx.x < {}) {{  // {}\n", a == 0 ? "" : "} else ", from,
                         first + threads, role.agents[a].name);
      out += register_budget_text(plan.registers[a], launch_.block);
      for (std::size_t other = 0; other < role.agents.size(); ++other) {
        if (other != a && plan.host[other] != static_cast<int>(a)) continue;
        AgentSite site{&role, static_cast<int>(idx), static_cast<int>(other), &plan};
        site.early = early;
        site.heeds_aborts = heeds_aborts_[idx];
        if (options_.record) site.lane = site.agent_idx;
        if (other != a) out += fmt::format("      // {}\n", role.agents[other].name);
        out += agent_text(context_, site);
      }
      if (beside >= 0 && beside_from / 128 == first / 128) {
        out += beside_text(at(beside), role, "", waits) + "      }\n";
      }
    }
    if (beside_from >= plan.num_threads) out += beside_text(at(beside), role, "} else ", waits);
    if (plan.idle_registers != 0) {
      out += "    } else {\n" + register_budget_text(plan.idle_registers, launch_.block);
    }
    launch_.put_role(static_cast<int>(idx), first_block);
    if (beside >= 0) launch_.put_role(beside, first_block);
    return out + "    }\n  }\n";
  }

  // The branch of a block's threads that work beside the host's, open. `waits`: for the launch
  // before.
  std::string beside_text(std::size_t idx, const Role& host, const char* before, bool waits) {
    const Role& role = roles_[idx];
    const RolePlan& plan = plans_[idx];
    std::string out = fmt::format(
        "    {}if (threadIdx.x >= {} && threadIdx.x < {}) {{  // role '{}', {}:{}\n", before,
        plan.first_thread[0], plan.num_threads, role.name, role.loc.file, role.loc.line);
    out += register_budget_text(plan.registers[0], launch_.block);
    if (waits) out += "      wait_for_previous_launch();\n";
    if (waits && has_epoch_) out += "      " + context_.epoch + "\n";
    AgentSite site{&role, static_cast<int>(idx), 0, &plan};
    site.heeds_aborts = heeds_aborts_[idx];
    if (options_.record) site.lane = static_cast<int>(host.agents.size());
    return out + agent_text(context_, site);
  }

  // on_start and on_end run once per rank, by 128 threads.
  struct Edge {
    Role role;
    RolePlan plan;
  };
  Edge plan_edge(const Agent& agent, const std::string& name) {
    Edge out{.role = {.name = name, .resource = Resource::sms(1)}};
    if (agent.body.empty()) return out;
    out.role.agents = {agent};
    out.role.agents[0].num_threads = 128;
    out.role.loc = program_.loc;
    out.plan = plan_role(program_, out.role, launch_.maps, options_.target);
    return out;
  }

  std::string edge(const Edge& of, const std::string& condition) {
    if (of.role.agents.empty()) return "";
    AgentSite site{&of.role, -1, 0, &of.plan};
    site.heeds_aborts = true;
    bool ends = &of == &on_end_;
    if (options_.record) site.lane = num_lanes_ + (ends ? 1 : 0);
    bool after_all = ends && has_epoch_ && !counts_by_block_;
    return fmt::format("  if ({} && threadIdx.x < 128) {{  // {}\n{}{}  }}\n", condition,
                       of.role.name,
                       after_all ? "    [[maybe_unused]] const u64 epoch = now;\n" : "",
                       edge_text(context_, site));
  }

  // Roles may start beside an on_start that only notifies; anything else comes first, on all
  // blocks.
  std::string start_text() {
    if (program_.on_start.body.empty()) return "";
    std::string out = edge(on_start_, "blockIdx.x == 0");
    if (only<OpCode::kNotify>(program_.on_start.body)) {
      return out + "  if (blockIdx.x == 0) __syncthreads();  // before its barrier is used again\n";
    }
    launch_.sites.push_back({.file = program_.loc.file, .line = program_.loc.line});
    return out + blocks_await_start_text(launch_.sites.size() - 1, context_.aborted);
  }

  // An on_end that only waits needs no other block: the first waits, once its role has ended. A
  // count of all blocks is a fence, an atomic addition and a load, each there and back to L2
  // (docs/performance/loops.md).
  std::string end_of_block_text() {
    return "  __syncthreads();\n" + edge(on_end_, "blockIdx.x == 0") +
           fmt::format("  if (threadIdx.x == 0) count_relaxed_gpu({}, 1);\n", epoch_word());
  }

  // The last block to finish ends the launch: on_end, then the epoch.
  std::string end_text() {
    if (!has_epoch_) return "";
    if (counts_by_block_) return end_of_block_text();
    return end_of_launch_text(edge(on_end_, "last"), plans_, launch_.beside_gate);
  }

  const Program& program_;
  const KernelOptions& options_;
  LaunchPlan launch_;
  KernelContext context_;
  std::vector<Role> roles_;  // as the kernel's blocks run them
  std::vector<RolePlan> plans_;
  Edge on_start_, on_end_;
  std::vector<bool> heeds_aborts_;  // by role
  std::vector<std::unique_ptr<Role>> edges_;
  std::vector<std::unique_ptr<RolePlan>> edge_plans_;
  int first_bell_block_ = 0, num_lanes_ = 0;  // lanes: of a block, for its agents
  bool has_epoch_ = false, roles_wait_ = false, counts_by_block_ = false;
};

}  // namespace

GeneratedKernel generate_kernel(const Program& schedule, const KernelOptions& options) {
  refuse_missing_types(schedule);
  refuse_wide_indices(schedule);
  return KernelWriter(schedule, options).run();
}

}  // namespace stretto
