// Programs whose boxes end at the larger of a number and of what sizes make, or that deal out rows
// in whole blocks: a few pieces stand for all sizes. The reference is every size by itself. If
// these fail, a sum that ranks share out by rows reads what nobody sent at some number of tokens,
// or its proof takes a piece for each row of tiles.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/one_by_one_testing.h"
#include "stretto/proof/prove.h"

namespace stretto::sized_ends_test {
namespace {

constexpr int kWorld = 3;
constexpr std::int64_t kBound = 150;

// Rows of each tile go to all ranks as packets, of a tile without rows so many all the same.
Program exchanged(std::int64_t stored_at_least, std::int64_t loaded_at_least, std::int64_t less) {
  constexpr std::int64_t kTile = 10, kCols = 4;
  ProgramBuilder p("exchanged", kWorld);
  Index m = p.extent("m", kBound);
  auto in = p.input("in", DType::kF16, {m, kCols});
  auto box = p.buffer("box", DType::kF16, {kWorld, kBound, kCols},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto out = p.output("out", DType::kF16, {m, kCols});
  p.role("exchange", Resource::sms(2), p.range(kBound / kTile), [&](const Tile& t) {
    Index row = t.index * kTile;
    auto rows = [&](const Index& rank, std::int64_t at_least, std::int64_t left_out) {
      Index there = max(min(m - row, kTile) - left_out, at_least);
      return box.tile({rank, row, 0}, kTile, kCols).until_row(row + there);
    };
    Value mine = p.load(in.tile({row, 0}, kTile, kCols));
    p.loop(kWorld, [&](const Index& i) {
      Index peer = p.let("peer", (p.rank() + 1 + i) % kWorld);
      p.store_packet(rows(p.rank(), stored_at_least, less).on(peer), mine);
    });
    Value sum = p.zeros(DType::kF32, kTile, kCols);
    p.loop(kWorld, [&](const Index& i) {
      sum = sum + cast(p.load_packet(rows(i, loaded_at_least, 0)), DType::kF32);
    });
    p.store(out.tile({row, 0}, kTile, kCols), cast(sum, DType::kF16));
  });
  return run_pipeline(p.finish());
}

TEST(SizedEnds, RowsThatAreThereAtAllSizesAreNotDecided) {
  Program right = exchanged(1, 1, 0);
  ProofResult r = prove(right);
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_LT(r.stats.cases, 6) << r.report;
  EXPECT_TRUE(one_by_one(right).proved());
}

TEST(SizedEnds, RowsThatNobodySendsAreMissed) {
  const std::int64_t kWrong[][3] = {{1, 2, 0}, {0, 1, 0}, {1, 1, 1}, {0, 0, 0}};
  for (const auto& [stored, loaded, less] : kWrong) {
    SCOPED_TRACE(fmt::format("stored {} loaded {} less {}", stored, loaded, less));
    Program program = exchanged(stored, loaded, less);
    ProofResult r = prove(program), each = one_by_one(program);
    EXPECT_FALSE(each.proved()) << "meant to be broken: " << each.report;
    EXPECT_FALSE(r.proved()) << r.report;
  }
}

// How many rows more are made, read, stored and loaded than there are; whether one packet is sent
// where there is none.
struct Rows {
  std::int64_t made = 0, read = 0, stored = 0, loaded = 0;
  bool one_at_least = true;
};

// As a decode adds up what runs of a cache made of each sequence: rows that are there are read,
// where the others end before their first part, and exchanged under a condition. Where `tokens` is
// not zero, so many are dealt out to the ranks, beside `most` sequences.
Program rows_if_there(const Rows& more, std::int64_t most = 76, std::int64_t tokens = 0) {
  constexpr std::int64_t kParts = 3, kCols = 4, kGroup = 2;
  const std::int64_t most_rows = most * kGroup;
  ProgramBuilder p("rows_if_there", kWorld);
  Index m = p.extent("m", most), rows = m * kGroup;
  Index share = tokens > 0 ? ceil_div(p.extent("tokens", tokens), kWorld) : Index(1);
  auto in = p.input("in", DType::kF32, {most_rows, kCols});
  auto sums = p.buffer("sums", DType::kF32, {most_rows, kParts, kCols});
  auto box = p.buffer("box", DType::kF32, {kWorld, most_rows, kCols},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto out = p.output("out", DType::kF32, {rows, kCols});
  auto finished = p.signal("finished", 1);
  p.role("sum", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
    Slice to = sums.tile({0, t.index, 0}, most_rows, kCols).rows_along(0);
    Value part = p.zeros(DType::kF32, most_rows, kCols);
    p.loop(share, [&](const Index&) { part = part + p.load(in.tile({0, 0}, most_rows, kCols)); });
    p.when(m > 0, [&] { p.store(to.until_row(rows + more.made), part); });
    p.notify(finished[0], p.rank());
  });
  p.role("combine", Resource::sms(2), p.range(most_rows), [&](const Tile& t) {
    auto there = [&](const char* name, std::int64_t n) { return p.let(name, t.index < rows + n); };
    Index read = there("read", more.read), stored = there("stored", more.stored);
    Index loaded = there("loaded", more.loaded);
    p.wait(finished[0], kParts);
    Slice of_row = sums.tile({t.index, 0, 0}, kParts, kCols);
    Value own = col_sum(p.load(of_row.until_row(read * kParts)));
    p.when(more.one_at_least ? stored || t.index == 0 : stored, [&] {
      p.loop(kWorld, [&](const Index& i) {
        p.store_packet(box.on(i).tile({p.rank(), t.index, 0}, 1, kCols), own);
      });
    });
    auto received = [&] {
      return col_sum(p.load_packet(box.tile({0, t.index, 0}, kWorld, kCols).rows_along(0)));
    };
    p.when(loaded, [&] { p.store(out.tile({t.index, 0}, 1, kCols), received()); });
    if (more.one_at_least) p.when(loaded == 0 && t.index == 0, [&] { received(); });
  });
  return run_pipeline(p.finish());
}

TEST(SizedEnds, RowsUnderAConditionAreNotDecided) {
  Program right = rows_if_there({});
  ProofResult r = prove(right);
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_LT(r.stats.cases, 6) << r.report;
  EXPECT_TRUE(one_by_one(right).proved());
}

// A piece of many tokens is walked at no sequences, where a few are the most.
TEST(SizedEnds, NoRowsAreACaseOfTheirOwnBesideALargeSize) {
  for (std::int64_t most : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("up to {} sequences", most));
    Program right = rows_if_there({}, most, /*tokens=*/100);
    ProofResult r = prove(right);
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_LT(r.stats.cases, 10) << r.report;
    EXPECT_TRUE(one_by_one(right).proved());
  }
}

void expect_all_missed(std::int64_t most, std::int64_t tokens) {
  for (const Rows& more : {Rows{.made = -1}, Rows{.read = 1}, Rows{.stored = -1},
                           Rows{.loaded = 1}, Rows{.loaded = -1}, Rows{.one_at_least = false}}) {
    SCOPED_TRACE(fmt::format("made {} read {} stored {} loaded {}, one at least: {}", more.made,
                             more.read, more.stored, more.loaded, more.one_at_least));
    Program program = rows_if_there(more, most, tokens);
    ProofResult r = prove(program), each = one_by_one(program);
    EXPECT_FALSE(each.proved()) << "meant to be broken: " << each.report;
    EXPECT_FALSE(r.proved()) << r.report;
  }
}

TEST(SizedEnds, RowsUnderAnotherConditionAreMissed) { expect_all_missed(76, 0); }
TEST(SizedEnds, RowsUnderAnotherConditionAreMissedBesideALargeSize) { expect_all_missed(2, 100); }

// Ranks have whole blocks of rows, all but the last that have any, and store those with rows as
// they are. What is beyond its rows is the next rank's, which stores there, too, where a share is
// not whole blocks.
Program in_blocks(std::int64_t block, std::int64_t shares_of, std::int64_t more) {
  ProgramBuilder p("in_blocks", kWorld);
  Index m = p.extent("m", kBound), share = ceil_div(ceil_div(m, kWorld), shares_of) * shares_of;
  std::int64_t blocks = kBound / kWorld / block + 2, rows = kWorld * (blocks + 1) * block;
  auto in = p.input("in", DType::kF32, {blocks * block, 4});
  auto box = p.buffer("box", DType::kF32, {rows, 4}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {m, 4});
  auto ready = p.signal("ready"), sent = p.signal("sent", kWorld);
  p.on_start([&] { p.notify_all(ready); });
  auto rows_of = [&](const Index& rank) { return max(min(m - rank * share, share), 0); };
  p.role("send", Resource::sms(2), p.range(blocks), [&](const Tile& t) {
    Index row = t.index * block;
    p.loop(kWorld, [&](const Index& i) { p.wait(ready, i); });
    p.when(row < rows_of(p.rank()) + more, [&] {
      Value mine = p.load(in.tile({row, 0}, block, 4));
      p.loop(kWorld, [&](const Index& i) {
        p.store(box.on(i).tile({p.rank() * share + row, 0}, block, 4), mine);
      });
    });
    p.loop(kWorld, [&](const Index& i) { p.notify(sent[p.rank()], i); });
  });
  p.role("read", Resource::sms(1), p.range(kWorld), [&](const Tile& t) {
    p.wait(sent[t.index], blocks);
    Index first = t.index * share, end = first + rows_of(t.index);
    auto part = [&](const TensorRef& of) { return of.tile({first, 0}, kBound, 4).until_row(end); };
    p.store(part(out), p.load(part(box)));
  });
  p.on_end([&] { p.loop(kWorld, [&](const Index& i) { p.wait(sent[i], blocks); }); });
  return run_pipeline(p.finish());
}

TEST(SizedEnds, WholeBlocksOfAShareAreApart) {
  for (std::int64_t block : {8, 20}) {
    Program right = in_blocks(block, block, 0);
    ProofResult r = prove(right);
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_LT(r.stats.cases, 20) << r.report;
    EXPECT_TRUE(one_by_one(right).proved());
  }
}

TEST(SizedEnds, BlocksThatReachIntoTheNextShareAreFound) {
  const std::int64_t kWrong[][3] = {{8, 1, 0}, {8, 4, 0}, {20, 10, 0}, {8, 8, 8}, {20, 20, 1}};
  for (const auto& [block, shares_of, more] : kWrong) {
    SCOPED_TRACE(fmt::format("blocks of {}, shares of {}, {} rows more", block, shares_of, more));
    Program program = in_blocks(block, shares_of, more);
    ProofResult r = prove(program), each = one_by_one(program);
    EXPECT_FALSE(each.proved()) << "meant to be broken: " << each.report;
    EXPECT_FALSE(r.proved()) << r.report;
  }
}

}  // namespace
}  // namespace stretto::sized_ends_test
