// Where masks are left open (proof/size_masks.h), one expansion stands for launches that touch more
// or less. Random programs, held against the expansion of each size drawn by lot: the same
// synchronisation, and the same elements touched between the same events.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <tuple>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/ir/printer.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/mutation/random_sizes_testing.h"
#include "stretto/proof/overlap.h"
#include "stretto/proof/size_masks.h"
#include "stretto/proof/size_partition.h"

namespace stretto {
namespace {

int num_programs() { return std::getenv("STRETTO_SOAK") != nullptr ? 5'000 : 200; }

// By tensor, rank, kind and what is around: the events that are there at every size.
using Touched = std::map<std::tuple<int, int, int, AccessKind>, std::vector<Box>>;

bool on_signal(const InstanceGraph& graph, const Sync& s) {
  if (s.kind != SyncKind::kNotify && s.kind != SyncKind::kWait) return false;
  return graph.counters[static_cast<std::size_t>(s.counter)].kind == CounterKind::kSignal;
}

bool same(const Sync& a, const Sync& b) {
  return a.op == b.op && a.tile == b.tile && a.kind == b.kind && a.counter == b.counter &&
         a.amount == b.amount;
}

// Without a rank's own inputs, of which nothing is asked.
Touched touched(const InstanceGraph& graph, const AgentTrace& agent, const std::vector<int>& places,
                const std::function<Box(int)>& box_of) {
  Touched out;
  for (const Access& a : agent.accesses) {
    if (nobody_writes(graph.program->tensors[static_cast<std::size_t>(a.tensor)])) continue;
    Box box = box_of(a.box);
    int place = places[static_cast<std::size_t>(a.pos)];
    if (!is_empty(box)) out[{place, a.tensor, a.rank, a.kind}].push_back(box);
  }
  return out;
}

bool same_elements(const std::vector<Box>& a, const std::vector<Box>& b) {
  auto within = [](const std::vector<Box>& inner, const std::vector<Box>& outer) {
    return std::all_of(inner.begin(), inner.end(),
                       [&](const Box& box) { return uncovered(box, outer).empty(); });
  };
  return within(a, b) && within(b, a);
}

// Of the piece's signals those of a size, in their order; what is left over is there at some sizes
// only. `places`: how many before each event.
bool holds_signals(const InstanceGraph& piece, const AgentTrace& x, const InstanceGraph& there,
                   const AgentTrace& y, std::vector<int>& of_piece, std::vector<int>& of_size) {
  std::vector<Sync> wanted;
  for (const Sync& s : y.syncs) {
    of_size.push_back(static_cast<int>(wanted.size()));
    if (on_signal(there, s)) wanted.push_back(s);
  }
  of_size.push_back(static_cast<int>(wanted.size()));
  std::size_t next = 0;
  for (const Sync& s : x.syncs) {
    of_piece.push_back(static_cast<int>(next));
    if (!on_signal(piece, s)) continue;
    if (next < wanted.size() && same(s, wanted[next])) {
      ++next;
    } else if (s.choice == TableChoices::kAlways) {
      return false;
    }
  }
  of_piece.push_back(static_cast<int>(next));
  return next == wanted.size();
}

void expect_same(const InstanceGraph& piece, const SizePoint& point, const InstanceGraph& there) {
  ASSERT_EQ(piece.agents.size(), there.agents.size());
  for (std::size_t a = 0; a < piece.agents.size(); ++a) {
    const AgentTrace &x = piece.agents[a], &y = there.agents[a];
    std::vector<int> places_x, places_y;
    ASSERT_TRUE(holds_signals(piece, x, there, y, places_x, places_y));
    Touched of_piece = touched(piece, x, places_x, [&](int box) {
      Box at_size = piece.masks->at_size(piece.mask_of_box[static_cast<std::size_t>(box)], point);
      const Box& hull = piece.boxes[static_cast<std::size_t>(box)];
      EXPECT_TRUE(is_empty(at_size) || intersection(hull, at_size) == at_size);
      return at_size;
    });
    Touched of_size = touched(there, y, places_y,
                              [&](int box) { return there.boxes[static_cast<std::size_t>(box)]; });
    for (const auto& [where, boxes] : of_piece) {
      EXPECT_TRUE(same_elements(boxes, of_size[where]));
    }
    for (const auto& [where, boxes] : of_size) EXPECT_TRUE(same_elements(of_piece[where], boxes));
  }
}

TEST(RandomSizes, WithMasksLeftOpenAPieceDoesWhatEachOfItsSizesDoes) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  int partitions = 0, sizes = 0, open = 0;
  for (int i = 0; i < num_programs(); ++i) {
    std::uint64_t lot = random();
    Program program = run_pipeline(sample::RandomSizes(lot, (i & 1) != 0).program());
    SCOPED_TRACE(fmt::format("program {}\n{}", lot, print(program)));
    std::int64_t covered = 0, all = 1;
    for (std::int64_t bound : extent_bounds(program)) all *= bound + 1;
    auto look = [&](const SizePartition& so_far, const InstanceGraph& graph) {
      const SizePiece& piece = so_far.pieces.back();
      std::int64_t volume = 1;
      SizePoint point{};
      for (std::size_t a = 0; a < static_cast<std::size_t>(so_far.axes.count); ++a) {
        volume *= piece.box.hi[a] - piece.box.lo[a] + 1;
        point[a] =
            std::uniform_int_distribution<std::int64_t>(piece.box.lo[a], piece.box.hi[a])(random);
      }
      covered += volume;
      ++sizes;
      open += graph.choices->any() ? 1 : 0;
      expect_same(graph, point,
                  expand(program, extents_at(so_far.axes, point), nullptr, PipeLoopMode::kFold));
      return true;
    };
    NoPieces why;
    const LeftOpen open_parts{.waits = static_cast<WaitsOpen>(i % 3),
                              .blocks = i / 3 % 2 == 1,
                              .short_of = i / 6 % 2 == 1};
    try {
      const MostPieces most{.at_least = 2'000, .at_most = 2'000, .events = 0};
      if (partition_with_masks(program, most, open_parts, why, look) == nullptr) continue;
    } catch (const Error&) {
      continue;  // a slip that no launch gets past
    }
    ++partitions;
    EXPECT_EQ(covered, all);
  }
  fmt::print("{} programs, {} of their sizes\n", partitions, sizes);
  EXPECT_GT(partitions, num_programs() / 4);
  EXPECT_GT(open, 0);
}

}  // namespace
}  // namespace stretto
