#include "stretto/proof/prove_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ir/quota.h"
#include "stretto/proof/access_paths.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/pipe_slice.h"
#include "stretto/proof/quota_check.h"
#include "stretto/proof/time_limit.h"
#include "stretto/proof/timeline.h"

namespace stretto {
namespace {

void add(std::vector<Finding>& found, FindingKind kind, const std::string& text) {
  found.push_back({.kind = kind, .text = text});
}

void check_resources(const Program& program, const ProofOptions& options,
                     std::vector<Finding>& found) {
  int sms = 0, queues = 0;
  const char* what = "workers";
  const Role *most_sms = nullptr, *most_queues = nullptr;
  for (const Role& role : program.roles) {
    const Resource& r = role.resource;
    sms += r.num_own_sms();
    if (r.cluster_size > 1) what = "blocks of workers";
    bool is_queues = r.kind == ResourceKind::kCopyEngine;
    if (is_queues) queues += r.num_workers;
    const Role*& most = is_queues ? most_queues : most_sms;
    if (most == nullptr || r.num_workers > most->resource.num_workers) most = &role;
  }
  auto where = [](const Role& role) {
    return fmt::format("{}:{}: role '{}' and others: ", role.loc.file, role.loc.line, role.name);
  };
  if (sms > options.max_workers_per_rank) {
    add(found, FindingKind::kResources,
        fmt::format("{}{} {} per rank, the device holds {} at a time", where(*most_sms), sms, what,
                    options.max_workers_per_rank));
  }
  if (queues > options.max_copy_queues) {
    add(found, FindingKind::kResources,
        fmt::format("{}{} copy queues per rank of {}", where(*most_queues), queues,
                    options.max_copy_queues));
  }
}

// A pipe's slots are memory too, which its own synchronisation alone guards.
void check_pipes(const Program& program, const ProofOptions& options, std::vector<Finding>& found) {
  std::string missing = missing_in_pipes(*options.table);
  if (missing.empty()) return;
  for (const Role& role : program.roles) {
    for (const Pipe& pipe : role.pipes) {
      return add(found, FindingKind::kRace,
                 fmt::format("{}:{}: slots of pipe '{}' of role '{}', between the put and the get "
                             "and between the get and the next put\n    {}",
                             role.loc.file, role.loc.line, pipe.name, role.name, missing));
    }
  }
}

// Where all loops that tables end run so often.
bool ends_after(const Program& program, const std::vector<std::int64_t>& extents,
                std::int64_t trips) {
  try {
    InstanceGraph graph = expand(program, extents, nullptr, PipeLoopMode::kFold, trips);
    return execute(Timeline{{&graph}}).finished;
  } catch (const Rejected&) {
    return false;
  } catch (const DependsOnTable&) {
    return false;
  }
}

}  // namespace

bool ends_however_often(const Program& program, const std::vector<Case>& cases,
                        std::size_t threads) {
  std::vector<std::pair<const InstanceGraph*, std::int64_t>> all;
  for (const Case& one : cases) {
    for (std::int64_t n = 0; one.graph.trips > 0 && n <= one.graph.trips; ++n) {
      all.emplace_back(&one.graph, n);
    }
  }
  std::atomic<bool> end = true;
  TimeLimit::side_by_side(all.size(), threads, [&](std::size_t i) {
    if (end && !ends_after(program, all[i].first->extents, all[i].second)) end = false;
  });
  return end;
}

std::vector<Finding> resource_findings(const Program& program, const ProofOptions& options) {
  std::vector<Finding> found;
  check_resources(program, options, found);
  check_pipes(program, options, found);
  return found;
}

void require_sizes(const Program& program, const ProofOptions& options) {
  if (options.also_at.empty()) return;
  STRETTO_CHECK(options.bounds_only, "sizes beside the bounds, where all sizes are proved");
  const std::vector<std::int64_t> most = extent_bounds(program);
  for (const std::vector<std::int64_t>& extents : options.also_at) {
    bool taken = extents.size() == most.size();
    for (std::size_t i = 0; taken && i < most.size(); ++i) {
      taken = extents[i] >= 0 && extents[i] <= most[i];
    }
    if (!taken) {
      throw UserError(
          fmt::format("{}: it does not take the extents [{}]: they have {} values of at most [{}]",
                      program.name, fmt::join(extents, ", "), most.size(), fmt::join(most, ", ")));
    }
  }
}

void conclude(const Program& program, bool bounds_only, ProofResult& result) {
  bool found = !result.findings.empty();
  if (found) result.missing.clear();
  if (found) {
    result.verdict = Verdict::kRejected;
  } else if (!result.missing.empty()) {
    result.verdict = Verdict::kNotComplete;
  } else {
    result.verdict = bounds_only ? Verdict::kProvedAtFixedSizes : Verdict::kProved;
  }
  const ProofStats& s = result.stats;
  result.report = fmt::format("{}: {} on {} rank{}", name(result.verdict), program.name,
                              program.world_size, program.world_size == 1 ? "" : "s");
  if (!found) {
    result.report +=
        fmt::format(" ({} cases, {} events per launch, {:.3f} s)", s.cases, s.events, s.seconds);
  }
  for (const Missing& m : result.missing) result.report += "\n    not shown: " + describe(m);
  int n = 0;
  for (const Finding& f : result.findings) {
    result.report += fmt::format("\n{}. {}\n    {}", ++n, name(f.kind), f.text);
  }
}

std::string describe_extents(const Program& program, const std::vector<std::int64_t>& extents) {
  std::string text;
  std::size_t next = 0;
  for (const Var& v : program.vars) {
    if (v.kind != VarKind::kExtent && v.kind != VarKind::kScalar) continue;
    std::int64_t value = extents[next++];
    if (!v.is_float) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", v.name, value);
  }
  return text;
}

std::optional<Case> slice_of(const Case& one) {
  if (!execute(Timeline{{&one.graph}}).finished) return {};
  return Case{without_idle_slots(one.graph), one.where};
}

namespace {

// A piece is walked at one of its sizes, at which a line may not be there, as what happens to the
// tiles beyond the rows is not at the bounds: a few others tell that it meets its tensor at one.
void look_elsewhere(const Program& program, const SizePartition& parts, LeftOpen open,
                    UnmetTensors& unmet) {
  constexpr int kMostLooks = 8;
  int looks = 0;
  for (const SizePiece& piece : parts.pieces) {
    SizePoint middle{};
    for (std::size_t i = 0; i < middle.size(); ++i) {
      middle[i] = piece.box.lo[i] + (piece.box.hi[i] - piece.box.lo[i]) / 2;
    }
    for (const SizePoint& point : {middle, piece.box.lo, piece.box.hi}) {
      if (point == piece.sample) continue;
      if (unmet.all_meet() || ++looks > kMostLooks) return;
      SizeRegion region(parts.axes, piece.box, point);
      region.leave_masks_open(open.waits);
      if (open.loops) region.leave_loops_open();
      try {
        unmet.add(expand(program, parts.axes, region),
                  describe_extents(program, extents_at(parts.axes, point)));
      } catch (const DependsOnTable&) {  // nothing is known of this size
      }
    }
  }
}

// `open_loops`: gets whether there were any.
std::optional<MaskedSlices> masked_slices(const Program& program, const MostPieces& most,
                                          LeftOpen open, bool& open_loops, NoPieces& why) {
  MaskedSlices out;
  std::vector<std::int64_t> quota;
  auto take = [&](const SizePartition& so_far, InstanceGraph graph) {
    const SizePiece& piece = so_far.pieces.back();
    std::string where = describe_extents(program, extents_at(so_far.axes, piece.sample));
    out.unmet.add(graph, where);
    open_loops |= graph.has_open_loops;
    out.events = std::max(out.events, graph.num_events());
    if (out.slices.empty()) quota = graph.quota;
    if (wrong_counter(graph, where, quota)) return false;
    out.slices.push_back(slice_of({std::move(graph), where}));
    return out.slices.back().has_value();
  };
  try {
    auto parts = partition_with_masks(program, most, open, why, take);
    if (parts == nullptr) return {};
    look_elsewhere(program, *parts, open, out.unmet);
  } catch (const Error&) {  // said by those that look at one size at a time
    return {};
  }
  return out.unmet.all_meet() ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace

std::optional<MaskedSlices> masked_slices(const Program& program, const MostPieces& most,
                                          LeftOpen open, NoPieces& why) {
  bool loops = false, none = false;
  open.loops = true;
  auto found = masked_slices(program, most, open, loops, why);
  if (found || !loops) return found;
  open.loops = false;
  return masked_slices(program, most, open, none, why);
}

}  // namespace stretto
