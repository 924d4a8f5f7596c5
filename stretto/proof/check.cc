#include "stretto/proof/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/ir/tables.h"
#include "stretto/proof/access_index.h"
#include "stretto/proof/access_paths.h"
#include "stretto/proof/access_runs.h"
#include "stretto/proof/meetings.h"
#include "stretto/proof/overlap.h"
#include "stretto/proof/reuse_frontier.h"
#include "stretto/proof/short_waits.h"
#include "stretto/proof/sync_kinds.h"
#include "stretto/proof/time_limit.h"

namespace stretto {
namespace {

using Refs = std::vector<AccessRef>;

}  // namespace

class AccessChecker::Impl {
 public:
  Impl(int max_findings, const SyncTable& table, std::size_t few_pairs)
      : max_findings_(max_findings), table_(table), few_pairs_(few_pairs) {}

  void use(const HappensBefore& order) { order_ = &order; }

  std::vector<Finding> check_launch(const Timeline& timeline) {
    timeline_ = &timeline;
    check_launch(timeline.launch(0), 0);
    return std::exchange(findings_, {});
  }

  std::vector<Finding> check_reuse(const Timeline& timeline, int reach) {
    timeline_ = &timeline;
    for (int later = 1; later <= reach && !full(); ++later) check_reuse(0, later);
    return std::exchange(findings_, {});
  }

 private:
  bool full() const { return static_cast<int>(findings_.size()) >= max_findings_; }
  const std::vector<TensorUse>& index(int e) {
    const InstanceGraph& graph = timeline_->launch(e);
    auto [it, is_new] = indices_.try_emplace(&graph);
    if (is_new) it->second = index_accesses(graph);
    return it->second;
  }
  const Tensor& tensor(const TensorUse& use) const {
    return timeline_->launch(0).program->tensors[at(use.tensor)];
  }
  TableChoices& choices() const { return order_->choices(); }
  int rank_of(const AccessRef& ref) const {
    return timeline_->launch(0).agents[at(ref.agent)].rank;
  }

  // In every way that generated code may make the two accesses.
  bool before(const AccessRef& x, int ex, const AccessRef& y, int ey) {
    return !failing(x, ex, y, ey, y.access->choice).has_value();
  }

  // Whichever value an entry has that y's agent has waited by, in the case of that value.
  bool before_in_each_case(const AccessRef& x, int ex, const AccessRef& y, int ey) {
    const InstanceGraph& graph = timeline_->launch(ey);
    auto [it, is_new] = waits_by_table_.try_emplace(&graph, false);
    if (is_new) it->second = waits_by_table(graph);
    if (!it->second) return false;
    for (int fact : order_->entries_waited_for(point_of(y, ey))) {
      std::vector<int> cases = choices().cases(y.access->choice, fact);
      bool each = std::all_of(cases.begin(), cases.end(),
                              [&](int choice) { return !failing(x, ex, y, ey, choice); });
      if (each && !cases.empty()) return true;
    }
    return false;
  }

  struct Failing {
    Past past;
    Path path;
  };
  // The first way in which x is not over before y, if any.
  std::optional<Failing> failing(const AccessRef& x, int ex, const AccessRef& y, int ey,
                                 int choice) {
    TimeLimit::look();
    for (Past past : paths_.pasts(timeline_->launch(ex), x)) {
      for (Path path : paths_.paths(timeline_->launch(ey), y)) {
        ProgramPoint from = point_of(x, ex), to = point_of(y, ey);
        if (order_->before(from, to, past, path, choice)) continue;
        if (order_->before_by_end(from, to, past, path, x.access->when, choice)) continue;
        if (x.agent == y.agent && ex == ey && order_->fenced(from, to, past, path, choice))
          continue;
        return Failing{past, path};
      }
    }
    return {};
  }

  std::string why(const AccessRef& x, int ex, const AccessRef& y, int ey) {
    std::optional<Failing> f = failing(x, ex, y, ey, y.access->choice);
    if (!f) return "nothing orders them";
    auto [past, path] = *f;
    ProgramPoint from = point_of(x, ex), to = point_of(y, ey);
    bool in_time = x.agent == y.agent || past == Past::kOrder ||
                   order_->before(from, to, Past::kOrder, Path::kThreads, y.access->choice);
    if (!in_time) return "nothing orders them: " + short_waits(*timeline_, from, to);
    std::string missing =
        missing_steps(*order_, table_, past, path, [&, p = past, q = path](const auto& other) {
          return other.before(from, to, p, q, y.access->choice) ||
                 other.fenced(from, to, p, q, y.access->choice);
        });
    if (!missing.empty()) return missing;
    return past == Past::kOrder
               ? "nothing orders them"
               : "they come in this order, but nothing between them carries memory";
  }

  // --- within a launch ---
  void check_launch(const InstanceGraph& graph, int e) {
    bool is_new = outputs_checked_.insert(&graph).second;
    for (const TensorUse& use : index(e)) {
      if (full()) return;
      if (is_new && tensor(use).kind == TensorKind::kOutput) check_output(graph, use);
      if (is_new && is_made_table(tensor(use))) check_once("table", graph, use, writes_of(use));
      if (is_new && tensor(use).packet) check_once("packet", graph, use, writes_of(use));
      if (tensor(use).kind != TensorKind::kBuffer) check_caller(use, e);
      check_coherence(use, e);
      check_tensor(use, e);
    }
  }

  // The caches in question are filled once and see nothing of what comes later.
  void check_coherence(const TensorUse& use, int e) {
    bool may_change = !use.written.empty() || tensor(use).space == Space::kSymmetric;
    if (table_.coherent_loads || !may_change) return;
    for (const BoxUse& box : use.uses) {
      for (const AccessRef& ref : box.reads) {
        if (ref.access->packet) continue;
        return add(
            FindingKind::kRace, ref.access->op, nullptr,
            fmt::format("{}\n    is not coherent: others may write the tensor", describe(ref, e)));
      }
    }
  }

  void check_tensor(const TensorUse& use, int e) {
    if (use.written.empty() && tensor(use).kind == TensorKind::kInput) return;
    Meetings met = meetings_of(use, timeline_->launch(e), e, *order_, paths_);
    for (auto [writing, any] : met.overlaps) {
      if (full()) break;
      check_writes(use, writing, any, met.of_box[any], e);
    }
    if (tensor(use).kind == TensorKind::kState || tensor(use).kind == TensorKind::kInput) return;
    for (std::size_t u = 0; u < use.uses.size() && !full(); ++u) {
      check_coverage(use, u, met.of_box[u], e);
    }
  }

  void check_writes(const TensorUse& use, std::size_t writing, std::size_t any, const Meeting& met,
                    int e) {
    const Refs &writes = use.uses[writing].writes, &others = use.uses[any].writes;
    if (!settled(writes, met.open, e)) {
      for (const AccessRef& x : writes) {
        for (const AccessRef& y : met.open) check_pair(x, y, e);
      }
    }
    if (any < writing || settled(writes, others, e)) return;
    for (const AccessRef& x : writes) {
      for (const AccessRef& y : others) {
        bool once = any > writing || std::pair(x.agent, x.idx) < std::pair(y.agent, y.idx);
        if (once) check_pair(x, y, e);
      }
    }
  }

  // That check_pair() finds nothing in any pair, as runs tell.
  bool settled(const Refs& xs, const Refs& ys, int e) {
    if (xs.size() * ys.size() <= few_pairs_) return false;
    const InstanceGraph& graph = timeline_->launch(e);
    return of_all_runs(
        runs_of(xs, graph, paths_), runs_of(ys, graph, paths_),
        [&](const AccessRun& x, const AccessRun& y) {
          const AccessRef &a = x.refs.front(), &b = y.refs.front();
          bool adds =
              a.access->kind == AccessKind::kReduce && b.access->kind == AccessKind::kReduce;
          if (adds) return may_meet(a, b, e);
          if (of_one_ticket_role(graph, a, b)) return false;
          if (a.agent != b.agent) {
            return ordered_either_way(
                x, y, [&](const AccessRef& i, const AccessRef& j) { return before(i, e, j, e); });
          }
          return ordered_in_turn(x, y, [&](const AccessRef& first, const AccessRef& second) {
            return paths_.in_turn(graph, table_, first, second) || before(first, e, second, e);
          });
        });
  }

  void check_pair(const AccessRef& x, const AccessRef& y, int e) {
    if (full() || known(FindingKind::kRace, x.access->op, y.access->op)) return;
    if (x.access->kind == AccessKind::kReduce && y.access->kind == AccessKind::kReduce) {
      return check_reductions(x, y, e);
    }
    if (rank_of(x) == rank_of(y) && choices().exclusive(x.access->choice, y.access->choice)) return;
    if (x.access->tile != y.access->tile && of_one_ticket_role(timeline_->launch(e), x, y)) {
      return report(FindingKind::kRace, x, y, e, e, "tiles by ticket come in any order");
    }
    if (x.agent == y.agent) return check_within_agent(x, y, e);
    if (comes_as_packet(x, y) || comes_as_packet(y, x)) return;
    if (before(x, e, y, e) || before(y, e, x, e)) return;
    if (before_in_each_case(x, e, y, e) || before_in_each_case(y, e, x, e)) return;
    bool later = order_->before(point_of(y, e), point_of(x, e), Past::kOrder, Path::kThreads,
                                x.access->choice);
    std::string reason = later ? why(y, e, x, e) : why(x, e, y, e);
    report(FindingKind::kRace, x, y, e, e, reason);
  }

  // Of a launch's load and stores of packets: whatever of the two meets, the load waits for. Where
  // it does so at some sizes only, nothing else is ordered by it (packet_links.h).
  bool comes_as_packet(const AccessRef& store, const AccessRef& load) const {
    bool packets = store.access->packet && store.access->kind == AccessKind::kWrite &&
                   load.access->packet && load.access->kind == AccessKind::kRead;
    return packets && order_->packet_arrives(store.agent, load.agent);
  }

  // Threads add by atomic instructions of system scope.
  bool may_meet(const AccessRef& x, const AccessRef& y, int e) {
    const InstanceGraph& graph = timeline_->launch(e);
    return table_.shared_reductions || rank_of(x) == rank_of(y) ||
           (!paths_.bulk(graph, x) && !paths_.bulk(graph, y));
  }

  void check_reductions(const AccessRef& x, const AccessRef& y, int e) {
    if (may_meet(x, y, e)) return;
    report(FindingKind::kRace, x, y, e, e,
           "bulk reductions of several ranks may not meet in one buffer: nothing promises "
           "that they add up");
  }

  // What an agent does with its own writes.
  void check_within_agent(const AccessRef& x, const AccessRef& y, int e) {
    const AccessRef& first = x.idx < y.idx ? x : y;
    const AccessRef& second = x.idx < y.idx ? y : x;
    const InstanceGraph& graph = timeline_->launch(e);
    if (paths_.in_turn(graph, table_, first, second) || before(first, e, second, e)) return;
    bool fenced = !in_cluster(graph, x) && has_fence(graph.agents[at(x.agent)], first, second);
    report(FindingKind::kRace, first, second, e, e,
           fenced ? why(first, e, second, e) : paths_.why_out_of_turn(graph, first, second));
  }

  // --- coverage ---
  void check_coverage(const TensorUse& use, std::size_t u, Meeting& met, int e) {
    Refs readers = use.uses[u].reads;
    for (const AccessRef& w : use.uses[u].writes) {
      if (w.access->kind == AccessKind::kReduce) readers.push_back(w);
    }
    std::map<std::vector<std::size_t>, bool> known;  // subset of writers -> does it cover
    auto next_open = met.open.begin();
    for (const AccessRef& reader : readers) {
      bool open = next_open != met.open.end() && next_open->access == reader.access;
      next_open += open ? 1 : 0;
      if (reader.access->packet) continue;
      bool after_all = !open && met.sure && reader.access->kind == AccessKind::kRead;
      if (after_all && covered_by_all(use, u, met, e)) continue;
      std::vector<std::size_t> earlier;
      for (std::size_t w : met.writers) {
        if (writes_before(use.uses[w], reader, e)) earlier.push_back(w);
      }
      auto [it, is_new] = known.try_emplace(earlier, false);
      if (is_new) it->second = covers(use, u, earlier, e);
      if (it->second) continue;
      report_uncovered(use, u, earlier, reader, e);
      return;
    }
  }

  bool covered_by_all(const TensorUse& use, std::size_t u, Meeting& met, int e) const {
    if (!met.covered) met.covered = covers(use, u, *met.sure, e);
    return *met.covered;
  }

  bool writes_before(const BoxUse& writer, const AccessRef& reader, int e) {
    return std::any_of(writer.writes.begin(), writer.writes.end(), [&](const AccessRef& w) {
      if (w.access->kind != AccessKind::kWrite || !happens_with(w, reader)) return false;
      if (w.agent == reader.agent) return w.idx < reader.idx;
      return before(w, e, reader, e) || before_in_each_case(w, e, reader, e);
    });
  }

  // Whenever the reader reads, the writer writes all of its box.
  bool happens_with(const AccessRef& writer, const AccessRef& reader) const {
    if (!writer.access->may) return true;
    return writer.access->sure && rank_of(writer) == rank_of(reader) &&
           choices().implies(reader.access->choice, writer.access->choice);
  }

  bool covers(const TensorUse& use, std::size_t u, const std::vector<std::size_t>& earlier,
              int e) const {
    return is_covered(timeline_->launch(e), use.uses[u], uses_at(use, earlier));
  }

  void report_uncovered(const TensorUse& use, std::size_t u,
                        const std::vector<std::size_t>& earlier, const AccessRef& reader, int e) {
    Box hole = hole_in(use.uses[u].box, uses_at(use, earlier));
    bool by_table = std::any_of(use.uses.begin(), use.uses.end(), [&](const BoxUse& other) {
      auto may = [](const AccessRef& w) { return w.access->may; };
      return overlaps(other.box, hole) &&
             std::any_of(other.writes.begin(), other.writes.end(), may);
    });
    add(FindingKind::kUncovered, reader.access->op, nullptr,
        fmt::format("{}\n    nothing has written {} before, in this launch{}", describe(reader, e),
                    range(use, hole), by_table ? "; writes that a table decides do not count" : ""),
        {chosen(reader, 0)});
  }

  // --- outputs, and tables that the launch makes ---
  void check_output(const InstanceGraph& graph, const TensorUse& use) {
    if (!is_given(*graph.program, use.tensor, use.rank)) return check_absent(use);
    Box all = whole_tensor(graph, use.tensor);
    Writes writes = writes_of(use);
    if (check_once("output", graph, use, writes) || is_filled(graph, use.tensor, writes)) return;
    Box hole = hole_in(all, writes);
    add(FindingKind::kOutput, writes.refs.empty() ? nullptr : writes.refs[0].access->op, nullptr,
        fmt::format("{}: output {} is never written", loc_of(tensor(use)), range(use, hole)));
  }

  // The caller has given no memory there.
  void check_absent(const TensorUse& use) {
    for (const BoxUse& box : use.uses) {
      for (const auto* refs : {&box.reads, &box.writes}) {
        if (refs->empty()) continue;
        const AccessRef& ref = refs->front();
        return add(FindingKind::kOutput, ref.access->op, nullptr,
                   fmt::format("{}\n    where the output is not given", describe(ref, 0)));
      }
    }
  }

  // Whether some element is found to be written twice: it would not have one value for everybody.
  bool check_once(const char* what, const InstanceGraph& graph, const TensorUse& use,
                  const Writes& writes) {
    bool twice = false;
    for_each_overlap(graph, writes, [&](std::size_t i, std::size_t j) {
      const AccessRef &x = writes.refs[i], &y = writes.refs[j];
      if (i >= j || twice) return;
      twice = true;
      Box both = intersection(writes.boxes[i], writes.boxes[j]);
      add(FindingKind::kOutput, x.access->op, y.access->op,
          fmt::format("{} {} is written twice\n    {}\n    {}", what, range(use, both),
                      describe(x, 0), describe(y, 0)));
    });
    return twice;
  }

  // --- across launches ---
  // The caller writes inputs, reads outputs and owns state between a rank's launches, so what other
  // ranks do there has to fall within the owner's launch.
  void check_caller(const TensorUse& use, int e) {
    for (const BoxUse& box : use.uses) {
      for (const auto* refs : {&box.reads, &box.writes}) {
        for (const AccessRef& ref : *refs) {
          if (rank_of(ref) == use.rank || full()) continue;
          check_within(use, ref, e);
        }
      }
    }
  }

  void check_within(const TensorUse& use, const AccessRef& ref, int e) {
    const InstanceGraph& graph = timeline_->launch(e);
    ProgramPoint p = point_of(ref, e);
    for (Path path : paths_.paths(graph, ref)) {
      int choice = ref.access->choice;
      if (order_->start_before(use.rank, e, p, path, choice)) continue;
      std::string missing = missing_steps(
          *order_, table_, Past::kWrite, path,
          [&](const auto& other) { return other.start_before(use.rank, e, p, path, choice); });
      if (missing.empty()) missing = "wait for a notify of that rank in this launch";
      return add(FindingKind::kReuse, ref.access->op, nullptr,
                 fmt::format("{}\n    may come before launch {} of rank {} has started: {}",
                             describe(ref, e), e, use.rank, missing),
                 {chosen(ref, 0)});
    }
    for (Past past : paths_.pasts(graph, ref)) {
      if (order_->before_end(p, use.rank, e, past, ref.access->when)) continue;
      std::string missing =
          missing_steps(*order_, table_, past, Path::kThreads,
                        [&](const auto& other) { return other.before_end(p, use.rank, e, past); });
      if (missing.empty()) missing = "that rank must wait for it";
      return add(FindingKind::kReuse, ref.access->op, nullptr,
                 fmt::format("{}\n    may come after launch {} of rank {} has ended: {}",
                             describe(ref, e), e, use.rank, missing),
                 {chosen(ref, 0)});
    }
  }

  // Accesses of one rank are ordered by its stream, and so is everything the caller owns.
  void check_reuse(int e, int later) {
    const std::vector<TensorUse>&a = index(e), &b = index(later);
    for (std::size_t i = 0; i < a.size() && !full(); ++i) {
      const Tensor& t = tensor(a[i]);
      if (t.kind != TensorKind::kBuffer || (later - e) % t.num_slots != 0) continue;
      if (!a[i].remote && !b[i].remote) continue;
      if (over(a[i], e, b[i], later)) continue;
      for_each_overlap(boxes_of(a[i]), boxes_of(b[i]), [&](std::size_t x, std::size_t y) {
        check_reuse(a[i].uses[x], e, b[i].uses[y], later);
      });
    }
  }

  void check_reuse(const BoxUse& a, int e, const BoxUse& b, int later) {
    check_reuse(a.writes, e, b.writes, later);
    check_reuse(a.writes, e, b.reads, later);
    check_reuse(a.reads, e, b.writes, later);
  }

  // That there is nothing to find, wherever the two launches touch the buffer.
  bool over(const TensorUse& a, int e, const TensorUse& b, int later) {
    if (a.uses.size() * b.uses.size() <= few_pairs_) return false;
    return over_before_launch({timeline_->launch(e), a, e}, {timeline_->launch(later), b, later},
                              *order_, paths_);
  }

  // That there is nothing to find in any pair, as runs tell.
  bool over(const Refs& xs, int e, const Refs& ys, int later) {
    if (xs.size() * ys.size() <= few_pairs_) return false;
    std::vector<AccessRun> x_runs = runs_of(xs, timeline_->launch(e), paths_);
    std::vector<AccessRun> y_runs = runs_of(ys, timeline_->launch(later), paths_);
    return of_all_runs(x_runs, y_runs, [&](const AccessRun& x, const AccessRun& y) {
      const AccessRef &last = x.refs.back(), &first = y.refs.front();
      return rank_of(last) == rank_of(first) || before(last, e, first, later);
    });
  }

  void check_reuse(const Refs& xs, int e, const Refs& ys, int later) {
    if (over(xs, e, ys, later)) return;
    for (const AccessRef& x : xs) {
      for (const AccessRef& y : ys) check_reuse(x, e, y, later);
    }
  }

  void check_reuse(const AccessRef& x, int e, const AccessRef& y, int later) {
    if (rank_of(x) == rank_of(y) || full()) return;
    bool is_known = known(FindingKind::kReuse, x.access->op, y.access->op);
    if (is_known || before(x, e, y, later)) return;
    bool ordered = order_->before(point_of(x, e), point_of(y, later), Past::kOrder, Path::kThreads,
                                  y.access->choice);
    report(FindingKind::kReuse, x, y, e, later,
           ordered ? why(x, e, y, later)
                   : "the later launch does not wait until the earlier one is done with the slot");
  }

  // --- reports ---
  static std::string loc_of(const Tensor& tensor) {
    return fmt::format("{}:{}", tensor.loc.file, tensor.loc.line);
  }
  std::string range(const TensorUse& use, const Box& box) const {
    return describe_range(timeline_->launch(0), use.tensor, box, use.rank);
  }

  std::string describe(const AccessRef& ref, int e) const {
    const InstanceGraph& graph = timeline_->launch(e);
    std::string where;
    if (ref.access->choice != TableChoices::kAlways) {
      where = ", where " + choices().describe(*graph.program, ref.access->choice);
    }
    return fmt::format("{}: {} by {}, launch {}{}", describe_loc(ref.access->op),
                       describe_access(graph, *ref.access),
                       describe_agent(graph, ref.agent, ref.access->tile), e, where);
  }

  void report(FindingKind kind, const AccessRef& x, const AccessRef& y, int ex, int ey,
              const std::string& why) {
    add(kind, x.access->op, y.access->op,
        fmt::format("{}\n    {}\n    {}", describe(x, ex), describe(y, ey), why),
        {chosen(x, 0), chosen(y, (ey - ex) % 2)},
        {.first = x.access->of_case, .later = y.access->of_case, .apart = ey - ex});
  }

  ChosenCase chosen(const AccessRef& ref, int launch) const {
    return {.rank = rank_of(ref), .launch = launch, .choice = ref.access->choice};
  }

  // One is reported per pair of lines.
  bool known(FindingKind kind, const Op* x, const Op* y) const {
    return reported_.count({kind, std::min(x, y), std::max(x, y)}) != 0;
  }

  void add(FindingKind kind, const Op* x, const Op* y, std::string text,
           std::vector<ChosenCase> cases = {}, CasesInTurn in_turn = {}) {
    if (full() || !reported_.insert({kind, std::min(x, y), std::max(x, y)}).second) return;
    findings_.push_back({kind, std::move(text), std::move(cases), in_turn});
  }

  int max_findings_;
  const SyncTable& table_;
  std::size_t few_pairs_;
  AccessPaths paths_;
  const HappensBefore* order_ = nullptr;
  const Timeline* timeline_ = nullptr;
  std::map<const InstanceGraph*, std::vector<TensorUse>> indices_;
  std::set<const InstanceGraph*> outputs_checked_;
  std::map<const InstanceGraph*, bool> waits_by_table_;
  std::set<std::tuple<FindingKind, const Op*, const Op*>> reported_;
  std::vector<Finding> findings_;
};

AccessChecker::AccessChecker(int max_findings, const SyncTable& table, std::size_t few_pairs)
    : impl_(std::make_unique<Impl>(max_findings, table, few_pairs)) {}
AccessChecker::~AccessChecker() = default;
void AccessChecker::use(const HappensBefore& order) { impl_->use(order); }
std::vector<Finding> AccessChecker::check_launch(const Timeline& timeline) {
  return impl_->check_launch(timeline);
}
std::vector<Finding> AccessChecker::check_reuse(const Timeline& timeline, int reach) {
  return impl_->check_reuse(timeline, reach);
}

}  // namespace stretto
