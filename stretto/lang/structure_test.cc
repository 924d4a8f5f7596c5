// Tiles, loops, conditions, run-time sizes and tables: what decides which work is done, and how
// often. A tile left out is a hole in a result, a tile done twice a race.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "stretto/base/test_errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/lang/rank_runs.h"

namespace stretto::structure_test {
namespace {

using rank_runs::Doubles, rank_runs::Tensors;

Tensors no_inputs(int) { return {}; }

// The tiles of a 2-D grid in the order in which one worker takes them, as (m, n) pairs.
std::vector<std::pair<int, int>> visits(const std::function<TileSpace(ProgramBuilder&)>& space,
                                        std::int64_t m, std::int64_t n, int world, int rank) {
  ProgramBuilder p("visits", world);
  auto order = p.state("order", DType::kF32, {m * n, 2});
  p.role("walk", Resource::host(), space(p), [&](const Tile& t) {
    p.store(order.tile({t.index, 0}, 1, 1), cast(p.splat(DType::kI32, t.m), DType::kF32));
    p.store(order.tile({t.index, 1}, 1, 1), cast(p.splat(DType::kI32, t.n), DType::kF32));
  });
  auto got = rank_runs::run(p.finish(), [&](int) {
    return Tensors{{"order", Doubles(static_cast<std::size_t>(2 * m * n), -1)}};
  });
  std::vector<std::pair<int, int>> pairs;
  const Doubles& flat = got[static_cast<std::size_t>(rank)].at("order");
  for (std::size_t i = 0; i + 1 < flat.size(); i += 2) {
    pairs.emplace_back(static_cast<int>(flat[i]), static_cast<int>(flat[i + 1]));
  }
  return pairs;
}

TEST(TileOrders, EachVisitsEveryTileOnce) {
  using Make = std::function<TileSpace(ProgramBuilder&)>;
  const std::pair<const char*, Make> kOrders[] = {
      {"rows", [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3); }},
      {"columns_first", [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3).columns_first(); }},
      {"raster 1", [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3).raster(1); }},
      {"raster 3", [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3).raster(3); }},
      {"raster 9", [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3).raster(9); }},
      {"rotate_rows", [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3).rotate_rows(p.rank()); }},
      {"raster rotated",
       [](ProgramBuilder& p) { return p.grid(7, 10, 2, 3).raster(2).rotate_rows(p.rank()); }}};
  std::vector<std::pair<int, int>> all;
  for (int m = 0; m < 4; ++m) {
    for (int n = 0; n < 4; ++n) all.emplace_back(m, n);
  }
  for (const auto& [name, make] : kOrders) {
    for (int world : {1, 3}) {
      for (int rank = 0; rank < world; ++rank) {
        auto order = visits(make, 4, 4, world, rank);
        std::sort(order.begin(), order.end());
        EXPECT_EQ(order, all) << name << " rank " << rank;
      }
    }
  }
}

TEST(TileOrders, AreTheOrdersTheyAreNamedAfter) {
  auto first = [](const std::function<TileSpace(ProgramBuilder&)>& make, int rank) {
    auto order = visits(make, 4, 4, 2, rank);
    order.resize(4);
    return order;
  };
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(first([](ProgramBuilder& p) { return p.grid(8, 8, 2, 2); }, 0),
            (Pairs{{0, 0}, {0, 1}, {0, 2}, {0, 3}}));
  EXPECT_EQ(first([](ProgramBuilder& p) { return p.grid(8, 8, 2, 2).columns_first(); }, 0),
            (Pairs{{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
  EXPECT_EQ(first([](ProgramBuilder& p) { return p.grid(8, 8, 2, 2).raster(2); }, 0),
            (Pairs{{0, 0}, {1, 0}, {0, 1}, {1, 1}}));
  EXPECT_EQ(first([](ProgramBuilder& p) { return p.grid(8, 8, 2, 2).rotate_rows(p.rank()); }, 1),
            (Pairs{{2, 0}, {2, 1}, {2, 2}, {2, 3}}));
}

// Maps: rows [row, row_end), owner and place at the owner, of every tile.
TEST(TileOrders, MapsCoverEveryRowOnceAndKnowItsOwner) {
  for (int world : {1, 2, 3}) {
    for (std::int64_t m : {1, 7, 12}) {
      ProgramBuilder p("map", world);
      auto seen = p.output("seen", DType::kF32, {m, 3});
      auto mine = p.state("mine", DType::kF32, {m, 1});
      auto rows = p.tile_map("rows", seen, {.tile_rows = 2, .channels_per_rank = 2});
      auto put = [&](const TensorRef& to, const Index& col, const Index& value, const Tile& t) {
        p.store(to.tile({t.row, col}, 2, 1).until_row(t.row_end),
                broadcast(cast(p.splat(DType::kI32, value), DType::kF32), 2, 1));
      };
      p.role("walk", Resource::host(2), rows.tiles().rotate_from(p.rank() + 1), [&](const Tile& t) {
        put(seen, 0, t.owner, t);
        put(seen, 1, t.local_row, t);
        put(seen, 2, t.row_end - t.row, t);
      });
      p.role("own", Resource::host(), rows.tiles().owned_by(p.rank()),
             [&](const Tile& t) { put(mine, 0, 1, t); });
      auto got = rank_runs::run(p.finish(), [&](int) {
        return Tensors{{"mine", Doubles(static_cast<std::size_t>(m), 0)}};
      });
      std::int64_t per_rank = (m + world - 1) / world;
      for (int rank = 0; rank < world; ++rank) {
        for (std::int64_t row = 0; row < m; ++row) {
          auto at = static_cast<std::size_t>(row);
          const Doubles& s = got[static_cast<std::size_t>(rank)].at("seen");
          std::int64_t owner = row / per_rank, local = row % per_rank / 2 * 2;
          std::int64_t end = std::min({local + 2, per_rank, m - owner * per_rank});
          EXPECT_EQ(s[3 * at], owner);
          EXPECT_EQ(s[3 * at + 1], local);
          EXPECT_EQ(s[3 * at + 2], end - local);
          EXPECT_EQ(got[static_cast<std::size_t>(rank)].at("mine")[at], owner == rank);
        }
      }
    }
  }
}

// y[i] = sum of x[0..i], each row's loop as long as its number; only the even rows, the odd get -1.
Program prefix_sums() {
  ProgramBuilder p("prefix", 1);
  Index m = p.extent("m", 9);
  Index add = p.scalar("add", 100);
  auto x = p.input("x", DType::kF32, {m, 1});
  auto y = p.output("y", DType::kF32, {m, 1});
  p.role("sum", Resource::host(3), p.range(m), [&](const Tile& t) {
    Value sum = p.full(DType::kF32, 1, 1, 0);
    Index last = p.let("last", t.index + 1);
    p.when(
        t.index % 2 == 0,
        [&] {
          p.loop(0, last, [&](const Index& i) { sum = sum + p.load(x.tile({i, 0}, 1, 1)); });
          sum = sum + cast(p.splat(DType::kI32, add), DType::kF32);
        },
        [&] { sum = p.full(DType::kF32, 1, 1, -1); });
    p.store(y.tile({t.index, 0}, 1, 1), sum);
  });
  return p.finish();
}

TEST(Control, LoopsAndConditionsAtRunTimeSizes) {
  Program program = prefix_sums();
  EXPECT_EQ(rank_runs::refusal(program), "");
  Doubles x = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (std::int64_t m : {0, 1, 8, 9}) {
    for (std::int64_t add : {0, 100}) {
      auto got = rank_runs::run(program,
                                [&](int) {
                                  return Tensors{{"x", x}};
                                },
                                {.extents = {m, add}});
      const Doubles& y = got[0].at("y");
      for (std::int64_t i = 0; i < 9; ++i) {
        double value = y[static_cast<std::size_t>(i)];
        if (i >= m) {
          EXPECT_TRUE(std::isnan(value)) << "row " << i << " of " << m << " was written";
        } else {
          EXPECT_EQ(value, i % 2 == 0 ? static_cast<double>((i + 1) * (i + 2) / 2 + add) : -1);
        }
      }
    }
  }
  expect_user_error(
      [&] {
        rank_runs::run(program, no_inputs, {.extents = {10, 0}});
      },
      {"extent 'm' is 10"});
}

// What a float decides nothing about has no sizes that the proof would have to look through.
TEST(Control, FloatScalarsScaleRowsOfAnySize) {
  ProgramBuilder p("scaled", 2);
  Index m = p.extent("m", 9);
  FloatScalar alpha = p.float_scalar("alpha");
  auto x = p.input("x", DType::kF32, {m, 1});
  auto y = p.output("y", DType::kF32, {m, 1});
  p.role("scale", Resource::host(2), p.range(m), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 1), p.load(x.tile({t.index, 0}, 1, 1)) * p.splat(alpha));
  });
  Program program = p.finish();
  EXPECT_EQ(rank_runs::refusal(program), "");
  for (float value : {0.0F, -1.5F, 3e38F}) {
    auto got = rank_runs::run(program,
                              [&](int) {
                                return Tensors{{"x", Doubles(9, 0.5)}};
                              },
                              {.extents = {4, scalar_of_float(value)}});
    for (int rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(got[static_cast<std::size_t>(rank)].at("y")[i], 0.5 * static_cast<double>(value));
      }
    }
  }
  expect_user_error([&] { ProgramBuilder("none", 1).splat(FloatScalar{}); }, {"float_scalar()"});
}

TEST(Control, NestedLoopsCarryValuesThroughBoth) {
  ProgramBuilder p("nested", 1);
  auto y = p.output("y", DType::kF32, {1, 1});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value sum = p.zeros(DType::kF32, 1, 1);
    Value last;
    p.loop(2, 5, [&](const Index& i) {
      Value row = p.zeros(DType::kF32, 1, 1);
      p.loop(i,
             [&](const Index& j) { row = row + cast(p.splat(DType::kI32, i * j), DType::kF32); });
      sum = sum + row;
    });
    last = copy(sum);
    p.loop(3, [&](const Index&) { last = last * 2.0; });
    p.store(y.tile({0, 0}, 1, 1), last - sum);
  });
  double sum = 0;
  for (int i = 2; i < 5; ++i) {
    for (int j = 0; j < i; ++j) sum += i * j;
  }
  EXPECT_EQ(rank_runs::run(p.finish(), no_inputs)[0].at("y"), Doubles{7 * sum});
}

TEST(Control, StateOutlivesLaunchesOnEveryRank) {
  for (int world : {1, 2, 3}) {
    ProgramBuilder p("count", world);
    auto n = p.state("n", DType::kI32, {1, 1});
    auto seen = p.output("seen", DType::kI32, {1, 1});
    p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
      Value before = p.load(n.tile({0, 0}, 1, 1));
      p.store(seen.tile({0, 0}, 1, 1), before);
      p.store(n.tile({0, 0}, 1, 1), before + 1.0);
    });
    auto got = rank_runs::run(p.finish(),
                              [](int r) {
                                return Tensors{{"n", {r * 10.0}}};
                              },
                              {.launches = 5});
    for (int r = 0; r < world; ++r) {
      EXPECT_EQ(got[static_cast<std::size_t>(r)].at("n"), Doubles{r * 10.0 + 5});
      EXPECT_EQ(got[static_cast<std::size_t>(r)].at("seen"), Doubles{r * 10.0 + 4});
    }
  }
}

// y[i] = x[order[i]], by table reads that place a slice.
Program permute(ContractKind kind) {
  ProgramBuilder p("permute", 1);
  auto order = p.table("order", {5}, {kind, 0, 5});
  auto x = p.input("x", DType::kF32, {5, 2});
  auto y = p.output("y", DType::kF32, {5, 2});
  p.role("r", Resource::host(2), p.range(5), [&](const Tile& t) {
    Index from = p.read(order, {t.index});
    p.store(y.tile({t.index, 0}, 1, 2), p.load(x.tile({from, 0}, 1, 2)));
  });
  return p.finish();
}

TEST(Tables, PlaceSlicesAndKeepTheirContracts) {
  Doubles x = {0, 1, 10, 11, 20, 21, 30, 31, 40, 41};
  auto run = [&](ContractKind kind, const Doubles& order) {
    return rank_runs::run(permute(kind),
                          [&](int) {
                            return Tensors{{"x", x}, {"order", order}};
                          })[0]
        .at("y");
  };
  Doubles want = {40, 41, 0, 1, 30, 31, 10, 11, 20, 21};
  EXPECT_EQ(run(ContractKind::kPermutation, {4, 0, 3, 1, 2}), want);
  EXPECT_EQ(run(ContractKind::kRange, {4, 0, 3, 1, 2}), want);
  want = {0, 1, 0, 1, 20, 21, 30, 31, 30, 31};
  EXPECT_EQ(run(ContractKind::kAscending, {0, 0, 2, 3, 3}), want);
  expect_fault(
      [&] {
        run(ContractKind::kRange, {4, 0, 5, 1, 2});
      },
      {"'order'", "entry 2 is 5", "0 <= entry < 5"});
  expect_fault([&] { run(ContractKind::kRange, {-1, 0, 3, 1, 2}); }, {"entry 0 is -1"});
  expect_fault(
      [&] {
        run(ContractKind::kPermutation, {4, 0, 3, 0, 2});
      },
      {"entry 3 is 0", "occurs before"});
  expect_fault(
      [&] {
        run(ContractKind::kAscending, {0, 2, 1, 3, 3});
      },
      {"entry 2 is 1", "below the entry before it"});
  want = {0, 1, 20, 21, 20, 21, 30, 31, 40, 41};
  EXPECT_EQ(run(ContractKind::kPartition, {0, 2, 2, 3, 4}), want);
  const std::pair<Doubles, const char*> kBadPartitions[] = {
      {{1, 2, 2, 3, 4}, "entry 0 is 1, a partition begins with 0"},
      {{0, 2, 1, 3, 4}, "entry 2 is 1, below the entry before it"},
      {{0, 2, 2, 3, 3}, "entry 4 is 3, a partition ends with 4"},
      {{0, 2, 5, 3, 4}, "entry 2 is 5, need 0 <= entry < 5"},
  };
  for (const auto& [order, reason] : kBadPartitions) {
    expect_fault([&] { run(ContractKind::kPartition, order); }, {"'order'", reason});
  }
  EXPECT_EQ(rank_runs::refusal(permute(ContractKind::kPermutation)), "");
}

// Four dimensions, other dimensions as rows and columns, limits on both.
TEST(Slices, AnyTwoDimensionsMayBeATile) {
  ProgramBuilder p("dims", 1);
  auto x = p.input("x", DType::kF32, {2, 3, 4, 5});
  auto y = p.output("y", DType::kF32, {3, 5});
  auto z = p.output("z", DType::kF32, {3, 5});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Slice box = x.tile({1, 0, 2, 0}, 3, 5).rows_along(1).cols_along(3);
    p.store(y.tile({0, 0}, 3, 5), p.load(box));
    p.store(z.tile({0, 0}, 3, 5), p.load(box.until_row(2).until_col(4)));
  });
  Doubles x_values(120), want, limited;
  for (std::size_t i = 0; i < 120; ++i) x_values[i] = static_cast<double>(i);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 5; ++c) {
      double value = 60 + r * 20 + 10 + c;
      want.push_back(value);
      limited.push_back(r < 2 && c < 4 ? value : 0);
    }
  }
  auto got = rank_runs::run(p.finish(), [&](int) { return Tensors{{"x", x_values}}; });
  EXPECT_EQ(got[0].at("y"), want);
  EXPECT_EQ(got[0].at("z"), limited);
}

}  // namespace
}  // namespace stretto::structure_test
