#include "stretto/proof/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "stretto/proof/access_index.h"
#include "stretto/proof/overlap.h"

namespace stretto {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

}  // namespace

class AccessChecker::Impl {
 public:
  explicit Impl(int max_findings) : max_findings_(max_findings) {}

  void use(const HappensBefore& order) {
    order_ = &order;
    launches_checked_.clear();
    reuse_checked_.clear();
  }

  std::vector<Finding> check(const Timeline& timeline, int period) {
    timeline_ = &timeline;
    for (int e = 0; e < period && !full(); ++e) {
      const InstanceGraph& graph = timeline.launch(e);
      if (launches_checked_.insert({&graph, e}).second) check_launch(graph, e);
      for (int later = e + 1; later <= e + period && !full(); ++later) {
        bool is_new = reuse_checked_.insert({&graph, &timeline.launch(later), e, later}).second;
        if (is_new) check_reuse(e, later);
      }
    }
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
  int rank_of(const AccessRef& ref) const {
    return timeline_->launch(0).agents[at(ref.agent)].rank;
  }
  static Place place(const AccessRef& ref, int launch) {
    return {ref.agent, launch, ref.access->pos};
  }

  // What a plain write leaves behind has to be made visible; reads and packets only have to be
  // over.
  static Strength strength_of(const Access& x) {
    return x.kind != AccessKind::kRead && !x.packet ? Strength::kVisible : Strength::kCausal;
  }

  bool before(const AccessRef& x, int launch_x, const AccessRef& y, int launch_y) const {
    return order_->before(place(x, launch_x), place(y, launch_y), strength_of(*x.access));
  }

  // --- within a launch ---
  void check_launch(const InstanceGraph& graph, int e) {
    bool is_new = outputs_checked_.insert(&graph).second;
    for (const TensorUse& use : index(e)) {
      if (full()) return;
      if (is_new && tensor(use).kind == TensorKind::kOutput) check_output(graph, use);
      if (tensor(use).kind != TensorKind::kBuffer) check_caller(use, e);
      check_tensor(use, e);
    }
  }

  void check_tensor(const TensorUse& use, int e) {
    if (use.written.empty() && tensor(use).kind == TensorKind::kInput) return;
    std::vector<std::vector<std::size_t>> writers(use.uses.size());
    for_each_overlap(use.written_boxes, use.boxes, [&](std::size_t w, std::size_t any) {
      std::size_t writing = use.written[w];
      writers[any].push_back(writing);
      if (full()) return;
      for (const AccessRef& x : use.uses[writing].writes) {
        for (const AccessRef& y : use.uses[any].reads) check_pair(x, y, e);
        if (any < writing) continue;
        for (const AccessRef& y : use.uses[any].writes) {
          if (any > writing || std::pair(x.agent, x.idx) < std::pair(y.agent, y.idx)) {
            check_pair(x, y, e);
          }
        }
      }
    });
    if (tensor(use).kind == TensorKind::kState || tensor(use).kind == TensorKind::kInput) return;
    for (std::size_t u = 0; u < use.uses.size() && !full(); ++u)
      check_coverage(use, u, writers[u], e);
  }

  void check_pair(const AccessRef& x, const AccessRef& y, int e) {
    if (x.access->kind == AccessKind::kReduce && y.access->kind == AccessKind::kReduce) return;
    if (x.agent == y.agent) {
      const AccessRef& first = x.idx < y.idx ? x : y;
      const AccessRef& second = x.idx < y.idx ? y : x;
      bool reads_back = first.access->kind != AccessKind::kRead &&
                        second.access->kind != AccessKind::kWrite && !second.access->packet;
      if (!reads_back || is_complete(first, second, e)) return;
      report(FindingKind::kRace, first, second, e, e,
             "the worker reads what it wrote without worker_fence or notify and wait between");
      return;
    }
    if (before(x, e, y, e) || before(y, e, x, e)) return;
    report(FindingKind::kRace, x, y, e, e, "nothing orders them");
  }

  // A write of the same agent is complete after a fence, or once its own notify came back.
  bool is_complete(const AccessRef& write, const AccessRef& read, int e) const {
    const auto& syncs = timeline_->trace(write.agent, e).syncs;
    for (int p = write.access->pos; p < read.access->pos; ++p) {
      if (syncs[at(p)].kind == SyncKind::kFence) return true;
    }
    return before(write, e, read, e);
  }

  // --- coverage ---
  void check_coverage(const TensorUse& use, std::size_t u, const std::vector<std::size_t>& writers,
                      int e) {
    std::vector<AccessRef> readers = use.uses[u].reads;
    for (const AccessRef& w : use.uses[u].writes) {
      if (w.access->kind == AccessKind::kReduce) readers.push_back(w);
    }
    std::map<std::vector<std::size_t>, bool> known;  // subset of writers -> does it cover
    for (const AccessRef& reader : readers) {
      if (reader.access->packet) continue;
      std::vector<std::size_t> earlier;
      for (std::size_t w : writers) {
        if (writes_before(use.uses[w], reader, e)) earlier.push_back(w);
      }
      auto [it, is_new] = known.try_emplace(earlier, false);
      if (is_new) it->second = covers(use, u, earlier);
      if (it->second) continue;
      report_uncovered(use, u, earlier, reader, e);
      return;
    }
  }

  bool writes_before(const BoxUse& writer, const AccessRef& reader, int e) const {
    return std::any_of(writer.writes.begin(), writer.writes.end(), [&](const AccessRef& w) {
      if (w.access->may || w.access->kind != AccessKind::kWrite) return false;
      return w.agent == reader.agent ? w.idx < reader.idx : before(w, e, reader, e);
    });
  }

  static std::vector<Box> boxes_of(const TensorUse& use, const std::vector<std::size_t>& idx) {
    std::vector<Box> boxes;
    for (std::size_t i : idx) boxes.push_back(use.uses[i].box);
    return boxes;
  }

  static bool covers(const TensorUse& use, std::size_t u, const std::vector<std::size_t>& earlier) {
    return uncovered(use.uses[u].box, boxes_of(use, earlier)).empty();
  }

  void report_uncovered(const TensorUse& use, std::size_t u,
                        const std::vector<std::size_t>& earlier, const AccessRef& reader, int e) {
    Box hole = uncovered(use.uses[u].box, boxes_of(use, earlier)).front();
    add(FindingKind::kUncovered, reader.access->op, nullptr,
        fmt::format("{}\n    nothing has written {} before, in this launch", describe(reader, e),
                    range(use, hole)));
  }

  // --- outputs ---
  void check_output(const InstanceGraph& graph, const TensorUse& use) {
    Box all;
    all.hi.fill(1);
    const auto& shape = graph.shapes[at(use.tensor)];
    std::copy(shape.begin(), shape.end(), all.hi.begin());
    std::int64_t written = 0;
    std::vector<Box> plain;
    std::vector<AccessRef> refs;
    for (std::size_t u : use.written) {
      for (const AccessRef& w : use.uses[u].writes) {
        if (w.access->kind != AccessKind::kWrite) continue;
        plain.push_back(use.uses[u].box);
        refs.push_back(w);
        written += volume(use.uses[u].box);
      }
    }
    bool twice = false;
    for_each_overlap(plain, plain, [&](std::size_t i, std::size_t j) {
      if (i >= j || twice) return;
      twice = true;
      add(FindingKind::kOutput, refs[i].access->op, refs[j].access->op,
          fmt::format("output {} is written twice\n    {}\n    {}",
                      range(use, intersection(plain[i], plain[j])), describe(refs[i], 0),
                      describe(refs[j], 0)));
    });
    if (twice || written == volume(all)) return;
    Box hole = uncovered(all, plain).front();
    add(FindingKind::kOutput, refs.empty() ? nullptr : refs[0].access->op, nullptr,
        fmt::format("output {} is never written", range(use, hole)));
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
    if (!order_->start_before(use.rank, e, place(ref, e), Strength::kVisible)) {
      add(FindingKind::kReuse, ref.access->op, nullptr,
          fmt::format("{}\n    may come before launch {} of rank {} has started: wait for a notify "
                      "of that rank in this launch",
                      describe(ref, e), e, use.rank));
    } else if (!order_->before_end(place(ref, e), use.rank, e, strength_of(*ref.access))) {
      add(FindingKind::kReuse, ref.access->op, nullptr,
          fmt::format("{}\n    may come after launch {} of rank {} has ended: that rank must wait "
                      "for it",
                      describe(ref, e), e, use.rank));
    }
  }

  // Accesses of one rank are ordered by its stream, and so is everything the caller owns.
  void check_reuse(int e, int later) {
    const std::vector<TensorUse>&a = index(e), &b = index(later);
    for (std::size_t i = 0; i < a.size() && !full(); ++i) {
      const Tensor& t = tensor(a[i]);
      if (t.kind != TensorKind::kBuffer || (later - e) % t.num_slots != 0) continue;
      if (!a[i].remote && !b[i].remote) continue;
      for_each_overlap(a[i].boxes, b[i].boxes, [&](std::size_t x, std::size_t y) {
        check_reuse(a[i].uses[x], e, b[i].uses[y], later);
      });
    }
  }

  void check_reuse(const BoxUse& a, int e, const BoxUse& b, int later) {
    for (const AccessRef& x : a.writes) {
      for (const AccessRef& y : b.writes) check_reuse(x, e, y, later);
      for (const AccessRef& y : b.reads) check_reuse(x, e, y, later);
    }
    for (const AccessRef& x : a.reads) {
      for (const AccessRef& y : b.writes) check_reuse(x, e, y, later);
    }
  }

  void check_reuse(const AccessRef& x, int e, const AccessRef& y, int later) {
    if (rank_of(x) == rank_of(y) || full() || before(x, e, y, later)) return;
    report(FindingKind::kReuse, x, y, e, later,
           "the later launch does not wait until the earlier one is done with the slot");
  }

  // --- reports ---
  std::string range(const TensorUse& use, const Box& box) const {
    std::string text;
    for (std::size_t d = 0; d < tensor(use).shape.size(); ++d) {
      text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.lo[d], box.hi[d]);
    }
    return fmt::format("'{}' [{}] on rank {}", tensor(use).name, text, use.rank);
  }

  std::string describe(const AccessRef& ref, int e) const {
    const InstanceGraph& graph = timeline_->launch(e);
    return fmt::format("{}: {} by {}, launch {}", describe_loc(ref.access->op),
                       describe_access(graph, *ref.access),
                       describe_agent(graph, ref.agent, ref.access->tile), e);
  }

  void report(FindingKind kind, const AccessRef& x, const AccessRef& y, int ex, int ey,
              const char* why) {
    add(kind, x.access->op, y.access->op,
        fmt::format("{}\n    {}\n    {}", describe(x, ex), describe(y, ey), why));
  }

  void add(FindingKind kind, const Op* x, const Op* y, std::string text) {
    if (full() || !reported_.insert({kind, std::min(x, y), std::max(x, y)}).second) return;
    findings_.push_back({kind, std::move(text)});
  }

  int max_findings_;
  const HappensBefore* order_ = nullptr;
  const Timeline* timeline_ = nullptr;
  std::map<const InstanceGraph*, std::vector<TensorUse>> indices_;
  std::set<const InstanceGraph*> outputs_checked_;
  // Under the present order: launch number and graph, and the same for two launches.
  std::set<std::pair<const InstanceGraph*, int>> launches_checked_;
  std::set<std::tuple<const InstanceGraph*, const InstanceGraph*, int, int>> reuse_checked_;
  std::set<std::tuple<FindingKind, const Op*, const Op*>> reported_;
  std::vector<Finding> findings_;
};

AccessChecker::AccessChecker(int max_findings) : impl_(std::make_unique<Impl>(max_findings)) {}
AccessChecker::~AccessChecker() = default;
void AccessChecker::use(const HappensBefore& order) { impl_->use(order); }
std::vector<Finding> AccessChecker::check(const Timeline& timeline, int period) {
  return impl_->check(timeline, period);
}

const char* name(FindingKind kind) {
  switch (kind) {
    case FindingKind::kRace:
      return "race";
    case FindingKind::kReuse:
      return "reuse across launches";
    case FindingKind::kUncovered:
      return "uncovered read";
    case FindingKind::kOutput:
      return "output";
    case FindingKind::kProgress:
      return "no progress";
    case FindingKind::kQuota:
      return "quota";
    case FindingKind::kResources:
      return "resources";
    case FindingKind::kIllFormed:
      return "ill-formed";
  }
  return "?";
}

}  // namespace stretto
