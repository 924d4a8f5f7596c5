// Accesses to a buffer that are judged all at once, across launches: what is said of them together
// has to be so of every pair. If these fail, a launch may write a slot that another rank still
// reads in the one before, and is proved.
#include "stretto/proof/reuse_frontier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/launch_promises.h"
#include "stretto/proof/meetings.h"
#include "stretto/proof/mutation/random_programs.h"
#include "stretto/proof/mutation/random_sizes_testing.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/prove_steps.h"
#include "stretto/proof/sample.h"
#include "stretto/proof/timeline.h"

namespace stretto {
namespace {

constexpr int kLaunches = 4;

std::vector<AccessRef> all_of_box(const BoxUse& box) {
  std::vector<AccessRef> out = box.reads;
  out.insert(out.end(), box.writes.begin(), box.writes.end());
  return out;
}

std::vector<AccessRef> all_of(const TensorUse& use) {
  std::vector<AccessRef> out;
  for (const BoxUse& box : use.uses) {
    for (const AccessRef& ref : all_of_box(box)) out.push_back(ref);
  }
  return out;
}

struct Judged {
  int over = 0, open = 0, promised = 0;
};

bool is_over(const AccessRef& x, const AccessRef& y, int later, const InstanceGraph& graph,
             const HappensBefore& order, AccessPaths& paths) {
  bool read = x.access->kind == AccessKind::kRead && y.access->kind == AccessKind::kRead;
  if (read || graph.agents[at(x.agent)].rank == graph.agents[at(y.agent)].rank) return true;
  for (Past past : paths.pasts(graph, x)) {
    for (Path path : paths.paths(graph, y)) {
      ProgramPoint from = point_of(x, 0), to = point_of(y, later);
      bool over = order.before(from, to, past, path, y.access->choice) ||
                  order.before_by_end(from, to, past, path, x.access->when, y.access->choice);
      if (!over) return false;
    }
  }
  return true;
}

// Every pair of the launch and a later one, wherever the two lie; some of many.
bool every_pair_is_over(const InstanceGraph& graph, const TensorUse& use, int later,
                        const HappensBefore& order, AccessPaths& paths) {
  constexpr std::size_t kMostPairs = 1 << 14;
  const std::vector<AccessRef> all = all_of(use);
  std::size_t pairs = all.size() * all.size(), step = pairs / kMostPairs + 1;
  for (std::size_t i = 0; i < pairs; i += step) {
    if (!is_over(all[i / all.size()], all[i % all.size()], later, graph, order, paths)) {
      return false;
    }
  }
  return true;
}

// That promises have each access, with what the order says of it alone.
void expect_promised(const InstanceGraph& graph, const HappensBefore& order, AccessPaths& paths,
                     Judged& judged) {
  const int world = graph.program->world_size;
  LaunchPromises promises = promises_of(graph, order);
  auto ranks = [&](const auto& holds) {
    RankSet set = 0;
    for (int r = 0; r < world; ++r) set |= holds(r) ? RankSet{1} << r : 0;
    return set;
  };
  auto has = [](const auto& of, const auto& key, const Box& box) {
    auto it = of.find(key);
    return it != of.end() && std::ranges::find(it->second, box) != it->second.end();
  };
  for (const TensorUse& use : index_accesses(graph)) {
    if (use.tensor < 0) continue;
    const Tensor& t = graph.program->tensors[at(use.tensor)];
    if (t.kind != TensorKind::kBuffer || t.space != Space::kSymmetric) continue;
    const LaunchPromises::Uses& uses = promises.uses.at({use.tensor, use.rank});
    for (const BoxUse& box : use.uses) {
      for (const AccessRef& ref : all_of_box(box)) {
        ProgramPoint p = point_of(ref, 0);
        bool writes = ref.access->kind != AccessKind::kRead;
        int rank = graph.agents[at(ref.agent)].rank;
        LaunchPromises::Earlier earlier{.rank = rank, .writes = writes, .over = {}};
        std::size_t way = 0;
        for (Past past : paths.pasts(graph, ref)) {
          RankSet ends =
              ranks([&](int r) { return order.before_end(p, r, 0, past, ref.access->when); });
          for (std::size_t i = way; i < earlier.over.size(); ++i) earlier.over[i] = {past, ends};
          ++way;
        }
        LaunchPromises::Later later{.rank = rank, .writes = writes, .knows = {}};
        for (std::size_t i = 0; i < kNumPasts; ++i) {
          auto past = static_cast<Past>(i);
          later.knows[i] = ~RankSet{0};
          for (Path path : paths.paths(graph, ref)) {
            std::int32_t known = order.knowledge(p, past, path, ref.access->choice);
            later.knows[i] &= ranks([&](int r) { return order.start_reaches(r, 0, past, known); });
          }
        }
        EXPECT_TRUE(has(uses.earlier, earlier, box.box)) << "tensor " << use.tensor;
        EXPECT_TRUE(has(uses.later, later, box.box)) << "tensor " << use.tensor;
        ++judged.promised;
      }
    }
  }
}

void compare(const InstanceGraph& graph, const SyncPowers& powers, bool all_seen, Judged& judged) {
  Timeline timeline;
  timeline.launches.assign(kLaunches, &graph);
  Execution execution = execute(timeline);
  if (!execution.finished) return;
  HappensBefore order(timeline, execution, powers);
  AccessPaths paths;
  for (const TensorUse& use : index_accesses(graph)) {
    for (int later = 1; later < kLaunches; ++later) {
      bool over = over_before_launch({graph, use, 0}, {graph, use, later}, order, paths);
      bool each = every_pair_is_over(graph, use, later, order, paths);
      EXPECT_TRUE(each || !over) << "launch " << later << ", tensor " << use.tensor;
      if (use.remote) ++(each ? judged.over : judged.open);
      if (!all_seen) continue;
      EXPECT_TRUE(over || !each) << "what goes by last and first accesses is all there is to see";
    }
  }
  expect_promised(graph, order, paths, judged);
}

void compare(const Program& program, Judged& judged) {
  InstanceGraph graph = expand(program, extent_bounds(program), nullptr, PipeLoopMode::kFold);
  compare(graph, powers_of(sync_table()), /*all_seen=*/true, judged);
}

// As if generated code left out a step here and there, so that it matters who makes an access, and
// how.
SyncPowers with_gaps(sample::RandomProtocol& random) {
  SyncPowers powers = powers_of(sync_table());
  for (RowPower& row : powers.rows) {
    for (bool& carries : row.carries) carries &= !random.chance(6);
    for (bool& covers : row.covers) covers &= !random.chance(6);
    row.lands &= !random.chance(6);
    if (random.chance(5)) row.release = Scope::kGpu;
  }
  return powers;
}

// A few accesses of a graph, by lot in another way, at other places and under what else its
// accesses and waits go by: what no program may do, and what is told apart has to be all the same.
class Shuffled {
 public:
  Shuffled(const InstanceGraph& graph, sample::RandomProtocol& random)
      : graph_(graph), random_(random) {
    for (int a = 0; a < static_cast<int>(graph.agents.size()); ++a) {
      const AgentTrace& trace = graph.agents[at(a)];
      for (int i = 0; i < static_cast<int>(trace.accesses.size()); ++i) refs_.push_back({a, i});
      for (const Access& access : trace.accesses) {
        note(access.choice);
        note(access.when);
      }
      for (const Sync& s : trace.syncs) note(s.choice);
    }
  }
  bool empty() const { return refs_.empty(); }

  // The graph with some accesses at other places and under what others go by: many at one place
  // that are not under the same.
  InstanceGraph graph() {
    InstanceGraph out = graph_;
    for (AgentTrace& trace : out.agents) {
      for (Access& access : trace.accesses) {
        int most = static_cast<int>(trace.syncs.size());
        if (random_.chance(30)) access.pos = random_.between(0, most);
        if (random_.chance(30)) access.choice = random_.pick(choices_);
        if (random_.chance(30)) access.when = random_.pick(choices_);
      }
      std::ranges::stable_sort(trace.accesses, {}, &Access::pos);
    }
    return out;
  }

  TensorUse use() {
    TensorUse out;
    out.uses.emplace_back();
    const AccessRef one = random_.pick(refs_);
    for (int i = random_.between(2, 5); i > 0; --i) {
      AccessRef ref = random_.chance(60) ? one : random_.pick(refs_);
      const AgentTrace& trace = graph_.agents[at(ref.agent)];
      Access access = trace.accesses[at(ref.idx)];
      int most = static_cast<int>(trace.syncs.size());
      if (random_.chance(70)) access.pos = random_.between(0, most);
      if (random_.chance(50)) {
        access.kind = random_.chance(50) ? AccessKind::kRead : AccessKind::kWrite;
      }
      if (random_.chance(30)) access.choice = random_.pick(choices_);
      if (random_.chance(30)) access.when = random_.pick(choices_);
      made_.push_back(access);
      ref.access = &made_.back();
      (access.kind == AccessKind::kRead ? out.uses[0].reads : out.uses[0].writes).push_back(ref);
    }
    return out;
  }

 private:
  void note(int choice) {
    if (std::ranges::find(choices_, choice) == choices_.end()) choices_.push_back(choice);
  }

  const InstanceGraph& graph_;
  sample::RandomProtocol& random_;
  std::vector<AccessRef> refs_;
  std::vector<int> choices_{TableChoices::kAlways};
  std::deque<Access> made_;
};

void compare_shuffled(const InstanceGraph& graph, const SyncPowers& powers,
                      sample::RandomProtocol& random, Judged& judged) {
  Timeline timeline;
  timeline.launches.assign(kLaunches, &graph);
  Execution execution = execute(timeline);
  Shuffled shuffled(graph, random);
  if (!execution.finished || shuffled.empty()) return;
  HappensBefore order(timeline, execution, powers);
  AccessPaths paths;
  const InstanceGraph moved = shuffled.graph();
  expect_promised(moved, order, paths, judged);
  for (int i = 0; i < 60; ++i) {
    const TensorUse x = shuffled.use(), y = shuffled.use();
    int later = random.between(1, kLaunches - 1);
    bool over = over_before_launch({graph, x, 0}, {graph, y, later}, order, paths);
    bool each = true;
    for (const AccessRef& a : all_of(x)) {
      for (const AccessRef& b : all_of(y)) each &= is_over(a, b, later, graph, order, paths);
    }
    EXPECT_TRUE(each || !over) << "launch " << later;
    ++(each ? judged.over : judged.open);
  }
}

void compare_with_gaps(const InstanceGraph& graph, sample::RandomProtocol& random, Judged& judged) {
  compare(graph, powers_of(sync_table()), /*all_seen=*/false, judged);
  compare_shuffled(graph, powers_of(sync_table()), random, judged);
  for (int i = 0; i < 3; ++i) {
    SyncPowers powers = with_gaps(random);
    compare(graph, powers, /*all_seen=*/false, judged);
    compare_shuffled(graph, powers, random, judged);
  }
}

// Waits under a condition, and accesses that go by it: one piece for all sizes.
TEST(ReuseFrontier, SizesLeftOpenAreJudgedAsPairByPair) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  sample::RandomProtocol random(seed);
  Judged judged;
  for (std::uint64_t i = 0; i < 120; ++i) {
    try {
      Program program = run_pipeline(sample::RandomSizes(seed + i, (i & 1) != 0).program());
      NoPieces why;
      auto found = masked_slices(program, {.at_least = 16, .at_most = 64, .events = 100'000},
                                 {.waits = WaitsOpen::kAll}, why);
      if (!found) continue;
      for (const std::optional<Case>& one : found->slices) {
        if (one) compare_with_gaps(one->graph, random, judged);
      }
    } catch (const Error&) {  // no program
    }
  }
  fmt::print("{} over, {} not, {} accesses promised\n", judged.over, judged.open, judged.promised);
  EXPECT_GE(judged.over, 20);
  EXPECT_GE(judged.open, 20);
}

TEST(ReuseFrontier, OperatorsAreJudgedAsPairByPairWhateverTheTableLacks) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  sample::RandomProtocol random(seed);
  Judged judged;
  for (const OperatorInfo& op : catalog()) {
    for (const auto& shape : {op.shapes(2)[1], gpu_shape(op, 2)}) {
      Program program = run_pipeline(op.program(shape));
      try {
        InstanceGraph graph = expand(program, extent_bounds(program), nullptr, PipeLoopMode::kFold);
        if (graph.num_events() > 20'000) continue;
        compare_with_gaps(graph, random, judged);
      } catch (const DependsOnTable&) {
      }
    }
  }
  fmt::print("{} over, {} not, {} accesses promised\n", judged.over, judged.open, judged.promised);
  EXPECT_GE(judged.over, 50);
  EXPECT_GE(judged.open, 50);
}

TEST(ReuseFrontier, WhatIsOverTogetherIsOverPairByPair) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  Judged judged;
  for (std::uint64_t i = 0; i < 500; ++i) {
    for (Program program :
         {sample::RandomProtocol(seed + i).exchange(), sample::RandomProtocol(seed + i).soup()}) {
      try {
        compare(run_pipeline(std::move(program)), judged);
      } catch (const std::exception&) {  // no program
        continue;
      }
    }
  }
  fmt::print("{} buffers are over before a later launch, {} are not\n", judged.over, judged.open);
  EXPECT_GE(judged.over, 50);
  EXPECT_GE(judged.open, 50);
}

// A load of packets that nobody stores, in launches with m = 1 alone.
TEST(ReuseFrontier, LaunchesHaveTheirOwnPackets) {
  ProgramBuilder p("packets", 1);
  Index m = p.extent("m", 1);
  auto box = p.buffer("box", DType::kF16, {4, 4},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto out = p.output("out", DType::kF16, {4, 4});
  p.role("load", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.when(m == 1, [&] { p.store(out.tile({0, 0}, 4, 4), p.load_packet(box.tile({0, 0}, 4, 4))); });
  });
  Program program = run_pipeline(p.finish());
  InstanceGraph without = expand(program, {0}), with = expand(program, {1});
  ASSERT_TRUE(without.packet_loads.empty());
  ASSERT_EQ(with.packet_loads.size(), 1u);
  EXPECT_TRUE(execute(Timeline{{&without, &without}}).finished);
  EXPECT_FALSE(execute(Timeline{{&without, &with}}).finished) << "the second waits for ever";
  EXPECT_FALSE(execute(Timeline{{&with, &without}}).finished);
}

// Promises of several kinds, by lot.
struct Promised {
  int world, slots;
  std::vector<LaunchPromises> kinds;
};

Promised random_promises(sample::RandomProtocol& random) {
  Promised out{random.between(2, 3), random.between(1, 3), {}};
  auto ranks = [&] { return static_cast<RankSet>(random.between(0, (1 << out.world) - 1)); };
  auto some = [&] { return ranks() | ranks(); };
  auto boxes = [&] {
    std::vector<Box> all(static_cast<std::size_t>(random.between(1, 2)));
    for (Box& box : all) {
      box.lo[0] = random.between(0, 5);
      box.hi[0] = box.lo[0] + random.between(1, 2);
      for (std::size_t d = 1; d < box.hi.size(); ++d) box.hi[d] = 1;
    }
    return all;
  };
  for (int k = random.between(1, 3); k > 0; --k) {
    LaunchPromises& kind = out.kinds.emplace_back();
    for (auto& of : kind.passes) {
      for (int r = 0; r < out.world; ++r) of.push_back(ranks() | RankSet{1} << r);
    }
    LaunchPromises::Uses& uses = kind.uses[{0, 0}];
    for (int i = random.between(1, 2); i > 0; --i) {
      LaunchPromises::Earlier x{random.between(0, out.world - 1), random.chance(50), {}};
      x.over = {std::pair(Past::kWrite, some()), std::pair(Past::kBulkStore, some())};
      uses.earlier[x] = boxes();
      LaunchPromises::Later y{random.between(0, out.world - 1), random.chance(50), {}};
      for (RankSet& knows : y.knows) knows = some();
      uses.later[y] = boxes();
    }
  }
  return out;
}

// A rank at a time, whatever the kinds between.
bool gets_through(const Promised& p, std::size_t past, int from, RankSet to, int launches) {
  if (launches == 0) return (to >> from & 1) != 0;
  for (int r = 0; r < p.world; ++r) {
    bool every = std::ranges::all_of(p.kinds, [&](const LaunchPromises& kind) {
      return (kind.passes[past][at(from)] >> r & 1) != 0;
    });
    if (every && gets_through(p, past, r, to, launches - 1)) return true;
  }
  return false;
}

bool in_doubt(const Promised& p) {
  auto over = [&](const LaunchPromises::Earlier& x, const LaunchPromises::Later& y) {
    return std::ranges::all_of(x.over, [&](const auto& way) {
      auto past = static_cast<std::size_t>(way.first);
      for (int r = 0; r < p.world; ++r) {
        bool ends = (way.second >> r & 1) != 0;
        if (ends && gets_through(p, past, r, y.knows[past], p.slots - 1)) return true;
      }
      return false;
    });
  };
  for (const LaunchPromises& a : p.kinds) {
    for (const LaunchPromises& b : p.kinds) {
      for (const auto& [x, x_boxes] : a.uses.at({0, 0}).earlier) {
        for (const auto& [y, y_boxes] : b.uses.at({0, 0}).later) {
          if (x.rank == y.rank || (!x.writes && !y.writes) || over(x, y)) continue;
          for (const Box& i : x_boxes) {
            for (const Box& j : y_boxes) {
              if (i.lo[0] < j.hi[0] && j.lo[0] < i.hi[0]) return true;
            }
          }
        }
      }
    }
  }
  return false;
}

TEST(ReuseFrontier, PromisesOfAllKindsAreAskedOfEachOther) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  sample::RandomProtocol random(seed);
  int doubts = 0, free = 0;
  for (int i = 0; i < 4000; ++i) {
    Promised p = random_promises(random);
    Program program;
    program.world_size = p.world;
    program.tensors.emplace_back().num_slots = p.slots;
    bool expected = in_doubt(p);
    EXPECT_EQ(slots_in_doubt(program, p.kinds).has_value(), expected);
    ++(expected ? doubts : free);
  }
  EXPECT_GE(doubts, 200);
  EXPECT_GE(free, 200);
}

// Workers read parts of an inbox and say that they are done; the next launch's sender waits for so
// many of them before it writes all of it.
ProofResult inbox(int readers, int waited_for, bool early) {
  ProgramBuilder p("inbox", 2);
  auto x = p.input("x", DType::kF32, {readers, 8});
  auto slots = p.buffer("slots", DType::kF32, {readers, 8}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {readers, 8});
  auto done = p.signal("done", readers), sent = p.signal("sent");
  Index other = 1 - p.rank();
  // As if a launch before this one had been read.
  p.role("send", Resource::sms(1), p.range(readers), [&](const Tile& t) {
    p.store(slots.on(other).tile({t.index, 0}, 1, 8), p.load(x.tile({t.index, 0}, 1, 8)));
    p.notify(sent, other);
  });
  p.role("read", Resource::sms(readers), p.range(readers), [&](const Tile& t) {
    p.wait(sent[other], readers);
    if (early) p.notify(done[t.index], other);
    p.store(out.tile({t.index, 0}, 1, 8), p.load(slots.tile({t.index, 0}, 1, 8)));
    if (!early) p.notify(done[t.index], other);
  });
  p.on_end([&] { p.loop(waited_for, [&](const Index& i) { p.wait(done[i], 1); }); });
  ProofOptions all_at_once;
  all_at_once.few_pairs = 0;
  return prove(run_pipeline(p.finish()), all_at_once);
}

TEST(ReuseFrontier, EveryReaderCounts) {
  constexpr int kReaders = 4;
  EXPECT_TRUE(inbox(kReaders, kReaders, false).proved());
  for (int few = 0; few < kReaders; ++few) {
    ProofResult result = inbox(kReaders, few, false);
    ASSERT_TRUE(result.rejected()) << "a slot may still be read";
    EXPECT_EQ(result.findings[0].kind, FindingKind::kReuse) << result.report;
  }
}

TEST(ReuseFrontier, AReaderIsOverWithItsLastRead) {
  ProofResult result = inbox(4, 4, true);
  ASSERT_TRUE(result.rejected()) << "a slot may still be read";
  EXPECT_EQ(result.findings[0].kind, FindingKind::kReuse) << result.report;
}

}  // namespace
}  // namespace stretto
