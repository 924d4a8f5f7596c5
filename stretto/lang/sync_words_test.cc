// Every word that moves data or orders ranks, on 1, 2 and 3 ranks, against what plain C++ says must
// arrive; and each program is proved, since a word that cannot be proved cannot be shipped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>

#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/lang/rank_runs.h"

namespace stretto::sync_words_test {
namespace {

using rank_runs::Doubles, rank_runs::Tensors;

constexpr std::int64_t kCols = 4;

double cell(int rank, std::int64_t row, std::int64_t col) {
  return rank * 1000.0 + static_cast<double>(row * 10 + col);
}
Doubles matrix(int rank, std::int64_t rows, std::int64_t first_row = 0) {
  Doubles v;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) v.push_back(cell(rank, first_row + r, c));
  }
  return v;
}

class SyncWords : public testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
  // Runs three launches and proves; results per rank.
  std::vector<Tensors> run(const Program& program, const rank_runs::Inputs& inputs,
                           const std::vector<std::int64_t>& extents = {}) {
    EXPECT_EQ(rank_runs::refusal(program), "");
    return rank_runs::run(program, inputs, {.launches = 3, .extents = extents});
  }
  void expect_each(const std::vector<Tensors>& got, const char* name,
                   const std::function<Doubles(int rank)>& want) {
    for (int r = 0; r < world(); ++r) {
      EXPECT_EQ(got[static_cast<std::size_t>(r)].at(name), want(r)) << "rank " << r;
    }
  }
  // The rows of all ranks, five each, the last ranks perhaps fewer.
  Doubles all_rows(std::int64_t m) const {
    Doubles v;
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        v.push_back(cell(static_cast<int>(row / 5), row, c));
      }
    }
    return v;
  }
};

// Rows of a ragged matrix are produced tile by tile and consumed in other tiles.
TEST_P(SyncWords, LocalProducersAndConsumersOfOtherTiles) {
  std::int64_t m = 5 * world() - (world() > 1 ? 2 : 0);
  ProgramBuilder p("local", world());
  auto x = p.input("x", DType::kF32, {m, kCols});
  auto full = p.buffer("full", DType::kF32, {m, kCols});
  auto y = p.output("y", DType::kF32, {m, kCols});
  auto rows = p.tile_map("rows", full, {.tile_rows = 2, .channels_per_rank = 2});
  auto here = p.signal("here", rows.channels());
  p.role("fill", Resource::host(2), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.copy(full.tile({t.row, 0}, 2, kCols).until_row(t.row_end),
           x.tile({t.row, 0}, 2, kCols).until_row(t.row_end));
    p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
  });
  p.role("use", Resource::sms(2), p.grid(y, 3, 3), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row + 3);
    p.store(y.tile({t.row, t.col}, 3, 3), p.load(full.tile({t.row, t.col}, 3, 3)) + 1.0);
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, m)}}; });
  expect_each(got, "y", [&](int r) {
    Doubles want = matrix(r, m);
    for (double& v : want) v += 1;
    return want;
  });
}

// An all-gather by broadcast: the owner writes its tiles to everybody and tells everybody.
TEST_P(SyncWords, BroadcastProducers) {
  std::int64_t m = 5 * world();
  ProgramBuilder p("broadcast", world());
  auto x = p.input("x", DType::kF32, {5, kCols});
  auto full = p.buffer("full", DType::kF32, {m, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {m, kCols});
  auto rows = p.tile_map("rows", full, {.tile_rows = 2});
  auto here = p.signal("here", rows.channels());
  auto ready = p.signal("ready");
  p.on_start([&] { p.notify_all(ready); });
  p.role("push", Resource::sms(1), rows.tiles().owned_by(p.rank()), [&](const Tile& t) {
    p.wait_all(ready);
    p.loop(world(), [&](const Index& peer) {
      p.put(full.on(peer).tile({t.row, 0}, 2, kCols).until_row(t.row_end),
            x.tile({t.local_row, 0}, 2, kCols));
    });
    p.producer_tile_notify(here, rows, t, NotifyMode::kBroadcast);
  });
  p.role("use", Resource::sms(2), p.grid(y, 3, kCols), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row + 3);
    p.store(y.tile({t.row, 0}, 3, kCols), p.load(full.tile({t.row, 0}, 3, kCols)));
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, 5, 5 * r)}}; });
  expect_each(got, "y", [&](int) { return all_rows(m); });
}

// Each rank pushes its right neighbour's rows to it and tells it alone.
TEST_P(SyncWords, PushToTheOwner) {
  std::int64_t m = 5 * world();
  ProgramBuilder p("push", world());
  auto x = p.input("x", DType::kF32, {m, kCols});
  auto inbox = p.buffer("inbox", DType::kF32, {m, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {5, kCols});
  auto rows = p.tile_map("rows", inbox, {.tile_rows = 3});
  auto here = p.signal("here", rows.channels());
  auto ready = p.signal("ready");
  Index right = (p.rank() + 1) % world(), left = (p.rank() + world() - 1) % world();
  p.on_start([&] { p.rank_notify(ready, left); });
  p.role("push", Resource::copy_engine(), rows.tiles().owned_by(right), [&](const Tile& t) {
    p.rank_wait(ready, right);
    p.tile_push_data(rows, t, x, inbox);
    p.producer_tile_notify(here, rows, t, NotifyMode::kP2P);
  });
  p.role("use", Resource::sms(1), rows.tiles().owned_by(p.rank()), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row_end);
    p.store(y.tile({t.local_row, 0}, 3, kCols),
            p.load(inbox.tile({t.row, 0}, 3, kCols).until_row(t.row_end)));
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, m)}}; });
  expect_each(got, "y",
              [&](int r) { return matrix((r + world() - 1) % world(), 5, 5 * std::int64_t{r}); });
}

TEST_P(SyncWords, PullFromTheOwner) {
  std::int64_t m = 5 * world() - (world() > 1 ? 1 : 0);
  ProgramBuilder p("pull", world());
  auto x = p.input("x", DType::kF32, {m, kCols}, Space::kSymmetric);
  auto y = p.output("y", DType::kF32, {m, kCols});
  auto rows = p.tile_map("rows", y, {.tile_rows = 3});
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("pull", Resource::copy_engine(2), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.tile_pull_data(rows, t, x, y);
    p.notify(done, t.owner);
  });
  p.on_end([&] { p.loop(world(), [&](const Index& r) { p.wait(done[r], 2); }); });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, m)}}; });
  expect_each(got, "y", [&](int) { return all_rows(m); });
}

// A ring: every rank adds its rows to what comes from the left and passes the sum on, tile by tile.
TEST_P(SyncWords, PeerTilesAroundARing) {
  ProgramBuilder p("ring", world());
  auto x = p.input("x", DType::kF32, {4, kCols});
  auto hop = p.buffer("hop", DType::kF32, {4, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {4, kCols});
  auto rows =
      p.tile_map("rows", p.buffer("all", DType::kF32, {4 * world(), kCols}), {.tile_rows = 2});
  auto passed = p.signal("passed", rows.channels() * 2);
  auto ready = p.signal("ready");
  Index right = (p.rank() + 1) % world(), left = (p.rank() + world() - 1) % world();
  p.on_start([&] { p.rank_notify(ready, left); });
  p.role("pass", Resource::sms(1), rows.tiles().owned_by(0), [&](const Tile& t) {
    Value sum = p.load(x.tile({t.row, 0}, 2, kCols));
    p.when(p.rank() > 0, [&] {
      p.peer_tile_wait(passed, rows, t, left);
      sum = p.load(hop.tile({t.row, 0}, 2, kCols)) + sum;
    });
    p.rank_wait(ready, right);
    p.when(p.rank() < world() - 1, [&] { p.store(hop.on(right).tile({t.row, 0}, 2, kCols), sum); });
    p.peer_tile_notify(passed, rows, t, right);
    p.store(y.tile({t.row, 0}, 2, kCols), sum);
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, 4)}}; });
  expect_each(got, "y", [&](int r) {
    Doubles want(4 * kCols, 0);
    for (int s = 0; s <= r; ++s) {
      Doubles mine = matrix(s, 4);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += mine[i];
    }
    return want;
  });
}

// Words that stand for others make the same program as these do.
TEST_P(SyncWords, WordsThatStandForOthers) {
  const int world = this->world();
  auto text = [&](bool short_words) {
    ProgramBuilder p("words", world);
    auto x = p.input("x", DType::kF32, {6 * world, kCols}, Space::kSymmetric);
    auto y = p.output("y", DType::kF32, {6 * world, kCols});
    auto inbox = p.buffer("inbox", DType::kF32, {6 * world, kCols}, {.space = Space::kSymmetric});
    auto rows = p.tile_map("rows", y, {.tile_rows = 2, .channels_per_rank = 1});
    auto told = p.signal("told", 3 * world), added = p.signal("added", 1);
    auto ready = p.signal("ready");
    p.role("move", Resource::copy_engine(), rows.tiles(), [&](const Tile& t) {
      Index peer = (p.rank() + 1) % world;
      auto own = [&](const TensorRef& of) {
        return of.tile({t.row, 0}, 2, kCols).until_row(t.row_end);
      };
      if (short_words) {
        p.rank_notify(ready, peer);
        p.rank_wait(ready, peer);
        p.tile_push_data(rows, t, x, inbox);
        p.tile_pull_data(rows, t, x, y);
        p.peer_tile_notify(told, rows, t, peer);
        p.peer_tile_wait(told, rows, t, peer);
        p.signal_op(added[0], peer, 3);
        p.put(own(inbox).on(peer), own(x));
        p.get(own(y), own(x).on(peer));
        p.rank_copy_data(own(x), own(inbox).on(peer));
        p.put_signal(own(inbox).on(peer), own(x), added[0], peer);
      } else {
        p.notify(ready, peer);
        p.wait(ready, peer);
        p.copy(own(inbox).on(t.owner), own(x));
        p.copy(own(y), own(x).on(t.owner));
        p.notify(told[t.index], peer);
        p.wait(told[t.index]);
        p.notify(added[0], peer, 3);
        p.copy(own(inbox).on(peer), own(x));
        p.copy(own(y), own(x).on(peer));
        p.copy(own(inbox).on(peer), own(x));
        p.copy(own(inbox).on(peer), own(x));
        p.notify(added[0], peer);
      }
    });
    return std::regex_replace(print(p.finish()), std::regex(" loc\\([^)]*\\)"), "");
  };
  // A wait for a peer says whom it waits for, which a channel alone does not.
  const std::string peer =
      world == 1 ? " from 0\n" : fmt::format(" from (%rank + 1) % {}\n", world);
  std::string written = text(false);
  std::size_t wait = written.find("wait told[");
  ASSERT_NE(wait, std::string::npos);
  written.replace(written.find('\n', wait), 1, peer);
  EXPECT_EQ(text(true), written);
}

// OpenSHMEM's words: put with signal, signal_op, get, barrier.
TEST_P(SyncWords, PutSignalGetAndBarrier) {
  ProgramBuilder p("shmem", world());
  auto x = p.input("x", DType::kF32, {2, kCols});
  auto inbox = p.buffer("inbox", DType::kF32, {2, kCols}, {.space = Space::kSymmetric});
  auto shared = p.buffer("shared", DType::kF32, {2, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {2, kCols});
  auto z = p.output("z", DType::kF32, {2, kCols});
  auto came = p.signal("came", 2);
  auto fence = p.signal("fence");
  Index right = (p.rank() + 1) % world();
  auto all = [&](const TensorRef& t) { return t.tile({0, 0}, 2, kCols); };
  p.role("talk", Resource::host(), p.range(1), [&](const Tile&) {
    p.copy(all(shared), all(x));
    p.barrier(fence);  // everybody's launch has begun, everybody's `shared` is filled
    p.put_signal(all(inbox.on(right)), all(x), came[0], right);
    p.signal_op(came[1], right, 5);
    p.wait(came[0]);
    p.wait(came[1], 5);
    p.store(y.tile({0, 0}, 2, kCols), p.load(all(inbox)));
    p.get(all(z), all(shared.on(right)));
    p.barrier(fence);  // nobody writes `shared` again before all have read it
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, 2)}}; });
  expect_each(got, "y", [&](int r) { return matrix((r + world() - 1) % world(), 2); });
  expect_each(got, "z", [&](int r) { return matrix((r + 1) % world(), 2); });
}

TEST_P(SyncWords, PacketsNeedNoSignal) {
  ProgramBuilder p("packets", world());
  auto x = p.input("x", DType::kBF16, {1, kCols});
  auto box = p.buffer("box", DType::kBF16, {world(), kCols},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto y = p.output("y", DType::kF32, {world(), kCols});
  p.role("talk", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value mine = p.load(x.tile({0, 0}, 1, kCols));
    p.loop(world(), [&](const Index& r) {
      p.store_packet(box.on(r).tile({p.rank(), 0}, 1, kCols), mine);
    });
    p.loop(world(), [&](const Index& r) {
      p.store(y.tile({r, 0}, 1, kCols),
              cast(p.load_packet(box.tile({r, 0}, 1, kCols)), DType::kF32));
    });
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", Doubles(kCols, r + 0.5)}}; });
  expect_each(got, "y", [&](int) {
    Doubles want;
    for (int r = 0; r < world(); ++r) want.insert(want.end(), kCols, r + 0.5);
    return want;
  });
}

// Order of arrival decides nothing here, since small whole numbers add exactly.
TEST_P(SyncWords, ReduceStoreAddsWhatAllRanksSend) {
  ProgramBuilder p("reduce", world());
  auto x = p.input("x", DType::kF32, {2, kCols});
  auto sum = p.buffer("sum", DType::kF32, {2, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {2, kCols});
  auto zeroed = p.signal("zeroed"), added = p.signal("added");
  auto all = [&](const TensorRef& t) { return t.tile({0, 0}, 2, kCols); };
  p.on_start([&] {
    p.store(all(sum), p.zeros(DType::kF32, 2, kCols));
    p.notify_all(zeroed);
  });
  p.role("add", Resource::sms(1), p.range(world()), [&](const Tile& t) {
    Index peer = p.let("peer", (p.rank() + t.index) % world());
    p.wait(zeroed, peer);
    p.reduce_store(all(sum.on(peer)), p.load(all(x)));
    p.notify(added, peer);
  });
  p.on_end([&] {
    p.wait_all(added);
    p.store(all(y), p.load(all(sum)));
  });
  auto got = run(p.finish(), [&](int r) { return Tensors{{"x", matrix(r, 2)}}; });
  expect_each(got, "y", [&](int) {
    Doubles want(2 * kCols, 0);
    for (int s = 0; s < world(); ++s) {
      Doubles mine = matrix(s, 2);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += mine[i];
    }
    return want;
  });
}

// Routing at run time: tiles of rows that tables choose, straddling the consumer's tiles, some of
// them empty.
TEST_P(SyncWords, TableDrivenTilesStraddle) {
  constexpr std::int64_t m = 11, tiles = 5;
  ProgramBuilder p("routed", world());
  auto table = [&](const char* name, std::int64_t n, const Index& hi, bool ascending = false) {
    return p.table(name, {n}, {ascending ? ContractKind::kAscending : ContractKind::kRange, 0, hi});
  };
  auto low = table("low", tiles, m + 1, true), high = table("high", tiles, m + 1, true);
  auto owner = table("owner", tiles, world());
  auto group = table("group", tiles, 2), count = table("count", 2, tiles + 1);
  auto x = p.input("x", DType::kF32, {m, kCols});
  auto full = p.buffer("full", DType::kF32, {m, kCols});
  auto y = p.state("y", DType::kF32, {m, kCols});
  auto rows = p.tile_map("rows", full,
                         {.num_tiles = tiles,
                          .num_channels = 2,
                          .low = low,
                          .high = high,
                          .rank = owner,
                          .channel = group,
                          .count = count});
  auto here = p.signal("here", rows.channels());
  p.role("fill", Resource::sms(2), rows.tiles(), [&](const Tile& t) {
    p.copy(full.tile({t.row, 0}, m, kCols).until_row(t.row_end),
           x.tile({t.row, 0}, m, kCols).until_row(t.row_end));
    p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
  });
  p.role("use", Resource::sms(2), p.grid(y, 4, kCols), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row + 4);
    p.store(y.tile({t.row, 0}, 4, kCols), p.load(full.tile({t.row, 0}, 4, kCols)) + 1.0);
  });
  Program program = p.finish();
  auto got = rank_runs::run(program, [&](int r) {
    return Tensors{{"low", {0, 3, 3, 4, 9}},    {"high", {3, 3, 4, 9, 11}},
                   {"owner", {0, 0, 0, 0, 0}},  {"group", {0, 1, 1, 0, 1}},
                   {"count", {2, 3}},           {"x", matrix(r, m)},
                   {"y", Doubles(m * kCols, 0)}};
  });
  expect_each(got, "y", [&](int r) {
    Doubles want = matrix(r, m);
    for (double& v : want) v += 1;
    return want;
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SyncWords, testing::Values(1, 2, 3),
                         [](const auto& info) { return "P" + std::to_string(info.param); });

}  // namespace
}  // namespace stretto::sync_words_test
