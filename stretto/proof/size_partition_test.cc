// Programs whose behaviour changes at sizes that nothing in them names: where shares, quotients,
// remainders and shapes take another value. A proof that guesses such sizes calls them proved.
#include "stretto/proof/size_partition.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/instance_graph.h"
#include "stretto/proof/prove.h"

namespace stretto::size_partition_test {
namespace {

using OfSize = std::function<Index(const Index&)>;

// Both too large to be looked at size by size, and proved by few of them.
void expect_verdicts(const std::function<Program(bool slips)>& program) {
  ProofResult right = prove(run_pipeline(program(false)));
  EXPECT_EQ(right.verdict, Verdict::kProved) << right.report;
  EXPECT_LT(right.stats.cases, 1'000) << right.report;
  ProofResult wrong = prove(run_pipeline(program(true)));
  EXPECT_EQ(wrong.verdict, Verdict::kRejected) << wrong.report;
}

// Writes rows up to one place and reads them up to another.
Program write_and_read(const OfSize& written, const OfSize& read) {
  constexpr int kRows = 60'000;
  ProgramBuilder p("ratio", 2);
  Index m = p.extent("m", 2 * kRows);
  auto in = p.input("in", DType::kF32, {kRows, 4}), buf = p.buffer("buf", DType::kF32, {kRows, 4});
  auto out = p.output("out", DType::kF32, {kRows, 4});
  auto done = p.signal("done", 1);
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(buf.tile({0, 0}, kRows, 4).until_row(written(m)), p.load(in.tile({0, 0}, kRows, 4)));
    p.notify(done[0], p.rank());
  });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(done[0], 1);
    p.store(out.tile({0, 0}, kRows, 4), p.load(buf.tile({0, 0}, kRows, 4).until_row(read(m))));
  });
  return p.finish();
}

TEST(SizePartition, ReadsAsFarAsWasWritten) {
  expect_verdicts([](bool slips) {
    return write_and_read([](const Index& m) { return 3 * m / 7; },
                          [=](const Index& m) { return (3 * m + (slips ? 1 : 0)) / 7; });
  });
  expect_verdicts([](bool slips) {
    return write_and_read([](const Index& m) { return min(m / 3, 17'001); },
                          [=](const Index& m) { return min(m / 3, slips ? 17'002 : 17'001); });
  });
  expect_verdicts([](bool slips) {
    return write_and_read([](const Index& m) { return m - m % 12; },
                          [=](const Index& m) { return m / 12 * 12 + (slips ? m % 12 / 11 : 0); });
  });
}

TEST(SizePartition, TwoRolesShareRowsInOtherProportions) {
  expect_verdicts([](bool slips) {
    constexpr int kRows = 30'000;
    ProgramBuilder p("share", 1);
    Index m = p.extent("m", kRows);
    auto in = p.input("in", DType::kF32, {kRows, 4}), out = p.output("out", DType::kF32, {m, 4});
    p.role("first", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index end = (5 * m + (slips ? 3 : 4)) / 8;  // a row is left out where 5 m % 8 == 4
      p.store(out.tile({0, 0}, kRows, 4).until_row(end), p.load(in.tile({0, 0}, kRows, 4)));
    });
    p.role("second", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index from = p.let("from", (5 * m + 4) / 8);
      p.store(out.tile({from, 0}, kRows, 4), p.load(in.tile({from, 0}, kRows, 4)));
    });
    return p.finish();
  });
}

// So many parts of rows, each copied by a tile of its own; rounded up by `more`.
Program copy_in_parts(std::int64_t bound, std::int64_t parts, std::int64_t more) {
  ProgramBuilder p("parts", 1);
  Index m = p.extent("m", bound);
  auto in = p.input("in", DType::kF32, {m, 4}), out = p.output("out", DType::kF32, {m, 4});
  std::int64_t rows = (bound + parts - 1) / parts;
  p.role("copy", Resource::sms(1), p.range(parts), [&](const Tile& t) {
    Index share = p.let("share", (m + more) / parts);
    Index first = p.let("first", t.index * share);
    Index end = p.let("end", min(first + share, m));
    p.store(out.tile({first, 0}, rows, 4).until_row(end), p.load(in.tile({first, 0}, rows, 4)));
  });
  return p.finish();
}

// How often each size up to the bound lies in a piece: once.
void expect_each_size_once(const SizePartition& parts, std::int64_t bound) {
  std::vector<int> times(static_cast<std::size_t>(bound) + 1, 0);
  for (const SizePiece& piece : parts.pieces) {
    SizePoint at = piece.box.lo;
    for (std::size_t axis = 0; axis < kMaxSizeAxes;) {
      if (axis == 0) {
        std::int64_t m = extents_at(parts.axes, at)[0];
        ASSERT_TRUE(m >= 0 && m <= bound) << m;
        ++times[static_cast<std::size_t>(m)];
      }
      if (at[axis] < piece.box.hi[axis]) {
        ++at[axis];
        axis = 0;
      } else {
        at[axis] = piece.box.lo[axis];
        ++axis;
      }
    }
  }
  EXPECT_EQ(times, std::vector<int>(times.size(), 1));
}

// The pieces that there are, if they are at most 64.
std::unique_ptr<SizePartition> pieces_of(const Program& program, LeftOpen open) {
  NoPieces why;
  auto found =
      partition_with_masks(program, {.at_least = 64, .at_most = 64, .events = 0}, open, why,
                           [](const SizePartition&, const InstanceGraph&) { return true; });
  EXPECT_NE(found, nullptr) << why.where << why.expression;
  return found;
}

TEST(SizePartition, SizesThatLackSomeOfAMultipleAreOnePiece) {
  for (std::int64_t parts : {2, 3, 8}) {
    for (std::int64_t bound : {1'024, 1'025, 1'031, 1'032, 1'033}) {
      SCOPED_TRACE(fmt::format("{} parts of {} rows", parts, bound));
      Program program = run_pipeline(copy_in_parts(bound, parts, parts - 1));
      ProofResult right = prove(program);
      EXPECT_TRUE(right.proved()) << right.report;
      EXPECT_LE(right.stats.cases, 4) << right.report;
      // Rows are left out where m % parts == 1.
      ProofResult wrong = prove(run_pipeline(copy_in_parts(bound, parts, parts - 2)));
      EXPECT_EQ(wrong.verdict, Verdict::kRejected) << wrong.report;
      auto found = pieces_of(program, {.short_of = true});
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(extents_at(found->axes, found->pieces[0].sample)[0], bound);
      expect_each_size_once(*found, bound);
    }
  }
}

// So many parts of rows, each whole blocks but the last that has any. `more` rounds shares up: with
// fewer than a block less one row, rows are left out.
Program copy_in_blocks(std::int64_t bound, std::int64_t parts, std::int64_t rows,
                       std::int64_t more) {
  ProgramBuilder p("blocks", 1);
  Index m = p.extent("m", bound);
  auto in = p.input("in", DType::kF32, {m, 4}), out = p.output("out", DType::kF32, {m, 4});
  std::int64_t tiles = ceil_div(ceil_div(bound, parts), rows);
  p.role("copy", Resource::sms(3), p.range(parts * tiles), [&](const Tile& t) {
    Index share = p.let("share", (ceil_div(m, parts) + more) / rows * rows);
    Index part = p.let("part", t.index / tiles), row = p.let("row", t.index % tiles * rows);
    Index end = p.let("end", max(min(m - part * share, share), 0));
    p.when(row < end, [&] {
      Index first = p.let("first", part * share + row);
      Index last = p.let("last", part * share + end);
      p.store(out.tile({first, 0}, rows, 4).until_row(last), p.load(in.tile({first, 0}, rows, 4)));
    });
  });
  return p.finish();
}

TEST(SizePartition, SizesThatLackSomeOfWholeBlocksAreOnePiece) {
  constexpr std::int64_t kRows = 32;
  for (std::int64_t parts : {2, 3}) {
    for (std::int64_t more : {-kRows - 1, std::int64_t{0}, parts + 1}) {
      std::int64_t bound = 16 * parts * kRows + more;
      SCOPED_TRACE(fmt::format("{} parts of {} rows", parts, bound));
      Program program = run_pipeline(copy_in_blocks(bound, parts, kRows, kRows - 1));
      auto found = pieces_of(program, {.blocks = true, .short_of = true});
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(extents_at(found->axes, found->pieces[0].sample)[0], bound);
      expect_each_size_once(*found, bound);
      ProofResult right = prove(program);
      EXPECT_TRUE(right.proved()) << right.report;
      EXPECT_LE(right.stats.cases, 8) << right.report;
      ProofResult wrong = prove(run_pipeline(copy_in_blocks(bound, parts, kRows, kRows - 2)));
      EXPECT_EQ(wrong.verdict, Verdict::kRejected) << wrong.report;
    }
  }
}

// Each of the pieces is large, and there are more than so many times the first one's events.
TEST(SizePartition, StopsWhereManyPiecesAreAsLargeAsTheFirst) {
  Program program = run_pipeline(copy_in_blocks(64 * 64, 2, 32, 31));
  auto pieces = [&](int most_times, bool& too_large) {
    std::size_t count = 0;
    NoPieces why;
    const MostPieces most{
        .at_least = 1'000, .at_most = 1'000, .events = 0, .most_times = most_times};
    partition_with_masks(program, most, {.short_of = true}, why,
                         [&](const SizePartition& so_far, const InstanceGraph&) {
                           count = so_far.pieces.size();
                           return true;
                         });
    too_large = why.too_large;
    return count;
  };
  bool too_large = true;
  EXPECT_GT(pieces(0, too_large), 60u);
  EXPECT_FALSE(too_large);
  EXPECT_LT(pieces(4, too_large), 10u);
  EXPECT_TRUE(too_large);
}

TEST(SizePartition, AShapeComparesSizes) {
  expect_verdicts([](bool slips) {
    ProgramBuilder p("shape", 1);
    Index m = p.extent("m", 1 << 20);
    auto out = p.output("out", DType::kF32, {64 - select(m == 170'001, slips ? 2 : 0, 0), 64});
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index end = select(m == 170'001, slips ? 61 : 64, 64);
      p.store(out.tile({0, 0}, 64, 64).until_row(end), p.zeros(DType::kF32, 64, 64));
    });
    return p.finish();
  });
}

TEST(SizePartition, AThresholdGoesByAQuotient) {
  expect_verdicts([](bool slips) {
    ProgramBuilder p("deadlock", 1);
    Index m = p.extent("m", 1 << 20);
    auto out = p.output("out", DType::kF32, {4, 4});
    auto sent = p.signal("sent", 1);
    p.on_start([&] { p.notify(sent[0], 0); });
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.wait(sent[0], 1 + (3 * m + (slips ? 1 : 0)) / 7 - 3 * m / 7);
      p.store(out.tile({0, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    });
    return p.finish();
  });
}

// What is one row on one axis and moves on the other: two sizes at a time.
TEST(SizePartition, SeveralSizesTogether) {
  expect_verdicts([](bool slips) {
    ProgramBuilder p("several", 1);
    Index m = p.extent("m", 3'000), n = p.extent("n", 2'000);
    auto out = p.output("out", DType::kF32, {3'000, 4});
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index end = select(m == 1'037 && n == 411, slips ? 2'999 : 3'000, 3'000);
      p.store(out.tile({0, 0}, 3'000, 4).until_row(end), p.zeros(DType::kF32, 3'000, 4));
    });
    return p.finish();
  });
}

// Each tile waits for what was notified: as many pieces as tiles.
Program a_wait_in_each_tile(int bound, int rows) {
  ProgramBuilder p("waits", 1);
  Index m = p.extent("m", bound);
  auto out = p.output("out", DType::kF32, {m, 4});
  auto sent = p.signal("sent", 1);
  p.on_start([&] { p.notify(sent[0], 0); });
  p.role("fill", Resource::sms(1), p.range(ceil_div(m, rows)), [&](const Tile& t) {
    p.wait(sent[0], 1);
    p.store(out.tile({t.index * rows, 0}, rows, 4), p.zeros(DType::kF32, rows, 4));
  });
  return p.finish();
}

// Pieces beyond the limit cost seconds in vain where launches are large.
TEST(SizePartition, StopsEarlyWhereThereAreTooManyPieces) {
  constexpr std::size_t kMost = 100;
  auto num_pieces = [&](int rows, bool& complete) {
    Program program = run_pipeline(a_wait_in_each_tile(6'000, rows));
    std::size_t pieces = 0;
    auto count = [&](const SizePartition& so_far, const InstanceGraph&) {
      pieces = so_far.pieces.size();
      return true;
    };
    NoPieces why;
    const MostPieces most{.at_least = kMost, .at_most = kMost, .events = 0};
    complete = partition_with_masks(program, most, {}, why, count) != nullptr;
    return pieces;
  };
  bool complete = false;
  EXPECT_LE(num_pieces(100, complete), 70u);
  EXPECT_TRUE(complete);
  EXPECT_LE(num_pieces(10, complete), 10u);
  EXPECT_FALSE(complete);
}

}  // namespace
}  // namespace stretto::size_partition_test
