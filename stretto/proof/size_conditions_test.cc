// Waits and slots of pipes that are there at some sizes only. One expansion stands for all of them,
// so nobody may rely on what some sizes leave out.
#include "stretto/proof/size_conditions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::size_conditions_test {
namespace {

constexpr int kTile = 16, kStep = 16, kTrips = 8;

struct Wrong {
  int rows_to_begin = 1;  // which a tile needs to be multiplied
  int rows_left_out = 0;
  bool tells_within = false;  // only where it multiplies
};

// Tiles are multiplied where they have rows, as gemm_ar does: the other rank gets the product, and
// is told in any case.
Program product(std::int64_t bound, const Wrong& wrong) {
  ProgramBuilder p("product", 2);
  std::int64_t tiles = bound / kTile;
  Index m = p.extent("m", bound);
  auto a = p.input("a", DType::kBF16, {m, kTrips * kStep});
  auto b = p.input("b", DType::kBF16, {16, kTrips * kStep});
  auto out = p.output("out", DType::kF32, {m, 16});
  auto slots =
      p.buffer("slots", DType::kF32, {bound, 16}, {.space = Space::kSymmetric, .num_slots = 2});
  auto sent = p.signal("sent", tiles);
  Index peer = (p.rank() + 1) % 2;
  p.role("multiply", Resource::sms(4).pipelined(3), p.range(tiles), [&](const Tile& t) {
    Index row = p.let("row", t.index * kTile);
    auto tell = [&] { p.notify(sent[t.index], peer); };
    p.when(row + (wrong.rows_to_begin - 1) < m, [&] {
      Value acc = p.zeros(DType::kF32, kTile, 16);
      p.loop(kTrips, [&](const Index& i) {
        acc = dot(acc, p.load(a.tile({row, i * kStep}, kTile, kStep)),
                  p.load(b.tile({0, i * kStep}, 16, kStep)).T());
      });
      p.store(slots.on(peer).tile({row, 0}, kTile, 16).until_row(m - wrong.rows_left_out), acc);
      if (wrong.tells_within) tell();
    });
    if (!wrong.tells_within) tell();
    p.wait(sent[t.index], 1);
    p.store(out.tile({row, 0}, kTile, 16), p.load(slots.tile({row, 0}, kTile, 16).until_row(m)));
  });
  return run_pipeline(p.finish());
}

// At bounds that are looked at size by size, and at ones that are not.
void expect_rejected(const Wrong& wrong) {
  for (std::int64_t bound : {64, 640}) {
    ProofResult result = prove(product(bound, wrong));
    EXPECT_EQ(result.verdict, Verdict::kRejected) << bound << "\n" << result.report;
  }
}

TEST(SizeConditions, FewPiecesStandForAllSizes) {
  ProofResult result = prove(product(4096, {}));
  EXPECT_EQ(result.verdict, Verdict::kProved) << result.report;
  EXPECT_LT(result.stats.cases, 20);
}

// A tile of one row is left out.
TEST(SizeConditions, ATileIsThereForAllOfItsRows) { expect_rejected({.rows_to_begin = 2}); }

TEST(SizeConditions, EveryRowIsWritten) { expect_rejected({.rows_left_out = 1}); }

TEST(SizeConditions, WhatSomeSizesLeaveOutIsNotNotified) {
  expect_rejected({.tells_within = true});
}

}  // namespace
}  // namespace stretto::size_conditions_test
