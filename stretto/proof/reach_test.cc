// Accesses that never meet their tensor. If these fail, a program that reads zeros from a place
// that is not there is proved, or one with ragged edges is refused.
#include "stretto/proof/reach.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::reach_test {
namespace {

void expect_refused(const Program& program, FindingKind kind,
                    const std::vector<std::string>& words) {
  ProofResult r = prove(run_pipeline(program));
  ASSERT_TRUE(r.rejected()) << r.report;
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  for (const std::string& word : words) {
    EXPECT_NE(r.report.find(word), std::string::npos) << word << " is not in\n" << r.report;
  }
}

void expect_proved(const Program& program) {
  ProofResult r = prove(run_pipeline(program));
  EXPECT_TRUE(r.proved()) << r.report;
}

std::string here(int line) { return fmt::format("reach_test.cc:{}", line); }

struct Position {
  ProgramBuilder& p;
  const Tile& t;
  TensorRef x, y;
};
using Body = std::function<void(const Position&)>;

// y[t] = 0 for four tiles of a row, after `body`; x and buffer `b` have as many rows.
Program with(const Body& body, int world = 1) {
  ProgramBuilder p("reach", world);
  auto x = p.input("x", DType::kF32, {4, 8});
  auto b = p.buffer("b", DType::kF32, {4, 8});
  auto y = p.output("y", DType::kF32, {4, 8});
  p.role("work", Resource::sms(2), p.range(4), [&](const Tile& t) {
    body({p, t, x, b});
    p.store(y.tile({t.index, 0}, 1, 8), p.zeros(DType::kF32, 1, 8));
  });
  return p.finish();
}

TEST(Reach, WhatNeverMeetsItsTensorIsRefused) {
  int line = 0;
  auto refused = [&](const Body& body, const std::vector<std::string>& words) {
    Program program = with(body);
    std::vector<std::string> all = words;
    all.push_back(here(line));
    expect_refused(program, FindingKind::kOutside, all);
  };
  auto keep = [&](const Position& at, const Value& v) {
    at.p.store(at.y.tile({at.t.index, 0}, 1, 8), v);
  };
  refused(
      [&](const Position& at) {
        line = __LINE__ + 1;
        keep(at, at.p.load(at.x.tile({4, 0}, 1, 8)));
      },
      {"read of 'x' [4:5, 0:8] on rank 0 by role 'work' (rank 0, worker 0, tile 0)",
       "outside of 'x', which is [4, 8]"});
  refused(
      [&](const Position& at) {
        line = __LINE__ + 1;
        keep(at, at.p.load(at.x.tile({at.t.index - 6, 0}, 1, 8)));
      },
      {"'x' [-6:-5, 0:8]"});
  refused(
      [&](const Position& at) {
        line = __LINE__ + 1;
        at.p.store(at.y.tile({at.t.index, 8}, 1, 8), at.p.zeros(DType::kF32, 1, 8));
      },
      {"write of 'b' [0:1, 8:16]"});
  refused(
      [&](const Position& at) {
        at.p.loop(3, [&](const Index& i) {
          line = __LINE__ + 1;
          keep(at, at.p.load(at.x.tile({at.t.index, 8 + i * 8}, 1, 8)));
        });
      },
      {"'x' [0:1, 8:32]"});
  for (bool from : {true, false}) {  // one side of a copy is there
    refused(
        [&](const Position& at) {
          line = __LINE__ + 1;
          at.p.copy(at.y.tile({at.t.index + (from ? 0 : 9), 0}, 1, 8),
                    at.x.tile({at.t.index + (from ? 9 : 0), 0}, 1, 8));
        },
        {from ? "read of 'x' [9:10, 0:8]" : "write of 'b' [9:10, 0:8]"});
  }
}

// Whatever the size is; the tensor that ends at it is not where the tile looks.
TEST(Reach, IsJudgedOverAllSizes) {
  auto program = [](std::int64_t bound, const std::function<Index(const Tile&)>& row) {
    ProgramBuilder p("sizes", 2);
    Index m = p.extent("m", bound);
    auto x = p.input("x", DType::kF32, {m, 8});
    auto y = p.output("y", DType::kF32, {m, 8});
    p.role("copy", Resource::sms(2), p.grid(y, 4, 8), [&](const Tile& t) {
      p.store(y.tile({t.row, 0}, 4, 8), p.load(x.tile({row(t), 0}, 4, 8)));
    });
    return p.finish();
  };
  expect_refused(program(13, [](const Tile& t) { return t.row + 16; }), FindingKind::kOutside,
                 {"'x' [24:28, 0:8]", "which is [13, 8]", "with m = 13"});
  for (std::int64_t bound : {1, 4, 13}) {
    expect_proved(program(bound, [](const Tile& t) { return t.row; }));
    expect_proved(program(bound, [](const Tile& t) { return t.row + 1; }));  // a halo
    expect_proved(program(bound, [](const Tile& t) { return t.row - 4; }));
  }
  // At 13 rows the last tile meets it.
  expect_proved(program(13, [](const Tile& t) { return t.row - 12; }));
}

// All sizes are one piece, walked at the bounds, where no tile is beyond the rows.
TEST(Reach, ALineThatIsThereBelowTheBoundsAloneMeetsItsTensor) {
  auto program = [](std::int64_t beyond) {
    constexpr std::int64_t kBound = 3000;
    ProgramBuilder p("rest", 1);
    Index m = p.extent("m", kBound);
    auto x = p.input("x", DType::kF32, {m, 4});
    auto y = p.output("y", DType::kF32, {kBound, 4});
    p.role("fill", Resource::sms(1), p.range(kBound), [&](const Tile& t) {
      auto to = [&](const Index& row) { return y.tile({row, 0}, 1, 4); };
      p.when(
          t.index < m, [&] { p.store(to(t.index), p.load(x.tile({t.index, 0}, 1, 4))); },
          [&] {
            p.store(to(t.index), p.zeros(DType::kF32, 1, 4));
            if (beyond > 0) p.store(to(t.index + beyond), p.zeros(DType::kF32, 1, 4));
          });
    });
    return run_pipeline(p.finish());
  };
  // Of so few operations each that not all sizes are looked at one by one.
  const ProofOptions few{.max_enumerated = 100'000};
  ProofResult right = prove(program(0), few);
  EXPECT_TRUE(right.proved()) << right.report;
  EXPECT_LT(right.stats.cases, 4) << right.report;
  EXPECT_FALSE(prove(program(10'000), few).proved()) << "it is outside at every size";
}

TEST(Reach, RaggedEdgesMasksAndGuardsAreProved) {
  // Halves of a tile that is longer than the tensor, on lines of their own.
  ProgramBuilder p("halves", 2);
  auto x = p.input("x", DType::kF32, {9, 8});
  auto y = p.output("y", DType::kF32, {9, 8});
  p.role("copy", Resource::sms(2), p.grid(y, 32, 8), [&](const Tile& t) {
    p.store(y.tile({t.row, 0}, 16, 8), p.load(x.tile({t.row, 0}, 16, 8)));
    Value below = p.load(x.tile({t.row + 16, 0}, 16, 8));
    p.store(y.tile({t.row + 16, 0}, 16, 8), below);
  });
  expect_proved(p.finish());

  std::vector<Body> bodies = {
      // Unrolled by its author: one line.
      [](const Position& at) {
        for (int part = 0; part < 3; ++part) {
          at.p.store(at.y.tile({at.t.index, part * 8}, 1, 8), at.p.zeros(DType::kF32, 1, 8));
        }
      },
      // Masked.
      [](const Position& at) {
        at.p.store(at.y.tile({at.t.index, 0}, 1, 8).until_row(0), at.p.zeros(DType::kF32, 1, 8));
      },
      // Never done.
      [](const Position& at) {
        at.p.when(at.t.index >= 4, [&] {
          at.p.store(at.y.tile({at.t.index + 9, 0}, 1, 8), at.p.zeros(DType::kF32, 1, 8));
        });
      },
      // On one rank it is there.
      [](const Position& at) {
        Value rows = at.p.load(at.x.tile({at.p.rank() * 4 + at.t.index, 0}, 1, 8));
        at.p.store(at.y.tile({at.t.index, 0}, 1, 8), rows);
      },
  };
  for (const Body& body : bodies) expect_proved(with(body, 2));
}

// The typical slip: a rank's own rows, counted from the start of all ranks'. Rank 0 meets them.
TEST(Reach, ARankThatNeverMeetsWhatOthersDoIsNoted) {
  auto notes = [](std::int64_t world, std::int64_t rows, std::int64_t per_rank, std::int64_t size) {
    ProgramBuilder p("astray", static_cast<int>(world));
    auto x = p.input("x", DType::kF32, {rows, 8});
    auto y = p.output("y", DType::kF32, {per_rank, 8});
    p.role("work", Resource::sms(2), p.grid(y, size, 8), [&](const Tile& t) {
      Slice box = x.tile({p.rank() * per_rank + t.row, 0}, size, 8);
      p.store(y.tile({t.row, 0}, size, 8), p.load(box));
    });
    ProofResult r = prove(run_pipeline(p.finish()));
    EXPECT_TRUE(r.proved()) << r.report;
    return r.notes;
  };
  for (std::int64_t world : {2, 3}) {
    std::vector<std::string> found = notes(world, 64, 64, 4);
    ASSERT_EQ(found.size(), 1u);
    for (const char* words : {"reach_test.cc:", "read of 'x' [72:76, 0:8] on rank 1", "[64, 8]"}) {
      EXPECT_NE(found[0].find(words), std::string::npos) << words << "\n" << found[0];
    }
  }
  // Rows split among ranks, of which the last have none.
  for (std::int64_t world = 1; world <= 8; ++world) {
    for (std::int64_t rows = 1; rows <= 70; ++rows) {
      EXPECT_TRUE(notes(world, rows, (rows + world - 1) / world, 1).empty())
          << world << " " << rows;
    }
  }
}

// Of a tensor without elements nothing can be met, nor does it excuse what other sizes lack.
TEST(Reach, ExtentsOfZeroSayNothing) {
  auto sized = [](const Index& off) {
    ProgramBuilder p("sized", 1);
    Index m = p.extent("m", 5);
    auto x = p.input("x", DType::kF32, {m, 8});
    auto y = p.output("y", DType::kF32, {m, 8});
    p.role("work", Resource::sms(1), p.range(5), [&](const Tile& t) {
      p.store(y.tile({t.index, 0}, 1, 8), p.load(x.tile({t.index + off, 0}, 1, 8)));
    });
    return p.finish();
  };
  expect_proved(sized(0));
  expect_refused(sized(5), FindingKind::kOutside, {"'x' [6:7, 0:8]", "with m = 5"});

  ProgramBuilder p("empty", 1);
  auto x = p.input("x", DType::kF32, {0, 8});
  auto y = p.output("y", DType::kF32, {4, 8});
  p.role("work", Resource::sms(1), p.range(4), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 8), p.load(x.tile({t.index, 0}, 1, 8)));
  });
  expect_proved(p.finish());
}

// y[t] = x[first + which[t]], which[t] in 0..3.
Program by_table(const Index& first) {
  ProgramBuilder p("by_table", 1);
  auto which = p.table("which", {4}, {ContractKind::kRange, 0, 4});
  auto x = p.input("x", DType::kF32, {4, 8});
  auto y = p.output("y", DType::kF32, {4, 8});
  p.role("pick", Resource::sms(1), p.range(4), [&](const Tile& t) {
    Index row = p.read(which, {t.index}) + first;
    p.store(y.tile({t.index, 0}, 1, 8), p.load(x.tile({row, 0}, 1, 8)));
  });
  return p.finish();
}

TEST(Reach, OneEntryOfATableThatMeetsItIsEnough) {
  expect_proved(by_table(0));
  expect_proved(by_table(-3));  // where an entry is 3
  expect_refused(by_table(5), FindingKind::kOutside, {"'x' [5:9, 0:8]"});
}

// Keys of packed sequences, read in a loop that a table ends: no iteration of it is looked at but
// the first and the last, unless one may read an entry that is not there.
TEST(Reach, LoopsOverInputsReadEntriesThatAreThere) {
  auto program = [](std::int64_t pages, std::int64_t slip, bool divides) {
    ProgramBuilder p("packed", 1);
    auto starts = p.table("starts", {3}, {ContractKind::kPartition, 0, 65});
    auto page = p.table("page", {pages}, {ContractKind::kRange, 0, 8});
    auto k = p.input("k", DType::kF32, {64, 4});
    auto y = p.output("y", DType::kF32, {2, 4});
    p.role("sum", Resource::sms(1), p.range(2), [&](const Tile& t) {
      Index rows = p.read(starts, {t.index + 1}) - p.read(starts, {t.index});
      Value sum = p.zeros(DType::kF32, 1, 4);
      p.loop(rows, [&](const Index& i) {
        // Beyond the table in the middle of the loop alone.
        Index which = divides ? Index(60) / max(min(i - 30, 30 - i) + 1, 0) : i / 8;
        Index of = which + select(i == 40, Index(slip), Index(0));
        sum = sum + p.load(k.tile({p.read(page, {of}) * 8 + i % 8, 0}, 1, 4));
      });
      p.store(y.tile({t.index, 0}, 1, 4), sum);
    });
    return run_pipeline(p.finish());
  };
  ProofResult right = prove(program(8, 0, false));
  EXPECT_TRUE(right.proved()) << right.report;
  EXPECT_FALSE(prove(program(7, 0, false)).proved()) << "the last iterations read beyond it";
  EXPECT_FALSE(prove(program(8, 8, false)).proved()) << "one in the middle does";
  EXPECT_FALSE(prove(program(8, -8, false)).proved());
  EXPECT_FALSE(prove(program(64, 0, true)).proved()) << "one divides by zero";
}

// Entries of tables are not masked: a kernel would read whatever lies there.
TEST(Reach, AnEntryThatIsNotThereIsRefused) {
  auto program = [](const std::function<Index(ProgramBuilder&, const Index&, TensorRef)>& index) {
    ProgramBuilder p("entry", 1);
    auto first = p.table("first", {4}, {ContractKind::kRange, 0, 6});
    auto second = p.table("second", {4}, {ContractKind::kRange, 0, 4});
    auto x = p.input("x", DType::kF32, {4, 8});
    auto y = p.output("y", DType::kF32, {4, 8});
    p.role("pick", Resource::sms(1), p.range(4), [&](const Tile& t) {
      Index entry = index(p, t.index, first);
      Value v = p.zeros(DType::kF32, 1, 8);
      p.when(entry < 4, [&] { v = v + p.load(x.tile({p.read(second, {entry}), 0}, 1, 8)); });
      Index plain = p.read(second, {min(entry, 3)});
      p.store(y.tile({t.index, 0}, 1, 8), v + p.load(x.tile({plain, 0}, 1, 8)));
    });
    return p.finish();
  };
  expect_proved(program([](auto&, const Index& t, auto) { return t; }));
  // A condition leaves out what the contract allows beyond, which is not shown.
  ProofResult r = prove(run_pipeline(
      program([](auto& p, const Index& t, auto first) { return p.read(first, {t}); })));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  ASSERT_EQ(r.missing.size(), 1u);
  EXPECT_EQ(r.missing[0].what, "entries of tables");
  expect_refused(program([](auto&, const Index& t, auto) { return t - 1; }),
                 FindingKind::kIllFormed,
                 {"reach_test.cc:", "index -1 of dimension 0 of table 'second' does not exist"});
  expect_refused(
      program([](auto& p, const Index& t, auto first) { return p.read(first, {t + 1}); }),
      FindingKind::kIllFormed, {"index 4 of dimension 0 of table 'first'", "4 entries"});
  expect_refused(
      program([](auto& p, const Index& t, auto first) { return p.read(first, {t}) - 1; }),
      FindingKind::kIllFormed,
      {"index -1 of dimension 0 of table 'second'", "with tables 'first' = [0, 0, 0, 0]"});
  // As it is for no table, which the values of each entry by itself do not tell.
  r = prove(run_pipeline(program([](auto& p, const Index& t, auto first) {
    Index value = p.read(first, {t});
    return value + 3 - value;
  })));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
}

// The rule, tile by tile and iteration by iteration, beside what the proof finds of folded loops.
TEST(Reach, AgreesWithEveryTileOfRandomPrograms) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto pick = [&](int lo, int hi) { return std::uniform_int_distribution<>(lo, hi)(random); };
  constexpr int kWorld = 2, kTiles = 3;
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    struct Dim {
      int first, of_tile, of_rank, of_loop, size, shape;
    } dims[2];
    for (Dim& d : dims) {
      d = {pick(-20, 20), pick(-3, 3), pick(-2, 2), pick(0, 1) * pick(-3, 3),
           pick(1, 4),    pick(1, 12)};
      if (pick(0, 2) > 0) d.of_tile = d.of_rank = d.of_loop = 0;
      if (pick(0, 1) > 0) d.first = pick(-2, d.shape);
    }
    int trips = pick(1, 4);
    ProgramBuilder p("random", kWorld);
    auto x = p.input("x", DType::kF32, {dims[0].shape, dims[1].shape});
    auto y = p.output("y", DType::kF32, {kTiles * dims[0].size, dims[1].size});
    p.role("work", Resource::sms(2), p.range(kTiles), [&](const Tile& t) {
      Value sum = p.zeros(DType::kF32, dims[0].size, dims[1].size);
      p.loop(trips, [&](const Index& i) {
        auto origin = [&](const Dim& d) {
          return d.first + t.index * d.of_tile + p.rank() * d.of_rank + i * d.of_loop;
        };
        Slice box = x.tile({origin(dims[0]), origin(dims[1])}, dims[0].size, dims[1].size);
        sum = sum + p.load(box);
      });
      p.store(y.tile({t.index * dims[0].size, 0}, dims[0].size, dims[1].size), sum);
    });

    bool meets = false, far = false;
    for (int rank = 0; rank < kWorld; ++rank) {
      for (int tile = 0; tile < kTiles; ++tile) {
        for (int i = 0; i < trips; ++i) {
          bool inside = true;
          for (const Dim& d : dims) {
            int lo = d.first + tile * d.of_tile + rank * d.of_rank + i * d.of_loop;
            if (lo < d.shape && lo + d.size > 0) continue;
            inside = false;
            bool fixed = d.of_tile == 0 && d.of_rank == 0 && d.of_loop == 0;
            far |= fixed || lo - d.shape >= d.size || -lo - d.size >= d.size;
          }
          meets |= inside;
        }
      }
    }
    ProofResult r = prove(run_pipeline(p.finish()));
    bool expected = !meets && far;
    EXPECT_EQ(r.rejected(), expected) << "round " << round << "\n" << r.report;
    EXPECT_TRUE(r.proved() || r.findings[0].kind == FindingKind::kOutside) << r.report;
    refused += r.rejected() ? 1 : 0;
  }
  EXPECT_GT(refused, 40);
  EXPECT_LT(refused, 360);
}

}  // namespace
}  // namespace stretto::reach_test
