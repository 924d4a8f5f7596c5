// Agents that store packets for each other and load them, by lot: whether they all come through,
// and what is over before what, against a walk of the program that knows nothing of graphs. If
// these fail, a launch that waits for ever is proved, or one rank writes what another still reads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/happens_before.h"
#include "stretto/proof/timeline.h"

namespace stretto::packet_order_test {
namespace {

constexpr int kRows = 6;  // of each rank's box

struct Act {
  bool stores = false;
  int rank = 0, row = 0, count = 1;  // whose box, and which rows
};

// What each agent does: [rank][role].
using Scripts = std::vector<std::vector<std::vector<Act>>>;

class Lot {
 public:
  explicit Lot(std::uint64_t seed) : random_(seed) {}
  int between(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random_); }

  // Each row of a box is stored once, or never; loaded by as many as like.
  Scripts scripts() {
    int world = between(1, 3), roles = between(1, 2);
    Scripts all(at(world), std::vector<std::vector<Act>>(at(roles)));
    auto someone = [&]() -> std::vector<Act>& {
      return all[at(between(0, world - 1))][at(between(0, roles - 1))];
    };
    for (int rank = 0; rank < world; ++rank) {
      for (int row = 0; row < kRows;) {
        int count = std::min(between(1, 3), kRows - row);
        if (between(0, 99) > 2) someone().push_back({true, rank, row, count});
        row += count;
      }
      for (int i = between(1, 5); i > 0; --i) {
        int row = between(0, kRows - 1), roles_here = between(0, roles - 1);
        // Mostly late, so that many programs end.
        std::vector<Act>& mine = all[at(rank)][at(roles_here)];
        auto where = mine.begin() + (between(0, 2) == 0 ? between(0, static_cast<int>(mine.size()))
                                                        : static_cast<int>(mine.size()));
        mine.insert(where, {false, rank, row, std::min(between(1, 4), kRows - row)});
      }
    }
    return all;
  }

 private:
  std::mt19937_64 random_;
};

Program program_of(const Scripts& scripts) {
  auto world = static_cast<int>(scripts.size());
  ProgramBuilder p("packets", world);
  auto box = p.buffer("box", DType::kF32, {kRows, 2}, {.space = Space::kSymmetric, .packet = true});
  for (std::size_t role = 0; role < scripts[0].size(); ++role) {
    p.role(fmt::format("role{}", role), Resource::sms(1), p.range(1), [&](const Tile&) {
      for (int rank = 0; rank < world; ++rank) {
        p.when(p.rank() == rank, [&] {
          for (const Act& act : scripts[at(rank)][role]) {
            Slice rows = box.tile({act.row, 0}, act.count, 2);
            if (act.stores) {
              p.store_packet(rows.on(act.rank), p.zeros(DType::kF32, act.count, 2));
            } else {
              p.load_packet(rows);
            }
          }
        });
      }
    });
  }
  return run_pipeline(p.finish());
}

// Agents of roles, as the graph numbers them: rank by rank, on_start and on_end first.
int agent_of(const Scripts& scripts, int rank, std::size_t role) {
  auto roles = static_cast<int>(scripts[0].size());
  return rank * (roles + 2) + 2 + static_cast<int>(role);
}

// Each agent goes on as far as it can, a launch by itself.
bool comes_through(const Scripts& scripts) {
  std::set<std::pair<int, int>> stored;
  std::vector<std::vector<std::size_t>> next(scripts.size(),
                                             std::vector<std::size_t>(scripts[0].size(), 0));
  auto may_go_on = [&](const Act& act) {
    for (int i = 0; i < act.count && !act.stores; ++i) {
      if (stored.count({act.rank, act.row + i}) == 0) return false;
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < scripts.size(); ++r) {
      for (std::size_t role = 0; role < scripts[r].size(); ++role) {
        const std::vector<Act>& acts = scripts[r][role];
        std::size_t& pos = next[r][role];
        if (pos == acts.size() || !may_go_on(acts[pos])) continue;
        const Act& act = acts[pos++];
        for (int i = 0; i < act.count && act.stores; ++i) stored.insert({act.rank, act.row + i});
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < scripts.size(); ++r) {
    for (std::size_t role = 0; role < scripts[r].size(); ++role) {
      if (next[r][role] != scripts[r][role].size()) return false;
    }
  }
  return true;
}

struct Event {
  int rank, pos;
  std::size_t role;
  friend auto operator<=>(const Event&, const Event&) = default;
};

// Events that come behind this one in the same launch, by way of packets and program order.
std::set<Event> behind(const Scripts& scripts, const Event& first) {
  std::set<Event> seen;
  std::vector<Event> open = {first};
  while (!open.empty()) {
    Event e = open.back();
    open.pop_back();
    if (!seen.insert(e).second) continue;
    const std::vector<Act>& acts = scripts[at(e.rank)][e.role];
    if (e.pos + 1 < static_cast<int>(acts.size())) open.push_back({e.rank, e.pos + 1, e.role});
    const Act& act = acts[at(e.pos)];
    if (!act.stores) continue;
    for (std::size_t role = 0; role < scripts[at(act.rank)].size(); ++role) {
      const std::vector<Act>& there = scripts[at(act.rank)][role];
      for (int pos = 0; pos < static_cast<int>(there.size()); ++pos) {
        const Act& load = there[at(pos)];
        bool meets =
            !load.stores && load.row < act.row + act.count && act.row < load.row + load.count;
        if (meets) open.push_back({act.rank, pos, role});
      }
    }
  }
  return seen;
}

template <typename Visit>
void each_agent(const Scripts& scripts, const Visit& visit) {
  for (int rank = 0; rank < static_cast<int>(scripts.size()); ++rank) {
    for (std::size_t role = 0; role < scripts[at(rank)].size(); ++role) visit(rank, role);
  }
}

// What comes behind a packet is later, and nothing but the packet is over for it.
void compare_orders(const Scripts& scripts, const HappensBefore& order, int& before, int& not_so) {
  each_agent(scripts, [&](int rank, std::size_t role) {
    auto num = static_cast<int>(scripts[at(rank)][role].size());
    for (int pos = 0; pos <= num; ++pos) {
      std::set<Event> after;
      // An access is told of by the packets that are stored behind it.
      for (int p = pos; p < num && after.empty(); ++p) {
        if (scripts[at(rank)][role][at(p)].stores) after = behind(scripts, {rank, p, role});
      }
      each_agent(scripts, [&](int to, std::size_t to_role) {
        if (to == rank) return;
        auto num_there = static_cast<int>(scripts[at(to)][to_role].size());
        for (int y = 0; y <= num_there; ++y) {
          bool expected = y > 0 && after.count({to, y - 1, to_role}) != 0;
          const ProgramPoint from{agent_of(scripts, rank, role), 0, pos};
          const ProgramPoint point{agent_of(scripts, to, to_role), 0, y};
          EXPECT_EQ(order.before(from, point, Past::kOrder, Path::kThreads), expected)
              << "rank " << rank << " role " << role << " at " << pos << ", rank " << to << " role "
              << to_role << " at " << y;
          for (Past past : {Past::kRead, Past::kWrite, Past::kBulkStore}) {
            EXPECT_FALSE(order.before(from, point, past, Path::kThreads));
          }
          ++(expected ? before : not_so);
        }
      });
    }
  });
}

TEST(PacketOrder, IsThatOfAWalk) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  int ends = 0, stuck = 0, before = 0, not_so = 0;
  for (std::uint64_t i = 0; i < 600; ++i) {
    SCOPED_TRACE(fmt::format("program {}", i));
    const Scripts scripts = Lot(seed + i).scripts();
    const Program program = program_of(scripts);
    const InstanceGraph graph = expand(program, {});
    bool expected = comes_through(scripts);
    Timeline timeline{{&graph, &graph, &graph}};
    Execution execution = execute(timeline);
    ASSERT_EQ(execution.finished, expected) << execution.stuck;
    ++(expected ? ends : stuck);
    if (!expected) continue;
    HappensBefore order(timeline, execution);
    compare_orders(scripts, order, before, not_so);
  }
  fmt::print("{} end, {} are stuck; {} pairs in order, {} not\n", ends, stuck, before, not_so);
  EXPECT_GE(ends, 60);
  EXPECT_GE(stuck, 60);
  EXPECT_GE(before, 1000);
  EXPECT_GE(not_so, 1000);
}

}  // namespace
}  // namespace stretto::packet_order_test
